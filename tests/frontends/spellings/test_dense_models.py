"""Layers on dense batches, [graphs, nodes, features] with a mask: whole, with one compilation for all sizes.

Results and all gradients equal eager mode's in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn.aggr import GraphMultisetTransformer
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention
from torch_geometric.utils import to_dense_adj, to_dense_batch

import graphweave
from graphweave.runtime import segment_attention as native
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WIDTH, CLUSTERS = 6, 3
SIZES = ((3, 7), (2, 5), (4, 1), (1, 4))
"""Graphs, and nodes of the largest."""


class Pooled(nn.Module):
    """A dense pooling layer on the assignments that a linear layer gives."""

    def __init__(self, pool: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.pool, self.assign = pool, nn.Linear(WIDTH, CLUSTERS)

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return self.pool(x, adj, self.assign(x), mask)


class Attention(nn.Module):
    """Attention with scores that are masked, and shifted by a bias for each pair."""

    def __init__(self, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = nn.Linear(WIDTH, 3 * WIDTH), causal

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.heads(x).chunk(3, -1))
        bias = None if self.causal else adj.log1p().masked_fill(~mask[:, None], -1e9)[:, None]
        out = F.scaled_dot_product_attention(q, k, v, bias, is_causal=self.causal)
        return out.transpose(1, 2).flatten(2) * mask[..., None]


class Encoder(nn.Module):
    """A layer of a transformer: attention by products of batches of matrices, norms, and a network of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, adj: Tensor, mask: Tensor) -> Tensor:
        scores = torch.einsum("bnf,bmf->bnm", self.q(x), self.k(x)) / WIDTH**0.5 + adj
        weights = scores.masked_fill(~mask[:, None], -1e9).softmax(-1)
        x = self.norms[0](x + torch.bmm(weights, self.v(x)))
        return self.norms[1](x + self.network(x)) * mask[..., None]


DENSE: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.DenseGCNConv(WIDTH, 5),
    "sage": lambda: pyg.DenseSAGEConv(WIDTH, 5, normalize=True),
    "gin": lambda: pyg.DenseGINConv(nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 5)), train_eps=True),
    "graph": lambda: pyg.DenseGraphConv(WIDTH, 5, aggr="mean"),
    "gat": lambda: pyg.DenseGATConv(WIDTH, 4, heads=2),
    "diff pool": lambda: Pooled(pyg.dense_diff_pool),
    "mincut pool": lambda: Pooled(pyg.dense_mincut_pool),
    "dmon": lambda: pyg.DMoNPooling([WIDTH, WIDTH], CLUSTERS),
    "attention": Attention,
    "causal": lambda: Attention(causal=True),
    "encoder": Encoder,
}


