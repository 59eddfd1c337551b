"""Sums over neighbours are as narrow as the narrower side of the weights that they meet, forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.compile import optimise
from graphweave.core.types import Space
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, Input, MapType, MatMul, Program, Pull, Push, Ref, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.passes.moves import Move, narrower
from graphweave.passes.narrow_sites import narrow_sites
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rules import narrow_sums
from tests.captures import capture
from tests.passes.test_rewrites import given_for
from tests.program_support import assert_computes, compiled
from tests.programs.graphs import zoo
from tests.rewrite_support import assert_equal, rewritten
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

MANY = Statistics(((Space("E"), 1_000_000), (Space("V"), 100_000), (Space("W"), 100_000)))

HEAD = """
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
%4: V[{wide}] f64 = input x
%5: unit[{wide}, {out}] f64 = input w
%6: unit[{out}, {wide}] f64 = permute %5 [1, 0]
%7: W[{out}] f64 = input g
%8: E[] f64 = input s
%9: E[1] f64 = reshape %8 [1]
%10: E[] f64 = const 1.0
%11: W[] f64 = push.sum %10, %3
%12: W[1] f64 = reshape %11 [1]
"""

MEAN = (
    HEAD
    + """
%13: E[{wide}] f64 = pull %4, %2
%14: W[{wide}] f64 = push.sum %13, %3
%15: W[{wide}] f64 = div %14, %12
%16: W[{out}] f64 = matmul %15, %5
%17: unit[{wide}, {out}] f64 = gram %15, %7
%18: W[{wide}] f64 = matmul %7, %6
%19: W[{wide}] f64 = div %18, %12
%20: E[{wide}] f64 = pull %19, %3
%21: V[{wide}] f64 = push.sum %20, %2
return %16, %17, %21
"""
)
SUM = (
    HEAD
    + """
%13: E[{wide}] f64 = pull %4, %2
%14: W[{wide}] f64 = push.sum %13, %3
%15: W[{out}] f64 = matmul %14, %5
%16: unit[{wide}, {out}] f64 = gram %14, %7
%17: W[{wide}] f64 = matmul %7, %6
%18: E[{wide}] f64 = pull %17, %3
%19: V[{wide}] f64 = push.sum %18, %2
return %15, %16, %19
"""
)
WEIGHTED = (
    HEAD
    + """
%13: E[{wide}] f64 = pull %4, %2
%14: E[{wide}] f64 = mul %9, %13
%15: W[{wide}] f64 = push.sum %14, %3
%16: W[{out}] f64 = matmul %15, %5
%17: unit[{out}, {wide}] f64 = gram %7, %15
%18: W[{wide}] f64 = matmul %7, %6
%19: E[{wide}] f64 = pull %18, %3
%20: E[{wide}] f64 = mul %19, %9
%21: V[{wide}] f64 = push.sum %20, %2
return %16, %17, %21
"""
)
PRODUCT_FIRST = (
    HEAD
    + """
%13: V[{out}] f64 = matmul %4, %5
%14: E[{out}] f64 = pull %13, %2
%15: E[{out}] f64 = mul %14, %9
%16: W[{out}] f64 = push.sum %15, %3
%17: E[{out}] f64 = pull %7, %3
%18: E[{out}] f64 = mul %17, %9
%19: V[{out}] f64 = push.sum %18, %2
%20: unit[{wide}, {out}] f64 = gram %4, %19
%21: V[{wide}] f64 = matmul %19, %6
return %16, %20, %21
"""
)
FORMS = {"mean": MEAN, "sum": SUM, "weighted": WEIGHTED, "product first": PRODUCT_FIRST}
"""A layer that sums over neighbours, the gradient of its weights, and of its rows, for the gradient g of its result."""


def layer(form: str, wide: int, out: int) -> Program:
    return parse(FORMS[form].format(wide=wide, out=out).replace("\n\n", "\n"))


def widths_on_edges(program: Program) -> Counter[int]:
    """How many values of edges have each number of features."""
    edges = {t.dom for t in program.types if isinstance(t, MapType)} - {
        t.cod for t in program.types if isinstance(t, MapType)
    }
    values = [t for t in program.types if isinstance(t, Type) and t.space in edges and t.dtype.is_float]
    return Counter(numel(t.shape) for t in values)


def taken(done: object) -> bool:
    return any("narrow-sums" in step.rules for step in done.steps if step.taken)  # type: ignore[attr-defined]


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize("out", [1, 16, 32, 48])
@pytest.mark.parametrize("form", ["mean", "sum", "weighted"])
def test_no_edge_has_the_wide_row(form: str, out: int) -> None:
    done = Rewrite()(layer(form, 64, out), PassFacts(statistics=MANY, tangents=frozenset({"g"})))
    assert taken(done)
    assert set(widths_on_edges(done.program)) <= {1, out}


@pytest.mark.parametrize("form", ["mean", "sum", "weighted"])
@pytest.mark.parametrize("out", [64, 65, 256])
def test_what_would_be_as_wide_stays(form: str, out: int) -> None:
    program = layer(form, 64, out)
    done = Rewrite()(program, PassFacts(statistics=MANY, tangents=frozenset({"g"})))
    assert not taken(done) and narrow_sites(Facts(program)) == []
    assert set(widths_on_edges(done.program)) <= {1, 64}


@pytest.mark.parametrize(("wide", "out"), [(16, 64), (64, 16), (64, 64)])
def test_a_product_before_the_sum_leaves_it_if_it_widens(wide: int, out: int) -> None:
    """GCN multiplies first. With more results than inputs its forward is a sum of inputs, its backward one of W' g."""
    done = Rewrite()(layer("product first", wide, out), PassFacts(statistics=MANY, tangents=frozenset({"g"})))
    assert taken(done) == (out > wide)
    assert set(widths_on_edges(done.program)) <= {1, min(wide, out)}


