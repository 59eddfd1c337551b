"""Matrix products on edges: computed in tiles inside kernels, with nothing of edges x features stored."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.utils import softmax

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.analysis.tiles import MAX_PRODUCTS
from graphweave.compiler.compile import optimise
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.options import Options
from graphweave.core.sizes import Symbol
from graphweave.core.types import DType
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, MatMul, Program, Type
from graphweave.ir.message.parse import parse
from graphweave.lower.schedule import Region, TorchCall
from graphweave.passes.partition import split
from graphweave.passes.pass_facts import PassFacts
from tests.lower.test_lower import TINY, check_kernel
from tests.program_support import assert_computes, compiled, names_at
from tests.programs import random_programs as moves
from tests.programs.random_programs import E, Growing, V, inputs
from tests.support import (
    AWKWARD,
    SEVERAL,
    Graph,
    assert_as_exact_as_eager,
    assert_matches,
    by_default,
    features,
    several_or_all,
)

# ---------------------------------------------------------------- models

WIDTHS = (1, 31, 33, 64)


def mlp(*widths: int) -> nn.Sequential:
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


class Gate(pyg.MessagePassing):
    """CFConv and its like: messages weighed by a network of numbers that belong to the edges' ends."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="sum")
        self.filter = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        return x_j * self.filter((x_i - x_j).abs()).sigmoid()


class Scored(pyg.MessagePassing):
    """Softmax over scores that a network gives: several passes, each of which needs them."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="sum")
        self.score = mlp(width, width, 1)
        self.score[-1].bias = None  # before a softmax its gradient is 0, but float32 terms do not cancel to exactly 0

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.propagate(edge_index, x=x)

    def message(self, x_i: Tensor, x_j: Tensor, index: Tensor, size_i: int | None) -> Tensor:
        return softmax(self.score(x_i * x_j), index, num_nodes=size_i) * x_j


class Plain(nn.Module):
    """A layer without PyG: the scatter max of a linear map of a product, which no rule can move to the nodes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        message = ((x[src] * x[dst]) @ self.weight).relu()
        index = dst[:, None].expand_as(message)
        return torch.zeros_like(x).scatter_reduce(0, index, message, "amax", include_self=False)


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "edgeconv-max": lambda width: pyg.EdgeConv(mlp(2 * width, width, width)),
    "edgeconv-sum": lambda width: pyg.EdgeConv(mlp(2 * width, width, width), aggr="sum"),
    "edgeconv-mean": lambda width: pyg.EdgeConv(mlp(2 * width, 16, width), aggr="mean"),
    "three-layers": lambda width: pyg.EdgeConv(mlp(2 * width, 20, 5, width)),
    "gate": Gate,
    "scored": Scored,
    "plain": Plain,
}


def on_awkward_graphs(name: str, width: int, dtype: torch.dtype, graphs: tuple[Graph, ...] = AWKWARD) -> None:
    torch.manual_seed(0)
    layer = MODELS[name](width).to(dtype)
    fast = graphweave.compile(layer)
    for graph in graphs:
        x = features(graph.num_nodes, width, dtype)
        if dtype is torch.float32 and name == "scored" and width == 1:
            # The one hidden unit is active on every edge of a row, so the softmax cancels its bias, whose gradient is
            # exactly 0, and 4e-8 to 7e-8 in float32, in eager mode as well as compiled.
            assert_as_exact_as_eager(fast, layer, x, graph.edge_index, label=graph.name)
        else:
            assert_matches(fast, layer, x, graph.edge_index, module=layer, label=graph.name)
    counters = graphweave.counters()
    assert counters["kernel_launches"] > 0 and counters["eager_fallbacks"] == 0


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", by_default(MODELS, "edgeconv-mean", "gate"))
def test_on_awkward_graphs(name: str) -> None:
    on_awkward_graphs(name, 33, torch.float64)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize(("name", "width"), [("edgeconv-max", 64), ("plain", 1)])
def test_float32(name: str, width: int) -> None:
    on_awkward_graphs(name, width, torch.float32, SEVERAL)


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MODELS)
def test_every_width(name: str, width: int, dtype: torch.dtype) -> None:
    on_awkward_graphs(name, width, dtype)


ATTRIBUTED: dict[str, Callable[[], nn.Module]] = {
    "gine": lambda: pyg.GINEConv(mlp(8, 8), edge_dim=5),
    "gat": lambda: pyg.GATConv(8, 4, heads=2, edge_dim=5, add_self_loops=False),
    "transformer": lambda: pyg.TransformerConv(8, 4, heads=2, edge_dim=5),
    "crystal": lambda: pyg.CGConv(8, dim=5),
    "nnconv": lambda: pyg.NNConv(8, 4, mlp(5, 6, 32)),
}


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", by_default(ATTRIBUTED, "gine", "crystal", "nnconv"))
@several_or_all
def test_attributes_of_edges(name: str, graphs: tuple[Graph, ...]) -> None:
    """Attributes of edges have a gradient on the edges, which the mathematics needs."""
    torch.manual_seed(0)
    layer = ATTRIBUTED[name]().double()
    fast = graphweave.compile(layer)
    for graph in graphs:
        x = features(graph.num_nodes, 8, torch.float64)
        attributes = features(graph.edge_index.shape[1], 5, torch.float64, seed=3)
        assert_matches(fast, layer, x, graph.edge_index, attributes, module=layer, label=graph.name)