def dense_batch(graphs: int, nodes: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(graphs, nodes, WIDTH, dtype=torch.float64, generator=random)
    adj = (torch.rand(graphs, nodes, nodes, generator=random) < 0.6).double()
    adj = (adj + adj.transpose(1, 2)).clamp(max=1)
    adj.diagonal(dim1=1, dim2=2).fill_(1)
    mask = torch.arange(nodes) < torch.randint(1, nodes + 1, (graphs, 1), generator=random)
    return x.requires_grad_(), adj, mask


class Unpadded(nn.Module):
    """A layer on the dense form of a batch of graphs, whose padding is left out again."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        rows, mask = to_dense_batch(x, batch)
        return self.layer(rows, mask)[mask]


class Padded(nn.Module):
    """Multi-head attention of the nodes of each graph to each other."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True, **options)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.layer(x, x, x, key_padding_mask=~mask, need_weights=False)[0]


class Set(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = GraphMultisetTransformer(WIDTH, k=2, heads=2)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        return self.pool(x, batch)


class Gps(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.conv = pyg.GPSConv(WIDTH, pyg.GINConv(layer), heads=2, norm="layer_norm", **options)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        return self.conv(x, edges, batch)


class Clustered(nn.Module):
    """A model with one row for each graph, whose number only the data tells: a graph of clusters for each graph."""

    def __init__(self, pool: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.pool, self.assign = pool, nn.Linear(WIDTH, CLUSTERS)
        self.conv, self.last = pyg.GCNConv(WIDTH, WIDTH), pyg.DenseGraphConv(WIDTH, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        dense, mask = to_dense_batch(self.conv(x, edges).relu(), batch)
        rows, adj, *losses = self.pool(dense, to_dense_adj(edges, batch), self.assign(dense), mask)
        return self.last(rows, adj).mean(1), sum(losses[-2:], x.new_zeros(()))


SPARSE: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: Unpadded(Padded()),
    "gps": Gps,
    "gps performer": lambda: Gps(attn_type="performer", attn_kwargs={"head_channels": 4}),
    "gmt": Set,
    "performer": lambda: Unpadded(PerformerAttention(WIDTH, 2, head_channels=4)),
    "sgformer": lambda: Unpadded(SGFormerAttention(WIDTH, 2, head_channels=4)),
    "polynormer": lambda: Unpadded(PolynormerAttention(WIDTH, 2, head_channels=4)),
    "mincut": lambda: Clustered(pyg.dense_mincut_pool),
    "diff pool": lambda: Clustered(pyg.dense_diff_pool),
}
WHOLE = ("multihead", "gps", "gps performer", "gmt", "performer", "polynormer", "mincut", "diff pool")
"""Those that must be captured as one graph."""
BY_SEGMENTS = ("multihead", "gps", "gmt")
"""Those whose attention is computed on the rows of each graph."""


def batch_of(sizes: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    count = torch.tensor(sizes)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), count)
    first = (count.cumsum(0) - count)[batch]
    other = first + (torch.rand(len(batch), generator=random) * count[batch]).long()
    edges = torch.stack([torch.arange(len(batch)), other])
    return torch.randn(len(batch), WIDTH, dtype=torch.float64, generator=random).requires_grad_(), edges, batch


def step(model: nn.Module, x: Tensor, *others: Tensor) -> list[Tensor]:
    """The results of a model, and the gradients of its input and its parameters."""
    out = model(x, *others)
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
    total = sum(((o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)).sum() for o in outs), x.new_zeros(()))
    asked = [x, *model.parameters()]
    grads = torch.autograd.grad(total, asked, allow_unused=True)
    return [*outs, *(g for g in grads if g is not None)]


def compare(model: nn.Module, compiled: nn.Module, args: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(step(compiled, *args), step(model, *args), equal_nan=True)


def through(door: str, model: nn.Module) -> Any:
    own = copy.deepcopy(model)
    return graphweave.compile(own) if door == "compile" else torch.compile(own, backend="graphweave", dynamic=True)


@pytest.mark.parametrize("door", by_default(["compile", "backend"], "compile"))
@pytest.mark.parametrize("name", by_default(DENSE, "sage", "diff pool", "encoder"))
def test_layers_on_dense_batches(name: str, door: str) -> None:
    torch.manual_seed(0)
    model = DENSE[name]().double()
    compiled = through(door, model)
    graphweave.reset_counters()
    for seed, (graphs, nodes) in enumerate(SIZES):
        compare(model, compiled, dense_batch(graphs, nodes, seed))
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0
    assert counted["kernel_launches"] > 0


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    """SGFormer's attention makes a tensor of the default dtype."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("door", by_default(["compile", "backend"], "compile"))
@pytest.mark.parametrize("name", by_default(SPARSE, "gps", "mincut"))
def test_layers_that_pad_the_graphs_of_a_batch(name: str, door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = [], native._run
    monkeypatch.setattr(native, "_run", lambda *args, backward: (calls.append(backward), run(*args, backward=backward)))
    torch.manual_seed(0)
    model = SPARSE[name]()
    compiled = through(door, model)
    graphweave.reset_counters()
    for seed, sizes in enumerate([(3, 5, 2), (4, 1), (2, 2, 6, 3), (1, 1)]):
        compare(model, compiled, batch_of(sizes, seed))
    if name in WHOLE:
        assert graphweave.counters()["eager_fallbacks"] == 0
        assert graphweave.counters()["compilations"] <= 2
    if name in BY_SEGMENTS:
        assert calls.count(False) == calls.count(True) >= 4, "attention stores all pairs of a padded batch"
