"""Rows of many edges, divided among threads: whole layers and random programs, with few edges counted as many."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from bench.check import error_against, step
from bench.steps import Result
from graphweave.core.types import DType
from graphweave.execute import region_step
from graphweave.execute.cpp_divided import PIECE_TABLES
from graphweave.runtime import formats, long_rows
from graphweave.runtime.index import Index
from graphweave.runtime.index_records import Record
from graphweave.runtime.native_library import library
from tests.frontends.dynamo.test_half_precision import ROUNDING, rounding
from tests.passes.test_edge_products import Scored, mlp, program_of_products
from tests.program_support import ZOO, assert_computes, compiled, large
from tests.programs.random_programs import random_program
from tests.support import Graph, assert_matches, by_default, features, needs_float16, random_graph, threads

NODES = 24


@pytest.fixture(autouse=True)
def few_edges_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of more than 8 edges is divided, into pieces of 3 edges."""
    formats.clear()
    monkeypatch.setattr(long_rows, "LONG", 8)
    monkeypatch.setattr(long_rows, "SHARE", 1 << 40)
    monkeypatch.setattr(long_rows, "PIECE", 3)


def hubs() -> Iterator[Graph]:
    """One node has half of all edges, in and out; one has all; two have a third; one is among nodes without edges."""
    index = random_graph(NODES, NODES, 90, seed=3)
    half, all_, two, alone = (index.clone() for _ in range(4))
    half[1, ::2] = half[0, 1::2] = 5
    all_[1] = NODES - 1
    two[1, ::3], two[1, 1::3] = 0, 1
    alone[1], alone[0] = 11, index[0] // 3
    yield Graph("half", NODES, half)
    yield Graph("all", NODES, all_)
    yield Graph("two", NODES, two)
    yield Graph("isolated", 3 * NODES, alone)


HUBS = tuple(hubs())


# ---------------------------------------------------------------- layers


