"""Attention over the dense form of a batch of graphs is computed on the rows of each graph: the rewrite of Dynamo's
graph, which runs as PyTorch runs it here, against eager mode. `test_dense_models.py` compiles such layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_geometric.nn as pyg
from torch import Tensor, fx, nn
from torch_geometric.nn.aggr import GraphMultisetTransformer
from torch_geometric.utils import to_dense_adj, to_dense_batch

import graphweave
from graphweave.frontends.calls.dynamo_calls import call_name
from graphweave.frontends.dynamo import backend
from graphweave.frontends.spellings.segment_attention import attention_by_segments
from graphweave.frontends.spellings.spelled_attention import join_attention
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WIDTH = 6
BATCHES = ((3, 5, 2), (4, 1), (1, 1, 1), (5,), (2, 0, 3))
"""Nodes of each graph."""


class Layer(nn.Module):
    """Some function of the dense form of a batch, with weights of its own."""

    def __init__(self, function: Callable[..., Tensor], **options: Any) -> None:
        super().__init__()
        self.function, self.options = function, options
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.linear, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        dense, mask = to_dense_batch(x, batch, **self.options)
        return self.function(self, dense, mask)

    def attend(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.attention(x, y, y, key_padding_mask=~mask, need_weights=False)[0]
        return out


def spelled_out(layer: Layer, x: Tensor, mask: Tensor, **options: Any) -> Tensor:
    """Attention of three heads, as users write it around PyTorch's function."""
    q, k, v = (t.unflatten(-1, (3, 2)).transpose(1, 2) for t in layer.linear(x).chunk(3, -1))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], **options)
    return out.transpose(1, 2).flatten(2)


