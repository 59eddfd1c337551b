"""Products of rows in the kernels that compute and read their rows: which kernels there are, and their results."""

from __future__ import annotations

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.core.options import Options, options_for
from graphweave.core.types import DType, Space
from graphweave.ir.loop.nodes import TileArray, TileGram, TileMatMul, TileRows
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.parse import parse
from graphweave.lower.region import lower
from graphweave.lower.schedule import TALL, Region, TorchCall, schedule
from tests.program_support import assert_computes, compiled, large
from tests.programs.graphs import EdgeList
from tests.support import assert_matches, awkward_graphs, by_default, features

V = Space("V")


def regions(text: str, options: Options | None = None) -> list[Region]:
    steps = schedule(Facts(parse(text)), (), options).steps
    assert all(isinstance(s, Region) for s in steps)
    return [s for s in steps if isinstance(s, Region)]


def body(program: Program, region: Region, stored: frozenset[Ref]) -> tuple[object, ...]:
    return lower(Facts(program), region, stored, "kernel", Options()).kernel.body


MAPS = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
"""

LAYER = f"""{MAPS}
%4: V[8] f32 = input x
%5: unit[8, 16] f32 = input w
%6: unit[16] f32 = input b
%7: E[8] f32 = pull %4, %2
%8: V[8] f32 = push.sum %7, %3
%9: V[16] f32 = matmul %8, %5
%10: V[16] f32 = add %9, %6
%11: V[16] f32 = relu %10
%12: unit[16, 16] f32 = input w2
%13: V[16] f32 = matmul %11, %12
%14: unit[8, 16] f32 = gram %8, %13
return %13, %14
"""


def test_aggregate_multiply_add_relu_multiply_and_gram_are_one_kernel() -> None:
    (region,) = regions(LAYER)
    assert region.outputs == (13, 14)
    assert region.products == {9, 13, 14}


def test_other_targets_call_the_library() -> None:
    steps = schedule(Facts(parse(LAYER)), (), options_for("triton")).steps
    assert [s.ref for s in steps if isinstance(s, TorchCall)] == [9, 13, 14]


@pytest.mark.parametrize(("rows", "kernel"), [(TALL - 1, False), (TALL, True)])
def test_a_product_on_its_own_is_a_kernel_where_there_are_many_rows(rows: int, kernel: bool) -> None:
    program = parse("""
space V = s0
%0: V[8] f32 = input x
%1: unit[8, 16] f32 = input w
%2: V[16] f32 = matmul %0, %1
return %2
""")
    (only,) = schedule(Facts(program), (), None, Statistics(((V, rows),))).steps
    assert isinstance(only, Region) == kernel


@pytest.mark.parametrize("width", [256, 257])
def test_wide_products_are_the_librarys(width: int) -> None:
    text = f"""
space V = s0
%0: V[{width}] f32 = input x
%1: unit[{width}, 3] f32 = input w
%2: V[3] f32 = matmul %0, %1
return %2
"""
    assert isinstance(schedule(Facts(parse(text))).steps[0], Region) == (width == 256)


def test_edges_do_not_wait_for_a_product_of_their_row() -> None:
    """Each edge reads %6, a product of its own row's %5, but a kernel multiplies only after its edges: two kernels."""
    first, second = regions(f"""{MAPS}
%4: unit[8, 8] f32 = input w
%5: V[8] f32 = input x
%6: V[8] f32 = matmul %5, %4
%7: E[8] f32 = pull %6, %3
%8: E[8] f32 = pull %5, %2
%9: E[8] f32 = mul %7, %8
%10: V[8] f32 = push.sum %9, %3
return %10
""")
    assert first.members == (6,) and second.members == (10,)


def test_what_memory_alone_makes_is_computed_where_it_is_read() -> None:
    """Stored before the product, the mask would be an array of the tile, and more numbers to read."""
    program = parse("""
space V = s0
%0: V[8] f32 = input g
%1: V[8] f32 = input x
%2: unit[8, 8] f32 = input w
%3: unit[] f32 = const 0.0
%4: V[8] bool = le %1, %3
%5: V[8] f32 = matmul %0, %2
%6: V[8] f32 = where %4, %3, %5
return %6
""")
    order = schedule(Facts(program))
    (region,) = order.steps
    assert isinstance(region, Region)
    kernel = body(program, region, order.stored)
    assert [type(s) for s in kernel] == [TileArray, TileMatMul, TileRows]


def test_a_sum_of_products_takes_the_memory_of_the_first() -> None:
    program = parse("""
space V = s0
%0: V[8] f32 = input x
%1: V[8] f32 = input y
%2: unit[8, 8] f32 = input w
%3: unit[8, 8] f32 = input w2
%4: V[8] f32 = matmul %0, %2
%5: V[8] f32 = addmatmul %4, %1, %3
%6: V[8] f32 = relu %5
return %6
""")
    order = schedule(Facts(program))
    (region,) = order.steps
    assert isinstance(region, Region)
    arrays = [s for s in body(program, region, order.stored) if isinstance(s, TileArray)]
    assert len(arrays) == 1