class Products(nn.Module):
    """Attention, a perceptron of its result, and a mean."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.gat, self.gin = pyg.GATConv(width, 5, heads=2), pyg.GINConv(mlp(10, 7, 6))
        self.sage = pyg.SAGEConv(6, out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.sage(self.gin(self.gat(x, edge_index).tanh(), edge_index).relu(), edge_index)
        return out


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "sum": lambda: pyg.GraphConv(9, 8),
    "max": lambda: pyg.SAGEConv(9, 8, aggr="max"),
    "std": lambda: pyg.SAGEConv(9, 8, aggr="std"),
    "gat-dropout": lambda: pyg.GATConv(9, 4, heads=3, dropout=0.4),
    "online": lambda: pyg.GATv2Conv(9, 4, heads=3, dropout=0.4),
    "edgeconv-max": lambda: pyg.EdgeConv(mlp(18, 16, 8)),
    "edgeconv-sum": lambda: pyg.EdgeConv(mlp(18, 16, 8), aggr="sum"),
    "scored": lambda: Scored(9),
    "transformer": lambda: pyg.TransformerConv(9, 4, heads=2),
    "products": lambda: Products(9, 8),
}
"""Layers with sums, maxima and their ties, moments, softmax in two passes and in one, products on edges, a stash of
them, and products of the rows that edges are aggregated to."""


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("door", by_default(["compile", "plain"], "compile"))
@pytest.mark.parametrize("name", by_default(LAYERS, "gat-dropout", "edgeconv-max", "products"))
def test_layers(name: str, door: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    fast = graphweave.compile(layer) if door == "compile" else torch.compile(layer, backend="graphweave")
    for graph in HUBS:
        before = graphweave.counters()["divided_launches"]
        x = features(graph.num_nodes, 9, torch.float64)
        assert_matches(fast, layer, x, graph.edge_index, module=layer, label=graph.name)
        divided = graphweave.counters()["divided_launches"] - before
        assert divided >= (2 if graph.name == "half" else 1), "forward and backward"
    assert graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", by_default(LAYERS, "edgeconv-sum"))
def test_the_same_bits_for_any_number_of_threads(name: str) -> None:
    """Results may differ only by the rounding of float32 sums in another order."""
    torch.manual_seed(0)
    layer = LAYERS[name]()
    fast = graphweave.compile(layer)
    for graph in HUBS[:3]:
        results: list[Result] = []
        for n in (1, 2, 3):
            with threads(n):
                results.append(step(fast, (features(graph.num_nodes, 9), graph.edge_index), module=layer))
        assert graphweave.counters()["divided_launches"] > 0
        for other in results[1:]:
            assert all(map(torch.equal, other.outputs, results[0].outputs)), graph.name
            for key, grad in results[0].grads.items():
                # PyTorch computes products on nodes, and may sum in another order on another number of threads
                assert torch.equal(other.grads[key], grad), f"{graph.name}: {key}"


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("dtype", by_default(ROUNDING, torch.bfloat16))
@pytest.mark.parametrize("name", by_default(["sum", "gat-dropout", "max"], "sum"))
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    """Results are as exact in float32 as those of eager mode."""
    needs_float16(dtype)
    torch.manual_seed(0)
    layer = LAYERS[name]().to(dtype).eval()
    fast, wide = graphweave.compile(layer), LAYERS[name]().double().eval()
    wide.load_state_dict(layer.state_dict())
    for graph in HUBS:
        x = features(graph.num_nodes, 9).to(dtype)
        with torch.no_grad():
            exact = Result((wide(x.double(), graph.edge_index),), {})
            ours = error_against(Result((fast(x, graph.edge_index),), {}), exact)
            eager = error_against(Result((layer(x, graph.edge_index),), {}), exact)
        assert ours <= max(4 * eager, 8 * rounding(dtype)), f"{graph.name}: {ours:.2g}, eager {eager:.2g}"
    assert graphweave.counters()["divided_launches"] > 0


# ---------------------------------------------------------------- random programs


def check(number: int) -> None:
    """Programs of message passing, every third with products on edges, where rows of 2 edges are already divided."""
    dtype = DType.f64 if number % 2 else DType.f32
    program = program_of_products(number) if number % 3 == 0 else random_program(number, dtype)
    assert_computes(compiled(program), program, [*ZOO, large()] if number % 3 else ZOO)


@pytest.mark.parametrize("number", [3, 4])
def test_programs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rows, "LONG", 1)
    check(number)


def test_programs_whose_indices_need_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_step, "INT32_MAX", -1)
    check(4)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5, 105))
def test_more_programs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rows, "LONG", 1)
    check(number)


# ---------------------------------------------------------------- which rows are divided


def test_chunks_leave_out_divided_rows_and_no_others() -> None:
    for graph in HUBS:
        dst = graph.edge_index[1]
        found = long_rows.long_rows(Index(dst, graph.num_nodes), False)
        assert found is not None
        degrees = torch.bincount(dst, minlength=graph.num_nodes)
        assert set(found.pieces.slot_row.tolist()) == set((degrees > 8).nonzero().flatten().tolist())
        chunks = found.chunks.tolist()
        bounds = [b if b >= 0 else ~b for b in chunks]
        assert bounds == sorted(set(bounds)) and bounds[0] == 0 and bounds[-1] == graph.num_nodes == chunks[-1]
        left_out = {r for b, nxt in zip(chunks, bounds[1:], strict=False) if b < 0 for r in range(~b, nxt)}
        assert left_out == set(found.pieces.slot_row.tolist())
        assert found.max_degree == int(degrees[degrees <= 8].max())


@pytest.mark.parametrize("weight", [long_rows.SUMS, long_rows.Weight(long_rows.PRODUCTS, 16 << 20)])
def test_native_code_makes_the_same_pieces(weight: long_rows.Weight) -> None:
    """Of hubs, and of graphs whose rows are all long."""
    every = Graph("every", 3, torch.stack([torch.arange(40), torch.arange(40) % 3]))
    for graph in (*HUBS, every):
        index = Index(graph.edge_index[1], graph.num_nodes)
        want = long_rows.long_rows(index, False, weight)
        assert want is not None
        record, tables = Record(index, kept=False), (ctypes.c_void_p * 7)()
        found, numbers = (ctypes.c_int64 * 4)(), struct.pack("4q", *long_rows.division(weight).numbers)
        native = library().gw_record_long_rows
        assert native(record.handle.address, numbers, tables, found, 1) == -1
        table = want.pieces
        assert list(found) == [table.piece_row.numel(), table.slot_row.numel(), table.num_edges, want.max_degree]
        made = (table.slots, table.pieces, table.piece_row, table.piece_shift, table.piece_slot, table.slot_row)
        for name, address, tensor in zip(PIECE_TABLES, tables, made, strict=False):
            assert torch.equal(record.tensor(address, tensor.numel(), torch.int32), tensor), (graph.name, name)
        assert tables[6] is None


def test_a_graph_without_long_rows_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is built and no kernel compiled: the largest degree already tells that there are no long rows."""
    monkeypatch.undo()
    index = random_graph(3000, 3000, 50_000)[1]
    formats.csr(Index(index, 3000))
    before = formats.stats()["entries"]
    assert long_rows.long_rows(Index(index, 3000), False) is None
    assert formats.stats()["entries"] == before
    hub = torch.where(torch.arange(50_000) % 2 == 0, 7, index)
    assert long_rows.long_rows(Index(hub, 3000), False) is not None


@pytest.mark.parametrize(("degree", "rows", "edges", "long"), [
    (1 << 14, 10, 1 << 15, False), ((1 << 14) + 1, 10, 1 << 15, True), (1 << 15, 1 << 21, 1 << 21, False),
])  # fmt: skip
def test_a_row_is_long_by_its_own_edges_and_its_share(
    degree: int, rows: int, edges: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert long_rows.is_long(degree, rows, edges) is long