def encoder(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """A whole layer of a transformer on padded rows."""
    x = layer.norm(x + layer.attend(x, x, mask))
    hidden = F.gelu(layer.linear(x).masked_fill(~mask.unsqueeze(-1), 0))
    return layer.norm(x + 0.5 * hidden.chunk(3, dim=-1)[1])[mask]


class Set(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pool = GraphMultisetTransformer(WIDTH, k=2, heads=2)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.pool(x, batch)


class Gps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(pyg.GPSConv(WIDTH, None, heads=2, norm="layer_norm") for _ in range(2))

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, None, batch)
        return x


def written_later(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """The rows that were chosen are written to, but not what they were chosen from."""
    out = layer.attend(x, x, mask)
    rows = out[mask]
    rows += 1
    return rows * out[mask]


def input_written(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """A tensor is written to between its padding and the attention, which must not see it."""
    rows = x[mask] * 2
    dense, again = to_dense_batch(rows, mask.nonzero()[:, 0], batch_size=mask.size(0))
    rows.mul_(3)
    return layer.attend(dense, dense, again)[again] + rows


REWRITTEN: dict[str, Callable[[], nn.Module]] = {
    "multihead": lambda: Layer(lambda m, x, mask: m.attend(x, x, mask)[mask]),
    "other queries": lambda: Layer(lambda m, x, mask: m.attend(torch.tanh(x) * 2, x, mask)[mask]),
    "spelled out": lambda: Layer(lambda m, x, mask: spelled_out(m, x, mask)[mask]),
    "scaled": lambda: Layer(lambda m, x, mask: spelled_out(m, x, mask, scale=0.3)[mask]),
    "encoder": lambda: Layer(encoder),
    "written later": lambda: Layer(written_later),
    "input is written": lambda: Layer(input_written),
    "known graphs": lambda: Layer(lambda m, x, mask: m.attend(x, x, mask)[mask], batch_size=5),
    "most places": lambda: Layer(lambda m, x, mask: m.attend(x, x, mask)[mask], max_num_nodes=4),
    "gps": Gps,
    "gmt": Set,
    "causal": lambda: Layer(lambda m, x, mask: spelled_out_causal(m, x)[mask]),
    "a bias": lambda: Layer(lambda m, x, mask: shifted(m, x, similar(x), mask[:, None, None])[mask]),
    "a large number": lambda: Layer(lambda m, x, mask: shifted(m, x, similar(x), mask[:, None, None], -1e9)[mask]),
    "a mask of pairs": lambda: Layer(lambda m, x, mask: masked_by_pairs(m, x, mask)[mask]),
    "a mask of heads": lambda: Layer(lambda m, x, mask: masked_by_heads(m, x, mask)[mask]),
    "codes and edges": lambda: Graphormer(),
    "edges of one number": lambda: Graphormer(weighted=True),
}
SPELLED: dict[str, Callable[[], nn.Module]] = {
    "weights are not read": lambda: Layer(lambda m, x, mask: m.attention(x, x, x, ~mask)[0][mask]),
    "by hand": lambda: Layer(lambda m, x, mask: by_hand(m, x, mask[:, None, None])[mask]),
    "by hand, with a bias": lambda: Layer(lambda m, x, mask: by_hand(m, x, mask[:, None, None], similar(x))[mask]),
    "by hand, pairs": lambda: Layer(lambda m, x, mask: by_hand(m, x, pairs_of(x, mask))[mask]),
    "by hand, pairs that are hidden": lambda: Layer(
        lambda m, x, mask: by_hand(m, x, ~(~pairs_of(x, mask) | (similar(x) > 0.9)))[mask]
    ),
    "by einsum": lambda: Layer(lambda m, x, mask: by_einsum(m, x, mask)[mask]),
}
KEPT: dict[str, Callable[[], nn.Module]] = {
    "seeds": lambda: Layer(lambda m, x, mask: m.attention(seeds(x), x, x, ~mask)[0]),
    "weights are read": lambda: Layer(lambda m, x, mask: weighted(m, x, mask)[mask]),
    "large numbers for pairs": lambda: Layer(lambda m, x, mask: by_hand(m, x, pairs_of(x, mask), fill=-1e9)[mask]),
    "padding is read": lambda: Layer(lambda m, x, mask: m.attend(x, x, mask).sum(1)),
    "padding is read, too": lambda: Layer(lambda m, x, mask: m.attend(x, x, mask)[mask] + m.attend(x, x, mask).sum()),
    "nothing is masked": lambda: Layer(lambda m, x, mask: m.attention(x, x, x, need_weights=False)[0][mask]),
    "a bias of padding": lambda: Layer(lambda m, x, mask: shifted(m, x, similar(x), None)[mask]),
    "keys of padding": lambda: Layer(lambda m, x, mask: shifted(m, x, similar(x), mask[:, None, :, None])[mask]),
    "a transposed bias": lambda: Layer(lambda m, x, mask: shifted(m, x, transposed(x, mask), None)[mask]),
    "noise is read twice": lambda: Layer(lambda m, x, mask: noisy(m, x, mask)),
    "rows are mixed": lambda: Layer(lambda m, x, mask: m.attend(x, x.cumsum(1), mask)[mask]),
    "written in place": lambda: Layer(lambda m, x, mask: F.relu(m.attend(x, x, mask), inplace=True)[mask]),
    "padding is written": lambda: Layer(lambda m, x, mask: written(m, x, mask)),
}


def seeds(x: Tensor) -> Tensor:
    """Two queries for each graph."""
    return torch.linspace(-1, 1, 2 * WIDTH, dtype=x.dtype).view(1, 2, WIDTH).expand(x.size(0), -1, -1)


def by_hand(layer: Layer, x: Tensor, shown: Tensor, bias: Tensor | float = 0.0, fill: float = -torch.inf) -> Tensor:
    """Attention of three heads by products of matrices."""
    q, k, v = (t.unflatten(-1, (3, 2)).transpose(1, 2) for t in layer.linear(x).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / 2**0.5
    scores = scores if isinstance(bias, float) else scores + bias
    weights = scores.masked_fill(~shown, fill).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def pairs_of(x: Tensor, mask: Tensor) -> Tensor:
    """Pairs of real rows that are like each other. Each row is among its own."""
    return ((x @ x.transpose(1, 2)) > -0.5)[:, None] & mask[:, None, None]


def by_einsum(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    q, k, v = (t.unflatten(-1, (3, 2)) for t in layer.linear(x).chunk(3, -1))
    scores = torch.einsum("bnhd,bmhd->bhnm", q, k)
    weights = torch.where(mask[:, None, None], scores, -torch.inf).softmax(-1)
    return torch.einsum("bhnm,bmhd->bnhd", weights, v).flatten(2)


def weighted(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    out, weights = layer.attention(x, x, x, ~mask)
    return out * weights.sum((1, 2))[:, None, None]


def spelled_out_causal(layer: Layer, x: Tensor) -> Tensor:
    q, k, v = layer.linear(x).unsqueeze(1).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)


def similar(x: Tensor) -> Tensor:
    """A number for each pair of places."""
    return (x @ x.transpose(1, 2)).tanh().unsqueeze(1)


def transposed(x: Tensor, mask: Tensor) -> Tensor:
    """A bias that hides queries, not keys."""
    return similar(x).masked_fill(~mask[:, None, None], -1e9).transpose(2, 3)


def shifted(layer: Layer, x: Tensor, bias: Tensor, mask: Tensor | None, fill: float = -torch.inf) -> Tensor:
    bias = bias if mask is None else bias.masked_fill(~mask, fill)
    q, k, v = layer.linear(x).unsqueeze(1).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).squeeze(1)


def masked_by_pairs(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """Real rows attend rows that are like them."""
    pairs = (similar(x) > 0) & mask[:, None, None] & mask[:, None, :, None]
    q, k, v = layer.linear(x).unsqueeze(1).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=pairs).squeeze(1)


def masked_by_heads(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """`attn_mask` of PyTorch's module next to its mask of padding, with a number for each head."""
    bias = torch.cat([similar(x), 2 * similar(x)], 1).flatten(0, 1)
    hidden = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -torch.inf)
    out: Tensor = layer.attention(x, x, x, key_padding_mask=hidden, attn_mask=bias, need_weights=False)[0]
    return out


class Graphormer(nn.Module):
    """Attention whose scores are shifted by the distance of two nodes and by the features of their edges (Ying et al.,
    "Do Transformers Really Perform Badly for Graph Representation?", 2021, section 3.1)."""

    def __init__(self, *, weighted: bool = False) -> None:
        super().__init__()
        self.weighted = weighted
        self.linear, self.of_edges = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 1 if weighted else 3)
        self.of_distance = nn.Embedding(4, 3, padding_idx=0)

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        after = (batch[:-1] == batch[1:]).nonzero()[:, 0]
        edges = torch.cat([torch.stack([after, after + 1]), torch.stack([after, after])], 1)
        dense, mask = to_dense_batch(x, batch)
        place = torch.arange(dense.size(1))
        distance = (place[:, None] - place).abs().clamp(max=3).expand(dense.size(0), -1, -1)
        numbers = self.of_edges(x[edges[0]] * x[edges[1]])
        if self.weighted:
            bias = to_dense_adj(edges, batch, numbers[:, 0]).unsqueeze(1)
        else:
            bias = (self.of_distance(distance) + to_dense_adj(edges, batch, numbers)).permute(0, 3, 1, 2)
        bias = bias.masked_fill(~mask[:, None, None], -torch.inf)
        q, k, v = (t.unflatten(-1, (3, 2)).transpose(1, 2) for t in self.linear(dense).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)[mask]


def noisy(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    """Numbers that are drawn once for rows and their padding, all of which are dropped."""
    x = F.dropout(x, 1.0)
    return layer.attend(x, x, mask)[mask] + x.sum()


def written(layer: Layer, x: Tensor, mask: Tensor) -> Tensor:
    out = layer.attend(x, x, mask)
    out[:, 0] = 0
    return out[mask]


@pytest.fixture
def graphs() -> list[fx.GraphModule]:
    """The graphs that Dynamo hands over, once they are rewritten."""
    return []


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch, graphs: list[fx.GraphModule]) -> list[bool]:
    """For each graph that Dynamo hands over, whether it was rewritten. It then runs as it is, call by call."""
    found: list[bool] = []

    def made(asked: Any, module: fx.GraphModule, *others: Any) -> Callable[..., Any]:
        join_attention(module)
        found.append(bool(attention_by_segments(module)))
        graphs.append(module)
        module.graph.lint()
        return module.forward

    monkeypatch.setattr(backend, "_compile", made)
    monkeypatch.setattr(backend, "slot", lambda *args: None)
    return found


def batch_of(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    random = torch.Generator().manual_seed(len(batch))
    return torch.randn(len(batch), WIDTH, dtype=torch.float64, generator=random).requires_grad_(), batch


def results(model: nn.Module, x: Tensor, batch: Tensor) -> list[Tensor]:
    out = model(x, batch)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    grads = torch.autograd.grad(out, [x, *model.parameters()], weight, allow_unused=True)
    return [out, *(torch.zeros(()) if g is None else g for g in grads)]


def check(model: nn.Module, *, with_nan: bool = True) -> None:
    """Without NaN, gradients are those of real rows, where eager mode's are NaN: so is a softmax over the padding of a
    graph without rows."""
    model, compiled = model.double(), graphweave.compile(model.double())
    for sizes in BATCHES:
        x, batch = batch_of(sizes)
        got, want = results(compiled, x, batch), results(model, x, batch)
        if 0 in sizes and not with_nan:
            assert want[0].isnan().any() or not any(g.isnan().any() for g in got)
            got, want = got[:1], want[:1]
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("name", by_default(REWRITTEN, "spelled out", "encoder", "gmt", "a mask of pairs"))
def test_attention_is_computed_on_rows(name: str, rewrites: list[bool]) -> None:
    torch.manual_seed(0)
    check(REWRITTEN[name]())
    assert rewrites[0]


@pytest.mark.parametrize("name", by_default(SPELLED, "weights are not read"))
def test_attention_by_hand_is_computed_on_rows(name: str, rewrites: list[bool]) -> None:
    torch.manual_seed(0)
    check(SPELLED[name](), with_nan=False)
    assert rewrites[0]


@pytest.mark.parametrize("name", by_default(KEPT, "padding is read", "keys of padding", "written in place"))
def test_what_reads_or_mixes_padding_stays(name: str, rewrites: list[bool]) -> None:
    torch.manual_seed(0)
    check(KEPT[name]())
    assert not any(rewrites)


def test_terms_without_a_matrix_of_pairs(rewrites: list[bool], graphs: list[fx.GraphModule]) -> None:
    """A lookup by codes and numbers of edges stay what they are, and the dense tensors of both are not made."""
    compiled = graphweave.compile(Graphormer().double())
    compiled(*batch_of(BATCHES[0]))
    (call,) = graphs[0].graph.find_nodes(op="call_function", target=torch.ops.graphweave.segment_attention.default)
    assert [term is not None for term in call.args[6:12]] == [False, True, True, True, True, False]
    graphs[0].graph.eliminate_dead_code()
    assert not {"embedding", "graphweave.dense_edges"}.intersection(map(call_name, graphs[0].graph.nodes))


def test_dropout_is_drawn_for_rows(rewrites: list[bool], graphs: list[fx.GraphModule]) -> None:
    """Nothing is drawn for the padding, neither for pairs nor for rows."""
    torch.manual_seed(0)
    model = Layer(lambda m, x, mask: m.attend(F.dropout(x, 0.5, m.training), x, mask)[mask]).double()
    model.attention.dropout = 0.5
    compiled, (x, batch) = graphweave.compile(model), batch_of(BATCHES[0])
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(results(compiled, x, batch))
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0)
    assert not torch.equal(outs[0][0], outs[2][0])
    drawn = [n for n in graphs[0].graph.nodes if call_name(n) == "dropout"]
    assert [n.meta.get("example_value") for n in drawn] == [None], "the padded tensor is drawn for, too"
    model.eval()
    torch.testing.assert_close(compiled(x, batch), model(x, batch))
    assert rewrites == [True, True]


def test_autocast_stays(rewrites: list[bool]) -> None:
    model = Layer(lambda m, x, mask: m.attend(x, x, mask)[mask])
    compiled, (x, batch) = graphweave.compile(model), batch_of(BATCHES[0])
    with torch.autocast("cpu", torch.bfloat16):
        compiled(x.float(), batch)
    assert rewrites == [False]
