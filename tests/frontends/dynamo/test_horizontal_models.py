"""Models written as loops over relations: compiled equals eager, in a number of kernels that relations do not raise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
import graphweave.function as fn
from graphweave.core.errors import IndexRangeError
from graphweave.graph.build import heterograph
from graphweave.graph.graph import Graph
from tests.support import by_default, features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:There exist node types:UserWarning"),  # a loop over relations on purpose
]

Key = tuple[str, str, str]
W = 8
SIZES = {"author": 7, "paper": 11, "field": 4}


def relations(count: int, types: tuple[str, ...] = tuple(SIZES), empty: int = 1) -> dict[Key, Tensor]:
    """`count` relations among all pairs of types in turn; one has no edges, nobody sends to the last type."""
    out = {}
    for r in range(count):
        src, dst = types[r % len(types)], types[(r // len(types)) % max(len(types) - 1, 1)]
        out[src, f"r{r}", dst] = random_graph(SIZES[src], SIZES[dst], 0 if r == empty else 9 + r, seed=r)
    return out


def nodes(width: int = W) -> dict[str, Tensor]:
    return {t: features(n, width, torch.float64, seed=i) for i, (t, n) in enumerate(SIZES.items())}


class TwoLayers(nn.Module):
    """Hidden values of every type that something sends to, then another layer among those."""

    def __init__(self, keys: list[Key], first: Callable[[], nn.Module], last: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first = pyg.HeteroConv({k: first() for k in keys}, aggr="sum")
        reached = {dst for _, _, dst in keys}
        self.last = pyg.HeteroConv({k: last() for k in keys if k[0] in reached}, aggr="mean")
        self.keys = [k for k in keys if k[0] in reached]

    def forward(self, x: dict[str, Tensor], edges: dict[Key, Tensor]) -> dict[str, Tensor]:
        h = {t: v.relu() for t, v in self.first(x, edges).items()}
        return self.last(h, {k: edges[k] for k in self.keys})


class MaskLoop(nn.Module):
    """Relations as types of edges, each with its weight, picked by masks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(features(W, 5, torch.float64, seed=r)) for r in range(count)])

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out = x[:, :5]
        for r, w in enumerate(self.weights):
            src, dst = edge_index[:, edge_type == r]
            out = out + (torch.zeros_like(x).index_add(0, dst, x[src]) @ w).relu()
        return out


def typed_edges(count: int) -> tuple[Tensor, Tensor, Tensor]:
    edge_type = torch.randint(count, (70,), generator=torch.Generator().manual_seed(1))
    edge_type[edge_type == 1] = 0  # a relation without edges
    return features(15, W, torch.float64), random_graph(15, 15, 70), edge_type


def hetero(conv: Callable[[], nn.Module], count: int = 5, aggr: str = "sum") -> tuple[nn.Module, tuple[Any, ...]]:
    edges = relations(count)
    return pyg.HeteroConv({k: conv() for k in edges}, aggr=aggr).double(), (nodes(), edges)


def two_layers(first: Callable[[], nn.Module], last: Callable[[], nn.Module]) -> tuple[nn.Module, tuple[Any, ...]]:
    edges = relations(6)
    return TwoLayers(list(edges), first, last).double(), (nodes(), edges)


def gat(width: int, out: int, heads: int = 1) -> nn.Module:
    return pyg.GATConv((width, width), out, heads=heads, add_self_loops=False)


def hgt() -> tuple[nn.Module, tuple[Any, ...]]:
    edges = relations(5, empty=-1)  # PyTorch cannot trace the copy that HGTConv makes of an index without edges
    return pyg.HGTConv(W, 6, (list(SIZES), list(edges)), heads=2).double(), (nodes(), edges)


class MultiUpdate(nn.Module):
    """A layer in DGL's style: each relation sends a field of its own, and sums are added across relations."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.weights = nn.ModuleDict({etype: nn.Linear(W, 5) for etype in graph.etypes})
        self.graph = graph

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        graph, functions = self.graph.local_var(), {}
        for src, etype, _ in graph.canonical_etypes:
            graph.nodes[src].data[f"h_{etype}"] = self.weights[etype](x[src])
            functions[etype] = (fn.copy_u(f"h_{etype}", "m"), fn.mean("m", "h"))
        graph.multi_update_all(functions, "sum")
        return {t: graph.nodes[t].data["h"].relu() for t in ("author", "paper")}


def multi_update() -> tuple[nn.Module, tuple[Any, ...]]:
    graph = heterograph({k: (e[0], e[1]) for k, e in relations(5).items()}, SIZES)
    return MultiUpdate(graph).double(), (nodes(),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "sage": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5)),
    "rgcn": lambda: (pyg.RGCNConv(W, 5, 4).double(), typed_edges(4)),
    "masks": lambda: (MaskLoop(4), typed_edges(4)),
}
MORE: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "gat": lambda: hetero(lambda: gat(W, 3, 2)),
    "graph": lambda: hetero(lambda: pyg.GraphConv((W, W), 5)),
    "gatv2": lambda: hetero(lambda: pyg.GATv2Conv((W, W), 3, heads=2, add_self_loops=False)),
    "mean": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5), aggr="mean"),
    "max": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5), aggr="max"),
    "min": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5), aggr="min"),
    "cat": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5), aggr="cat"),
    "max-sage": lambda: hetero(lambda: pyg.SAGEConv((W, W), 5, aggr="max")),
    "two-sage": lambda: two_layers(lambda: pyg.SAGEConv((W, W), 6), lambda: pyg.SAGEConv((6, 6), 4)),
    "two-gat": lambda: two_layers(lambda: gat(W, 3, 2), lambda: gat(6, 4)),
    "rgcn-bases": lambda: (pyg.RGCNConv(W, 5, 4, num_bases=2).double(), typed_edges(4)),
    "rgcn-blocks": lambda: (pyg.RGCNConv(W, 6, 4, num_blocks=2).double(), typed_edges(4)),
    "hgt": hgt,
    "multi-update": multi_update,
    "han": lambda: (pyg.HANConv(W, 6, (list(SIZES), list(relations(5))), heads=2).double(), (nodes(), relations(5))),
}


@pytest.mark.parametrize("name", [*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_loops_over_relations_train_as_in_eager_mode(name: str) -> None:
    torch.manual_seed(0)
    model, args = (MODELS | MORE)[name]()
    for x in _floats(args):
        x.requires_grad_(True)
    want, wanted = _step(model, model, args)
    got, given = _step(graphweave.compile(model, options={"verify": True}), model, args)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b)
    assert graphweave.counters()["eager_fallbacks"] == graphweave.counters()["graph_breaks"] == 0


def test_an_index_out_of_range_is_of_its_relation() -> None:
    """The row of another relation's segment must not be taken for it."""
    model, (x, edges) = hetero(lambda: pyg.GraphConv((W, W), 5), 4)
    compiled = graphweave.compile(model)
    with torch.no_grad():
        compiled(x, edges)
        bad = dict(edges)
        key = next(k for k in edges if k[1] == "r2")
        bad[key] = edges[key].clone()
        bad[key][0, 3] = SIZES[key[0]]
        with pytest.raises(IndexRangeError, match=r"relation 2 of 4: index 4 "):
            compiled(x, bad)
        compiled(x, edges)