# ---------------------------------------------------------------- plans

MLP = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[8] f32 = input x
%5: unit[8, 64] f32 = input w
%6: unit[48, 64] f32 = input w2
%7: E[8] f32 = pull %4, %2
%8: E[8] f32 = pull %4, %3
%9: E[8] f32 = mul %7, %8
%10: E[64] f32 = matmul %9, %5
%11: E[64] f32 = relu %10
%12: unit[64, 48] f32 = permute %6 [1, 0]
%13: E[48] f32 = matmul %11, %12
"""


def stored_on_edges(plan: Plan) -> list[str]:
    """Tensors of edges x features that come into being when the plan runs."""
    program = plan.program
    edges = Facts(program).flow.edge_spaces
    written = [r for k in plan.kernels.values() for r in k.region.outputs]
    called = [s.ref for s in plan.schedule.steps if isinstance(s, TorchCall)]
    refs = [*written, *called, *(r for r in program.outputs if r is not None)]
    wide = [r for r in refs if isinstance(t := program.types[r], Type) and t.space in edges and numel(t.shape) > 1]
    return [f"%{r}: {program.nodes[r]}" for r in wide]


def test_nothing_of_edges_times_features_is_stored() -> None:
    plan = make_plan(
        PlanName("test"), Facts(parse(MLP + "%14: V[48] f32 = push.max %13, %3\nreturn %14\n")), Options(), {}
    )
    assert len(plan.kernels) == 1
    assert stored_on_edges(plan) == []


def test_a_gram_of_wide_rows_stores_nothing_of_edges_times_features() -> None:
    """GraphSAGE over reddit's 602 features stored 27 GB: a row of one operand was wider than a product's in tiles."""
    program = parse("""
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[602] f32 = input x
%5: V[16] f32 = input g
%6: E[602] f32 = pull %4, %2
%7: E[16] f32 = pull %5, %3
%8: unit[16, 602] f32 = gram %7, %6
return %8
""")
    plan = make_plan(PlanName("test"), Facts(program), Options(), {})
    assert not plan.refused and stored_on_edges(plan) == []
    assert_computes(compiled(program), program)


def test_graphsage_over_wide_features_pushes_rows_of_its_results() -> None:
    """What is gathered for each edge is as wide as the layer's results in the forward and in the backward."""
    torch.manual_seed(0)
    x, edge_index = torch.randn(50, 602), torch.randint(50, (2, 4000))
    model = pyg.SAGEConv(602, 16)
    report = graphweave.explain(model, x, edge_index)
    assert "edges of edge_index: row by row" not in str(report)
    assert_matches(graphweave.compile(model), model, x, edge_index, module=model)


def test_a_gradient_saves_nothing_of_edges_times_features() -> None:
    """Both weight gradients, and a push along either map, of what the backward computes again."""
    joint = parse(
        MLP
        + """
%14: V[48] f32 = push.sum %13, %3
%15: V[48] f32 = input tangents_1
%16: E[48] f32 = pull %15, %3
%17: unit[64, 48] f32 = gram %11, %16
%18: E[64] f32 = matmul %16, %6
%19: unit[] f32 = const 0.0
%20: E[64] bool = le %11, %19
%21: E[64] f32 = where %20, %19, %18
%22: unit[8, 64] f32 = gram %9, %21
%23: unit[64, 8] f32 = permute %5 [1, 0]
%24: E[8] f32 = matmul %21, %23
%25: E[8] f32 = mul %24, %8
%26: V[8] f32 = push.sum %25, %2
%27: E[8] f32 = mul %24, %7
%28: V[8] f32 = push.sum %27, %3
%29: V[8] f32 = add %26, %28
return %14, %29, %17, %22
"""
    )
    cut = split(joint, 1, PassFacts(tangents=names_at(joint, 15)))
    assert all(not isinstance(joint.nodes[r], MatMul) for r in cut.saved)
    for half in (cut.forward.program, cut.backward.program):
        plan = make_plan(PlanName("test"), Facts(half), Options(), {})
        assert not plan.refused and stored_on_edges(plan) == []
        assert_computes(compiled(half), half)


def test_a_product_that_is_a_result_is_stored_once_by_the_kernel() -> None:
    program = parse(MLP + "%14: V[48] f32 = push.sum %13, %3\nreturn %14, %13\n")
    plan = make_plan(PlanName("test"), Facts(program), Options(), {})
    assert [line.split(":")[0] for line in stored_on_edges(plan)] == ["%13", "%13"]  # written, and an output
    assert_computes(compiled(program), program)


