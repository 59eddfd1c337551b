"""Consecutive kernels run as one native call with the same bits as one by one, and under which conditions."""

from __future__ import annotations

import copy
import ctypes
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional as F

import graphweave
from graphweave.compiler.compile import optimise
from graphweave.core.settings import settings
from graphweave.execute import cpp_stretch
from graphweave.execute.cpp_divided import DividedRows
from graphweave.execute.cpp_stretch import kernel_by_kernel
from graphweave.ir.message.parse import parse
from graphweave.runtime import long_rows
from graphweave.runtime.index import INT32_MAX
from graphweave.runtime.segments import Segment
from tests.program_support import ZOO, compiled, in_order, large, same
from tests.programs.random_programs import inputs, random_program
from tests.support import features, random_graph

pytestmark = pytest.mark.skipif(settings().target == "triton", reason="kernels of Triton are launched one by one")


class Called:
    """The native calls, and how many kernels each has run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kernels: list[int] = []
        native = Segment.__call__

        def call(segment: Segment, *args: Any) -> list[Tensor] | None:
            done = native(segment, *args)
            if done is not None:
                self.kernels.append(len(segment.names))
            return done

        monkeypatch.setattr(Segment, "__call__", call)


@pytest.mark.parametrize("number", range(12))
def test_the_bits_are_those_of_kernel_after_kernel(number: int) -> None:
    program = optimise(random_program(number)).program
    made = compiled(program)
    for graph in (*ZOO, large()):
        args = in_order(program, inputs(program, graph, 1))
        together = made([*args])
        with kernel_by_kernel():
            same(made([*args]), together, graph.name)


def layer(kind: str) -> nn.Module:
    if kind == "sage":
        return pyg.SAGEConv(16, 16)
    return pyg.GINConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)))


def step_of(kind: str) -> tuple[nn.ModuleList, object]:
    layers = nn.ModuleList(layer(kind) for _ in range(2))

    def step(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(layers[1](layers[0](x, index).relu(), index), y)

    return layers, step


@pytest.mark.parametrize("kind", ["sage", "gin"])
def test_a_half_is_one_native_call(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are read transposed by the native call itself; only the loss is divided by PyTorch."""
    torch.manual_seed(0)
    layers, step = step_of(kind)
    x, index, y = features(40, 16).float(), random_graph(40, 40, 100), torch.arange(40) % 16
    halves = graphweave.explain(step, x, index, y).graphs
    for half in halves:
        lines = half.wrapper.splitlines()
        assert sum("held" in line for line in lines) == 2 and not re.search(r"= k\d", half.wrapper)
    assert re.findall(r"= c(\d+)\(", halves[-1].wrapper) == []
    called, model = Called(monkeypatch), graphweave.compile(step)
    for _ in range(3):
        called.kernels.clear()
        for p in layers.parameters():
            p.grad = None
        model(x, index, y).backward()
    assert called.kernels == [2, 2]
    got = [p.grad for p in layers.parameters()]
    want = torch.autograd.grad(step(x, index, y), list(layers.parameters()))
    torch.testing.assert_close(got, list(want), rtol=1e-4, atol=1e-5)