class ChosenRows(MaskLoop):
    """Relations of edges, or of nodes, which scores choose at each call: how many remain, no shape says."""

    def __init__(self, count: int, choose: str) -> None:
        super().__init__(count)
        self.choose = choose
        self.score = nn.Parameter(features(count, W, torch.float64, seed=9))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        out = x[:, :5]
        for r, w in enumerate(self.weights):
            src, dst = edge_index[:, edge_type == r]
            score, summed = x @ self.score[r], torch.zeros_like(x)
            if self.choose == "summed":  # the score depends on sums of the same relation
                score = summed.index_add(0, dst, x[src])[:, r]
            if self.choose == "nodes":
                kept = (score > 0).nonzero().view(-1)
                place = torch.full((len(x),), -1).index_put((kept,), torch.arange(len(kept)))
                both = ((place[src] >= 0) & (place[dst] >= 0)).nonzero().view(-1)
                rows = x[kept]
                h = torch.zeros_like(rows).index_add(0, place[dst[both]], rows[place[src[both]]])
                out = out.index_add(0, kept, (h @ w).relu())
            else:
                kept = (score[src] > 0).nonzero().view(-1)
                out = out + (summed.index_add(0, dst[kept], x[src[kept]]) @ w).relu()
        return out


@pytest.mark.parametrize("choose", by_default(("edges", "summed", "nodes"), "nodes"))
def test_relations_whose_rows_data_chooses_are_merged(choose: str) -> None:
    model, (x, edge_index, edge_type) = ChosenRows(5, choose), typed_edges(5)
    compiled = graphweave.compile(model, options={"verify": True})
    for args in ((x, edge_index, edge_type), (-x, edge_index, edge_type), (x.abs(), edge_index[:, :9], edge_type[:9])):
        rows = args[0].clone().requires_grad_(True)
        want, wanted = _step(model, model, (rows, *args[1:]))
        got, given = _step(compiled, model, (rows, *args[1:]))
        for a, b in zip((*got, *given), (*want, *wanted), strict=True):
            torch.testing.assert_close(a, b)
    graph = graphweave.explain(model, x, edge_index, edge_type).graphs[0]
    assert "joinindices" in graph.ir and graph.ir.count("push.sum") < 5
    assert graphweave.counters()["eager_fallbacks"] == graphweave.counters()["graph_breaks"] == 0


@pytest.mark.parametrize("train", by_default((False, True), True))
def test_kernels_do_not_grow_with_relations(train: bool) -> None:
    few, many = (_launches(lambda: pyg.GraphConv((W, W), 5), count, train) for count in (6, 13))
    assert many == few


@pytest.mark.slow
def test_140_relations_take_the_kernels_of_5() -> None:
    few, many = (_launches(lambda: pyg.SAGEConv((W, W), 5), count, False) for count in (5, 140))
    assert many[0] <= few[0] + 1 and many[1] == few[1]


def _launches(conv: Callable[[], nn.Module], count: int, train: bool) -> tuple[int, int]:
    """Kernels and calls of PyTorch in a call on a graph that has been seen."""
    model, args = hetero(conv, count)
    compiled = graphweave.compile(model)
    for _ in range(2):
        before = graphweave.counters()
        if train:
            _step(compiled, model, args)
        else:
            with torch.no_grad():
                compiled(*args)
        after = graphweave.counters()
    return tuple(after[name] - before[name] for name in ("kernel_launches", "fallback_calls"))  # type: ignore[return-value]


def _step(call: Callable[..., Any], model: nn.Module, args: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs, and gradients of all parameters and features; zeros where nothing comes."""
    out = call(*args)
    outs = [v for v in (out.values() if isinstance(out, dict) else [out]) if v is not None]
    loss = sum((v * torch.cos(torch.arange(v.numel(), dtype=v.dtype)).view_as(v)).sum() for v in outs)
    leaves = [p for p in (*model.parameters(), *_floats(args)) if p.requires_grad]
    assert isinstance(loss, Tensor)
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return outs, [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, grads, strict=True)]


def _floats(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for a in args:
        for t in a.values() if isinstance(a, dict) else [a]:
            if t.is_floating_point():
                yield t