def test_products_on_nodes_are_not_computed_again_on_edges() -> None:
    """The products are of nodes, though a map starts there too (the graphs of a batch)."""
    program = parse("""
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
%4: V[4] f32 = input x
%5: unit[4, 3] f32 = input w
%6: V[3] f32 = matmul %4, %5
%7: E[3] f32 = pull %6, %2
%8: W[3] f32 = push.sum %7, %3
return %8
""")
    assert 6 not in Facts(program).tiled
    steps = make_plan(PlanName("test"), Facts(program), Options(), {}).schedule.steps
    assert [s.outputs for s in steps if isinstance(s, Region)] == [(6,), (8,)]


def test_a_chain_of_many_products_is_cut() -> None:
    """Each use computes all of them again, so that a deep network would cost its depth at every use."""
    text = MLP.replace("[48, 64]", "[64, 64]").replace("[64, 48]", "[64, 64]").replace("E[48]", "E[64]")
    lines, last = [text], 13
    for ref in range(14, 14 + 2 * MAX_PRODUCTS, 2):
        lines.append(f"%{ref}: E[64] f32 = tanh %{last}\n%{ref + 1}: E[64] f32 = matmul %{ref}, %12\n")
        last = ref + 1
    program = parse(
        "".join(lines).replace("f32", "f64") + f"%{last + 1}: V[64] f64 = push.sum %{last}, %3\nreturn %{last + 1}\n"
    )
    tiled = [r for r in Facts(program).tiled if isinstance(program.nodes[r], MatMul)]
    assert len(tiled) == MAX_PRODUCTS + 1  # all but the one after the first MAX_PRODUCTS
    assert (
        len(stored_on_edges(make_plan(PlanName("test"), Facts(program), Options(), {}))) == 2
    )  # the product and its operand


# ---------------------------------------------------------------- random programs


def edge_product(s: Growing) -> None:
    """A product with a weight, sometimes a transposed one, of a value on edges."""
    ref = s.some(lambda t: t.space == E and len(t.shape) == 1)
    if ref is None:
        moves.pull(s)
        return
    (k,) = s.type(ref).shape
    j = s.choose((1, 4, 31, 33, 64))
    turned = s.choose((False, True))
    w = s.input(Type(moves.UNIT, (j, k) if turned else (k, j), s.dtype))
    bound = k * s.bound[ref] * s.bound[w]
    s.keep(MatMul(ref, s.add(moves.Permute(w, (1, 0))) if turned else w), bound)


def edge_gram(s: Growing) -> None:
    x, y = (s.some(lambda t: t.space == E and len(t.shape) == 1) for _ in range(2))
    if x is not None and y is not None:
        s.keep(Gram(x, y), moves.MAX_ROWS * s.bound[x] * s.bound[y])


MOVES = (
    moves.pull, moves.pull, moves.push, moves.push, moves.total, moves.mean, moves.softmax, moves.unary, moves.binary,
    moves.reduce, moves.reshape, moves.concat, edge_product, edge_product, edge_product, edge_gram,
)  # fmt: skip


def program_of_products(number: int) -> Program:
    source = random.Random(number)

    def choose(options):  # type: ignore[no-untyped-def]
        return options[source.randrange(len(options))]

    s = Growing(choose, DType.f64 if number % 2 else DType.f32)
    s.input(Type(V, (choose((4, 31, 33)),), s.dtype))
    moves.pull(s)
    for _ in range(choose(range(3, 10))):
        choose(MOVES)(s)
    outputs = [s.pool[-1], *(choose(s.pool) for _ in range(choose(range(4))))]
    spaces = [(V, Symbol("s0")), *([(moves.W, Symbol("s1"))] * (s.dst_space == moves.W)), (E, Symbol("s2"))]
    return s.builder.program(outputs, spaces)


TINY_TILES = Options(wide=1, stash_width=0, prefetch_bytes=1, prefetch_distance=1, tile=3, stash_product=0)


def check(number: int) -> None:
    """Program `number`, as it is or optimised, with the default tiles or with tiny ones, by turns."""
    program = program_of_products(number)
    made = compiled(optimise(program).program if number % 3 else program, TINY_TILES if number % 5 == 0 else None)
    assert_computes(made, program)


@pytest.mark.parametrize("number", range(16))
def test_program(number: int) -> None:
    check(number)


@pytest.mark.parametrize("number", range(12))
def test_kernels_compute_what_their_nodes_mean(number: int) -> None:
    """The interpreter of the loop IR runs the kernels, in tiles of three edges."""
    program = program_of_products(2 * number + 1)
    plan = make_plan(PlanName("test"), Facts(program), TINY_TILES, {})
    for graph in TINY:
        for kernel in plan.kernels.values():
            check_kernel(program, kernel.lowered, inputs(program, graph, 3), f"program {number} on {graph.name}")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(16, 200))
def test_more_programs(number: int) -> None:
    check(number)


def test_programs_have_products_in_kernels() -> None:
    """The random programs test what they are meant to."""
    found = 0
    for number in range(60):
        program = program_of_products(number)
        plan = make_plan(PlanName("test"), Facts(program), Options(), {})
        found += any("gw_matmul<" in k.text for k in plan.kernels.values())
    assert found > 15