def test_few_edges_do_not_pay() -> None:
    """With one edge in a hundred rows the second product of V rows costs more than the edges save."""
    few = Statistics(((Space("E"), 1_000), (Space("V"), 100_000), (Space("W"), 1_000)))
    done = Rewrite()(layer("mean", 64, 32), PassFacts(statistics=few, tangents=frozenset({"g"})))
    assert not taken(done)
    assert any("narrow-sums" in step.rules and step.seconds < 0 for step in done.steps)


@pytest.mark.parametrize("form", FORMS)
def test_both_gradients_read_one_sum(form: str) -> None:
    program = layer(form, 64, 16) if form != "product first" else layer(form, 16, 64)
    (sites,) = narrow_sites(Facts(program))
    after = rewritten(program, Move((narrow_sums.RULE,), sites))
    assert after is not None
    sums = [r for r, n in enumerate(after.nodes) if isinstance(n, Push) and _width(after, r) == 16]
    assert len(sums) == 2, show(after)
    products = [n for n in after.nodes if isinstance(n, MatMul | Gram)]
    assert len(products) == 3 and [len([n for n in products if r in _behind(after, n)]) for r in sums] != [0, 0]


def _width(program: Program, ref: Ref) -> int:
    t = program.types[ref]
    assert isinstance(t, Type)
    return numel(t.shape)


def _behind(program: Program, node: MatMul | Gram) -> set[Ref]:
    ends = {*operands(node)}
    return ends | {r for e in ends for r in operands(program.nodes[e])}


def test_sums_along_different_maps_are_tried_apart() -> None:
    """Two layers whose sums go along different maps share no decision; all together is the last move."""
    both = """
%13: E[{wide}] f64 = pull %4, %2
%14: W[8] f64 = push.sum %13, %3
%15: W[4] f64 = matmul %14, %5
%16: E[] i64 = input other
%17: E -> W = map %16 to W
%18: W[8] f64 = push.sum %13, %17
%19: unit[8, 2] f64 = input v
%20: W[2] f64 = matmul %18, %19
return %15, %20
"""
    program = parse((HEAD + both).format(wide=8, out=4).replace("\n\n", "\n"))
    moves = list(narrower(Facts(program), frozenset()))
    assert [move.sites for move in moves] == [(15,), (20,), (15, 20)]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("widths", by_default([(4, 3), (4, 1), (3, 4)], (4, 3), (3, 4)))
@pytest.mark.parametrize("form", FORMS)
def test_values_stay(form: str, widths: tuple[int, int]) -> None:
    """On awkward graphs, by the interpreter and by kernels. A mean of no rows is 0 / 0."""
    wide, out = widths
    program = layer(form, wide, out)
    sites = tuple(r for group in narrow_sites(Facts(program)) for r in group)
    after = rewritten(program, Move((narrow_sums.RULE,), sites)) if sites else None
    assert (after is None) == ((out >= wide) if form != "product first" else (out <= wide))
    if after is not None:
        for number, graph in enumerate(zoo(3)):
            assert_equal(program, {graph.name: after}, given_for(program, graph, number))
        assert_computes(compiled(after), after, zoo(3)[::3], given_for)


class Net(nn.Module):
    """Two layers with a ReLU between them."""

    def __init__(self, make: Callable[[int, int], nn.Module], *widths: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor, *graph: Tensor) -> Tensor:
        first, second = self.layers
        return second(first(x, *graph).relu(), *graph)