def test_batch_norms_cut_no_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their statistics, and the running ones, are kernels of shared data. Numbers are those of eager mode."""
    torch.manual_seed(0)
    layers = nn.ModuleList(pyg.GINConv(pyg.MLP([16, 16, 16])) for _ in range(2)).double()
    eager = copy.deepcopy(layers)

    def step(layers: nn.ModuleList, x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(layers[1](layers[0](x, index).relu(), index), y)

    called, model = Called(monkeypatch), graphweave.compile(step)
    for number, (rows, edges) in enumerate([(40, 100), (33, 0), (200, 900), (40, 100)]):
        x, index, y = features(rows, 16), random_graph(rows, rows, edges), torch.arange(rows) % 16
        called.kernels.clear()
        got, want = model(layers, x, index, y), step(eager, x, index, y)
        got.backward()
        want.backward()
        assert number < 2 or len([n for n in called.kernels if n > 1]) == 2, called.kernels
        torch.testing.assert_close(got, want)
        for a, b in zip(layers.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
        torch.testing.assert_close(dict(layers.named_buffers()), dict(eager.named_buffers()))


def test_large_values_are_freed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    called = Called(monkeypatch)
    _, step = step_of("sage")
    x, index, y = features(40, 16).float(), random_graph(40, 40, 100), torch.arange(40) % 16
    model = graphweave.compile(step)
    model(x, index, y).backward()
    assert called.kernels[-2:] == [2, 2]  # after the kernels of the prelude
    called.kernels.clear()
    monkeypatch.setattr(cpp_stretch, "MAX_BYTES", 1000)
    other = random_graph(40, 40, 101)
    launches = graphweave.counters()["kernel_launches"]
    model(x, other, y).backward()
    assert 2 not in called.kernels and graphweave.counters()["kernel_launches"] - launches >= 4


def hub_of(nodes: int, edges: int) -> Tensor:
    index = random_graph(nodes, nodes, edges)
    index[1, : 3 * edges // 4] = 7
    return index


def test_divided_rows_are_part_of_the_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kernels are built when a graph first needs them."""
    called, built = Called(monkeypatch), list[str]()
    build = DividedRows.build
    monkeypatch.setattr(DividedRows, "build", lambda rows: built.append("") or build(rows))
    model = graphweave.compile(lambda x, index: torch.zeros_like(x).index_add(0, index[1], x[index[0]]).relu())
    x, index = torch.randn(3000, 64), random_graph(3000, 3000, 400_000)
    model(x, index)
    assert called.kernels == [1] and not built
    index = hub_of(3000, 400_000)
    want = torch.zeros_like(x).index_add(0, index[1], x[index[0]]).relu()
    for calls in (1, 2, 3):
        before = graphweave.counters()
        got = model(x, index)
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-2)
        after = graphweave.counters()
        assert after["divided_launches"] - before["divided_launches"] == 1
        assert after["kernel_launches"] - before["kernel_launches"] == 4  # passes over pieces, their fold, the rows
        assert called.kernels == [1] * (1 + calls) and len(built) == 1
    with kernel_by_kernel():
        assert torch.equal(model(x, index), got)