def test_a_value_read_by_one_kernel_is_computed_there() -> None:
    """%10 is stored because edges gather it. %11 could be stored beside it, but its only reader recomputes it."""
    first, second = regions(f"""{MAPS}
%4: V[64] f32 = input x
%5: unit[64, 64] f32 = input w
%6: unit[] f32 = input scale
%7: E[64] f32 = pull %4, %2
%8: V[64] f32 = push.sum %7, %3
%9: V[64] f32 = matmul %8, %5
%10: V[64] f32 = relu %9
%11: V[64] f32 = mul %10, %6
%12: E[64] f32 = pull %10, %2
%13: V[64] f32 = push.sum %12, %3
%14: V[64] f32 = add %13, %11
return %14
""")
    assert first.outputs == (10,) and 11 in second.members


def test_a_gram_of_a_view_reads_what_it_is_a_view_of() -> None:
    program = parse("""
space V = s0
%0: V[2, 4] f32 = input x
%1: V[2, 4] f32 = tanh %0
%2: V[8] f32 = reshape %1 [8]
%3: unit[8, 8] f32 = gram %2, %2
return %3
""")
    order = schedule(Facts(program))
    (region,) = order.steps
    assert isinstance(region, Region) and region.members == (1, 3) and region.outputs == (3,)
    (gram,) = (s for s in body(program, region, order.stored) if isinstance(s, TileGram))
    assert gram.x == gram.y


# ---------------------------------------------------------------- numbers

WIDTHS = [(64, 64), (1, 1), (31, 33), (3, 64), (64, 3), (100, 17), (256, 64), (16, 256)]


def alone(k: int, j: int, dtype: DType) -> Program:
    """Products whose operands and results meet no other node."""
    d = dtype.value
    return parse(f"""
space V = s0
%0: V[{k}] {d} = input x
%1: V[{j}] {d} = input y
%2: unit[{k}, {j}] {d} = input w
%3: V[{j}] {d} = matmul %0, %2
%4: V[{j}] {d} = addmatmul %1, %0, %2
%5: unit[{k}, {j}] {d} = gram %0, %1
return %3, %4, %5
""")


CASES = [(k, j, dtype) for dtype in (DType.f32, DType.f64) for k, j in WIDTHS]


@pytest.mark.parametrize("case", by_default(CASES, *CASES[1:4], (31, 33, DType.f64)), ids=str)
@pytest.mark.parametrize("rows", [0, 1, 77, 3001])
def test_products_are_right(case: tuple[int, int, DType], rows: int) -> None:
    program, empty = alone(*case), torch.zeros(0, dtype=torch.int64)
    assert_computes(compiled(program), program, [EdgeList("rows", empty, empty, rows, rows)])


def test_a_layer_is_right() -> None:
    program = parse(LAYER)
    assert_computes(compiled(program), program, [large()])


class Two(nn.Module):
    """Two layers and a loss, in one function."""

    def __init__(self, name: str) -> None:
        super().__init__()
        made = {
            "gcn": lambda i, o: pyg.GCNConv(i, o),
            "sage": lambda i, o: pyg.SAGEConv(i, o),
            "sage-max": lambda i, o: pyg.SAGEConv(i, o, aggr="max", project=True),
            "gin": lambda i, o: pyg.GINConv(nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o)), train_eps=True),
            "gat": lambda i, o: pyg.GATConv(i, o // 3 or 1, heads=3),
            "gatv2": lambda i, o: pyg.GATv2Conv(i, o // 3 or 1, heads=3, residual=True),
            "transformer": lambda i, o: pyg.TransformerConv(i, o, beta=True),
            "graph": lambda i, o: pyg.GraphConv(i, o, aggr="mean"),
        }[name]  # fmt: skip
        self.first, self.second = made(9, 33), made(33, 6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(F.elu(self.first(x, edge_index)), edge_index)
        return F.log_softmax(out, -1)


LAYERS = ["gcn", "sage", "sage-max", "gin", "gat", "gatv2", "transformer", "graph"]


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("door", by_default(["compile", "plain"], "compile"))
@pytest.mark.parametrize("name", by_default(LAYERS, "sage", "gin"))
def test_layers(name: str, door: str) -> None:
    torch.manual_seed(0)
    model = Two(name).double()
    fn = graphweave.compile(model) if door == "compile" else torch.compile(model, backend="graphweave", dynamic=True)
    for graph in awkward_graphs():
        x = features(graph.num_nodes, 9, torch.float64)
        assert_matches(fn, model, x, graph.edge_index, module=model, label=graph.name)
    assert graphweave.counters()["eager_fallbacks"] == 0