class ColumnMean(nn.Module):
    """W sum_u h_u / outdegree(u), without a guard: 1 / 0 stands in rows that no edge reads."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.lin = nn.Linear(wide, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        degree = torch.zeros_like(x[:, 0]).index_add(0, src, torch.ones_like(src, dtype=x.dtype))
        scaled = x / degree[:, None]
        return self.lin(torch.zeros_like(x).index_add(0, dst, scaled[src]))


def _gin(a: int, b: int) -> nn.Module:
    return pyg.GINConv(nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b)), train_eps=True)


def _sum(a: int, b: int) -> nn.Module:
    return pyg.SAGEConv(a, b, aggr="sum")


NETS: dict[str, tuple[Callable[[int, int], nn.Module], bool]] = {
    "mean": (pyg.SAGEConv, False),
    "sum": (_sum, False),
    "edge weights": (pyg.GraphConv, True),
    "gin": (_gin, False),
    "several hops": (lambda a, b: pyg.SGConv(a, b, K=2), False),
}
AWKWARD = ("no_edges", "isolated", "hub_src", "duplicates")


@pytest.mark.parametrize("name", by_default(NETS, "mean"))
def test_compiled_equals_eager(name: str) -> None:
    """Results and all gradients, on a graph that decides the form, then on awkward ones in the same form."""
    torch.manual_seed(0)
    make, weighted = NETS[name]
    net = Net(make, 12, 12, 5).double()
    x, edges = features(200, 12, torch.float64).requires_grad_(), random_graph(200, 200, 4000)
    more = (features(4000, 1, torch.float64, seed=4)[:, 0],) if weighted else ()
    assert "taken: narrow-sums" in str(graphweave.explain(net, x, edges, *more, detail="costs"))
    made = graphweave.compile(net)
    assert_matches(made, net, x, edges, *more, module=net)
    for number, graph in enumerate(g for g in zoo(4) if g.name in AWKWARD):
        x = features(graph.num_src, 12, torch.float64, seed=number).requires_grad_()
        more = (features(max(len(graph.src), 1), 1, torch.float64, seed=5)[: len(graph.src), 0],) if weighted else ()
        assert_matches(made, net, x, torch.stack([graph.src, graph.dst]), *more, module=net, label=graph.name)


def test_rows_that_nobody_reads_may_be_infinite() -> None:
    torch.manual_seed(0)
    module = ColumnMean(12, 3).double()
    edges = random_graph(150, 150, 4000)
    edges = edges[:, edges[0] > 9]  # nodes without outgoing edges: x / 0
    x = features(150, 12, torch.float64)
    assert "taken: narrow-sums" in str(graphweave.explain(module, x, edges, detail="costs"))
    assert_matches(graphweave.compile(module), module, x, edges, module=module)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in module.parameters())


# ---------------------------------------------------------------- two layers of SAGE


def test_the_second_layer_of_sage_is_narrow_in_both_directions() -> None:
    torch.manual_seed(0)
    net = Net(pyg.SAGEConv, 64, 64, 32)
    program = capture(net, features(300, 64).requires_grad_(), random_graph(300, 300, 6000))[0].imported.program
    edges, nodes = (next(s for s, _ in program.spaces if s.name.startswith(c)) for c in "EV")
    many = Statistics(((edges, 1_000_000), (nodes, 50_000)))
    after = optimise(program, PassFacts(statistics=many, tangents=frozenset({"tangents_1"}))).program
    assert widths_on_edges(program)[64] == 4 and widths_on_edges(program)[32] == 0
    pulls = Counter(_width(after, r) for r, n in enumerate(after.nodes) if isinstance(n, Pull) and _width(after, r) > 1)
    assert pulls == {64: 2, 32: 2}  # of the first layer, and of the second, each forward and backward
    facts = Facts(after)
    tangents = (r for r, n in enumerate(after.nodes) if isinstance(n, Input) and n.name == "tangents_1")
    late = facts.flow.depending(frozenset(tangents))
    pushes = [r for r, n in enumerate(after.nodes) if isinstance(n, Push) and r in late and _width(after, r) == 32]
    (summed,) = (r for r in pushes if isinstance(t := after.types[r], Type) and t.space == nodes)
    live = ancestors(after, [r for r in after.outputs if r is not None])
    readers = sorted(type(after.nodes[r]).__name__ for r in facts.flow.users[summed] if r in live)
    assert readers == [
        "AddMatMul",
        "Gram",
    ]  # of the rows (beside lin_r's), of the weights