@pytest.fixture
def few_edges_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of three edges or more is divided."""
    monkeypatch.setattr(long_rows, "LONG", 2)
    monkeypatch.setattr(long_rows, "SHARE", 1 << 40)
    monkeypatch.setattr(long_rows, "PIECE", 2)


@pytest.mark.parametrize("number", [0, 5, 10, 13])
def test_the_bits_of_divided_rows(number: int, few_edges_are_many: None) -> None:
    program = optimise(random_program(number)).program
    made, divided = compiled(program), graphweave.counters()["divided_launches"]
    for graph in (*ZOO, large()):
        args = in_order(program, inputs(program, graph, 1))
        together = made([*args])
        with kernel_by_kernel():
            same(made([*args]), together, graph.name)
    assert graphweave.counters()["divided_launches"] > divided


@pytest.mark.parametrize("inference", [False, True])
def test_threads_with_hubs_of_their_own(inference: bool, few_edges_are_many: None) -> None:
    """All may be the first that need the kernels of divided rows."""

    def sums(x: Tensor, index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, index[1], x[index[0]]).relu()

    def work(seed: int) -> bool:
        with torch.inference_mode(inference):
            index = random_graph(24, 24, 40 + 10 * seed, seed=seed)
            index[1, ::2] = seed
            x = features(24, 5)
            alike = (torch.allclose(model(x, index), sums(x, index), rtol=1e-4, atol=1e-5) for _ in range(5))
            return all(alike)

    model = graphweave.compile(sums)
    model(features(24, 5), random_graph(24, 24, 2))
    before = graphweave.counters()["divided_launches"]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert graphweave.counters()["divided_launches"] - before == 8 * 5


def whole_and_totals(x: Tensor, index: Tensor) -> list[Tensor]:
    out = torch.zeros_like(x).index_add(0, index[1], x[index[0]])
    return [out, out.sum(0), out.prod(0), out.amax(0), out.amin(0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_totals_are_folded_over_divided_rows(dtype: torch.dtype, few_edges_are_many: None) -> None:
    x, index = torch.randn(24, 5).mul(3).to(dtype), hub_of(24, 90)
    if dtype.is_floating_point:
        x[index[0, 5], 2] = torch.nan
    model, before = graphweave.compile(whole_and_totals), graphweave.counters()["divided_launches"]
    got = model(x, index)
    assert graphweave.counters()["divided_launches"] > before
    with kernel_by_kernel():
        by_kernel = model(x, index)
    for a, b, want in zip(got, by_kernel, whole_and_totals(x, index), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(a, want.to(a.dtype), rtol=1e-4, atol=1e-4, equal_nan=True)


OVER_NOTHING = """
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
%4: V[4] f32 = input x
%5: V -> unit = tounit V
%6: V[4] f32 = tanh %4
%7: unit[4] f32 = push.max %6, %5 empty=-2.5
%8: E -> unit = tounit E
%9: E[4] f32 = pull %6, %2
%10: unit[4] f32 = push.sum %9, %8 empty=1.5
%11: W[4] f32 = push.min %9, %3 empty=-1.5
%12: W[1] f32 = input y
return %7, %10, %11, %12
"""


def test_totals_over_no_rows_and_no_edges_are_filled_by_the_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse(OVER_NOTHING)
    made, called = compiled(program), Called(monkeypatch)
    nothing = [graph for graph in ZOO if not len(graph.src)]
    assert any(not graph.num_src for graph in nothing)
    for graph in nothing:
        called.kernels.clear()
        nodes, edges, _, _ = made(in_order(program, inputs(program, graph, 1)))
        assert called.kernels, "all kernels ran natively"
        assert torch.equal(edges, torch.full((4,), 1.5))
        assert graph.num_src or torch.equal(nodes, torch.full((4,), -2.5))


def kernel_of(body: Callable[[Any, Any], int]) -> tuple[Any, int]:
    """A kernel that calls `body(pointers, sizes)`, and its address."""
    pointers, sizes = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
    made = ctypes.CFUNCTYPE(ctypes.c_int32, pointers, sizes, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32)(
        lambda pointers, sizes, *_: body(pointers, sizes)
    )
    return made, ctypes.cast(made, ctypes.c_void_p).value or 0


def alone(address: int, pointers: list[list[int]]) -> list[int]:
    """The numbers of a step that walks no edges, on one row of shared data."""
    chunking, undivided = [1, 1 << 14, 1], [0, 0, 1 << 14, 64, 256, 1 << 10]
    flat = [n for p in pointers for n in p]
    return [address, -1, 0, 1, -1, 0, *chunking, *undivided, -1, -1, -1, 0, len(pointers), *flat, 0]


def none_divided(step: int) -> list[int]:
    raise AssertionError(f"step {step} has no divided rows")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_matrix_turned_over(dtype: torch.dtype) -> None:
    for rows, columns in ((1, 1), (3, 17), (64, 16)):
        matrix, out = torch.randn(rows, columns).to(dtype), torch.empty(columns, rows, dtype=dtype)
        inside, size = torch.empty(columns, rows, dtype=dtype), dtype.itemsize

        def copied(pointers: Any, sizes: Any, size: int = rows * columns * size) -> int:
            ctypes.memmove(pointers[1], pointers[0], size)
            return 0

        kept, address = kernel_of(copied)
        turn = [1, size, rows, columns, 0, 0]
        step = alone(address, [[1, 0, 0], [0, 1, 0]])
        numbers = [0, 1, 1, INT32_MAX, 0, 0, 0, *turn, 1, 1, rows * columns * size, -1, 1, *step]
        segment = Segment(numbers, ["copied"], [], 0, 2, none_divided)
        assert segment((), (), [matrix, out], inside.data_ptr()) is not None
        assert torch.equal(out, matrix.t())
        del kept


def test_a_kernel_without_memory_is_named() -> None:
    kept, none = kernel_of(lambda *_: 1)
    kept_too, done = kernel_of(lambda *_: 0)
    steps = [2, *alone(done, []), *alone(none, [])]
    segment = Segment([0, 0, 0, INT32_MAX, 0, 0, 0, 0, 0, *steps], ["forward_2", "forward_3"], [], 0, 0, none_divided)
    with pytest.raises(MemoryError, match="kernel forward_3 could not allocate"):
        segment((), (), [], 0)
    del kept, kept_too


def test_an_edit_of_the_graph_is_seen() -> None:
    model = graphweave.compile(lambda x, index: torch.zeros_like(x).index_add(0, index[1], x[index[0]]) + 1)
    x, index = features(9, 5), random_graph(9, 9, 30)
    for _ in range(3):
        want = torch.zeros_like(x).index_add(0, index[1], x[index[0]]) + 1
        torch.testing.assert_close(model(x, index), want)
        index[1, ::2] = (index[1, ::2] + 1) % 9


class Reversible(nn.Module):
    """Frees the storage of its block's input as soon as the block has run."""

    def __init__(self) -> None:
        super().__init__()
        self.block = pyg.GroupAddRev(pyg.SAGEConv(8, 8), num_groups=2)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return self.block(x + 0.0, index) + 0.0


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_frees_memory_stays_behind_the_kernels_that_read_it() -> None:
    """A call that frees memory returns nothing, and is not counted among the impure ones."""
    torch.manual_seed(0)
    model = Reversible()
    index, got = random_graph(9, 9, 30), features(9, 16).float().requires_grad_()
    want = got.detach().clone().requires_grad_()
    (graphweave.compile(model)(got, index) ** 2).sum().backward()
    (model(want, index) ** 2).sum().backward()
    torch.testing.assert_close(got.grad, want.grad, rtol=1e-4, atol=1e-5)
