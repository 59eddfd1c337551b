"""Attention of graph transformers, rebuilt small: results and all gradients equal eager mode's in float64, without a
break, with one compilation for all batches. Batches have empty graphs, graphs of one node, and one graph alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax, to_dense_adj, to_dense_batch

import graphweave
from graphweave.runtime import segment_attention as native
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

HEADS, HEAD = 2, 3
WIDTH = HEADS * HEAD
BATCHES = ((3, 5, 2), (4, 1), (2, 0, 3, 6), (5,))
"""Nodes of each graph."""


def heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, HEAD))


class Grit(nn.Module):
    """Attention over all pairs of a graph, whose features take part and change (Ma et al., "Graph Inductive Biases in
    Transformers without Message Passing", ICML 2023, equations 3 to 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(WIDTH, 3 * WIDTH)
        self.scale, self.shift, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.score, self.value = nn.Parameter(torch.randn(HEADS, HEAD)), nn.Parameter(torch.randn(HEADS, HEAD, HEAD))

    def forward(self, x: Tensor, pairs: Tensor, e: Tensor, edges: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = map(heads, self.rows(x).chunk(3, -1))
        src, dst = pairs
        hat = (q[dst] + k[src]) * heads(self.scale(e))
        hat = torch.sqrt(torch.relu(hat)) - torch.sqrt(torch.relu(-hat))
        hat = torch.relu(hat + heads(self.shift(e)))
        weights = softmax((hat * self.score).sum(-1), dst, num_nodes=x.size(0)).unsqueeze(-1)
        out = scatter(weights * v[src], dst, dim_size=x.size(0))
        out = out + torch.einsum("nhd,hdc->nhc", scatter(weights * hat, dst, dim_size=x.size(0)), self.value)
        return x + out.flatten(1), e + self.last(hat.flatten(1))


class Exphormer(nn.Module):
    """Attention over the edges of a sparse graph with features (Shirzad et al., "Exphormer: Sparse Transformers for
    Graphs", ICML 2023, section 3.1): scores are products of queries, keys and edges, and clamped."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.of_edges = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, pairs: Tensor, e: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        q, k, v = map(heads, self.rows(x).chunk(3, -1))
        src, dst = pairs
        scores = (k[src] * q[dst] / HEAD**0.5 * heads(self.of_edges(e))).sum(-1, keepdim=True)
        weights = scores.clamp(-5, 5).exp()
        total = scatter(weights, dst, dim_size=x.size(0))
        return (scatter(v[src] * weights, dst, dim_size=x.size(0)) / (total + 1e-6)).flatten(1)


class San(nn.Module):
    """Attention over real edges and over all other pairs, each with its own weights (Kreuzer et al., "Rethinking Graph
    Transformers with Spectral Attention", NeurIPS 2021, equations 9 to 11)."""

    def __init__(self) -> None:
        super().__init__()
        self.real, self.others, self.value = (nn.Linear(WIDTH, n * WIDTH) for n in (3, 3, 1))
        self.gamma = 0.4

    def forward(self, x: Tensor, pairs: Tensor, e: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        parts = ((self.real, edges, 1 / (1 + self.gamma)), (self.others, pairs, self.gamma / (1 + self.gamma)))
        v, out = heads(self.value(x)), 0
        for layer, (src, dst), share in parts:
            q, k, b = map(heads, layer(x).chunk(3, -1))
            weights = softmax((q[dst] * k[src] + b[src]).sum(-1) / HEAD**0.5, dst, num_nodes=x.size(0))
            out = out + share * scatter(weights.unsqueeze(-1) * v[src], dst, dim_size=x.size(0))
        return out.flatten(1)


class Graphormer(nn.Module):
    """Layers of a transformer whose scores are shifted by distances, which choose rows of a table, and by edges (Ying
    et al., "Do Transformers Really Perform Badly for Graph Representation?", NeurIPS 2021, section 3.1)."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.of_distance, self.of_edges = nn.Embedding(4, HEADS, padding_idx=0), nn.Linear(WIDTH, HEADS)
        self.rows, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.dropout = dropout

    def forward(self, x: Tensor, pairs: Tensor, e: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        dense, mask = to_dense_batch(x, batch)
        place = torch.arange(dense.size(1))
        distance = (place[:, None] - place).abs().clamp(max=3).expand(dense.size(0), -1, -1)
        of_edges = to_dense_adj(edges, batch, self.of_edges(x[edges[0]] - x[edges[1]]))
        bias = (self.of_distance(distance) + of_edges).permute(0, 3, 1, 2)
        bias = bias.masked_fill(~mask[:, None, None], float("-inf"))
        for _ in range(2):
            q, k, v = (heads(t).transpose(1, 2) for t in self.rows(self.norm(dense)).chunk(3, -1))
            out = F.scaled_dot_product_attention(q, k, v, bias, dropout_p=self.dropout * self.training)
            dense = dense + out.transpose(1, 2).flatten(2)
            dense = dense + self.network(self.norm(dense))
        return dense[mask]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "grit": Grit, "exphormer": Exphormer, "san": San, "graphormer": Graphormer,
}  # fmt: skip


def inputs(sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Rows, all pairs of each graph with features, edges, and the graph of each row."""
    random = torch.Generator().manual_seed(sum(sizes))
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    pairs = (batch[:, None] == batch).nonzero().T.contiguous()
    edges = pairs[:, torch.rand(pairs.shape[1], generator=random) < 0.4]
    x, e = (torch.randn(n, WIDTH, dtype=torch.float64, generator=random) for n in (len(batch), pairs.shape[1]))
    return x.requires_grad_(), pairs, e.requires_grad_(), edges, batch


def step(model: Any, args: tuple[Tensor, ...]) -> list[Tensor]:
    """The results, and the gradients of all parameters and inputs."""
    out = model(*args)
    outs = out if isinstance(out, tuple) else (out,)
    total = sum((o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o)).sum() for o in outs)
    grads = torch.autograd.grad(total, [args[0], args[2], *model.parameters()], allow_unused=True)
    return [*outs, *(g for g in grads if g is not None)]


@pytest.mark.parametrize("door", by_default(["compile", "backend"], "compile"))
@pytest.mark.parametrize("name", by_default(MODELS, "exphormer"))
def test_attention_of_graph_transformers(name: str, door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, run = [], native._run
    monkeypatch.setattr(native, "_run", lambda *args, backward: (calls.append(backward), run(*args, backward=backward)))
    torch.manual_seed(0)
    model = MODELS[name]().double()
    own = copy.deepcopy(model)
    compiled = graphweave.compile(own) if door == "compile" else torch.compile(own, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for sizes in BATCHES:
        args = inputs(sizes)
        torch.testing.assert_close(step(compiled, args), step(model, args))
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0
    assert counted["compilations"] <= 2
    of_batch = 2 if name == "graphormer" else 0  # layers
    assert calls.count(False) == calls.count(True) >= of_batch * (len(BATCHES) - 1), "all pairs are stored"
