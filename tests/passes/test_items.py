"""Batches whose items have one graph: kernels walk the map of one item, and nothing of batch x edges is stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.analysis.facts import Facts
from graphweave.codegen.cpp.kernel import print_kernel
from graphweave.compiler.compile import compile
from graphweave.compiler.plan import PlanName, make_plan
from graphweave.compiler.request import Request
from graphweave.core.options import Options, options_for
from graphweave.core.sizes import read
from graphweave.core.types import DType, Fold, Op, Space
from graphweave.execute.build import build
from graphweave.ir.loop.parse import parse
from graphweave.ir.loop.show import show
from graphweave.ir.loop.verify import verify
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import (
    EachItem,
    EqualRuns,
    Input,
    MapOf,
    Pointwise,
    Program,
    Pull,
    Push,
    Rounds,
    ToUnit,
    Type,
)
from graphweave.passes.pass_facts import PassFacts
from graphweave.runtime import formats
from tests.captures import capture, check
from tests.lower.test_lower import check_kernel
from tests.programs.graphs import zoo
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

Function = Callable[..., "Tensor | tuple[Tensor, ...]"]
F = 5

# ---------------------------------------------------------------- formulas


def summed(x: Tensor, index: Tensor) -> Tensor:
    """The sum of a function of flat rows that `index` picks, by the rows that it picks."""
    return torch.zeros_like(x).index_add(0, index, torch.tanh(x[index]))


def checked(x: Tensor, index: Tensor) -> Tensor:
    """`index`, checked against the rows of one item."""
    return torch.arange(x.shape[1])[index]


def offsets(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])[:, None] * x.shape[1]


FORMULAS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], type | None]] = {
    "each item": (lambda x, i: (offsets(x) + checked(x, i)).reshape(-1), EachItem),
    "by another order": (lambda x, i: (checked(x, i)[None] + offsets(x)).flatten(), EachItem),
    "each item, from the end": (lambda x, i: (offsets(x) + checked(x, i - x.shape[1])).reshape(-1), EachItem),
    "not checked": (lambda x, i: (offsets(x) + i).reshape(-1), None),
    "items behind": (lambda x, i: (checked(x, i)[:, None] + offsets(x).T).reshape(-1), None),
    "another stride": (lambda x, i: (offsets(x) // 2 + checked(x, i)).reshape(-1), None),
    "twice the index": (lambda x, i: (offsets(x) + 2 * checked(x, i // 2)).reshape(-1), None),
    "two indices": (lambda x, i: (offsets(x) + checked(x, i // 2) + checked(x, i // 3)).reshape(-1), None),
    "rows of one item": (lambda x, i: torch.arange(x.shape[1]).repeat(3 * x.shape[0]), None),
    "all rows in turn": (lambda x, i: torch.arange(x.shape[0] * x.shape[1]).repeat(3), Rounds),
}


@pytest.mark.parametrize("name", by_default(FORMULAS, "each item", "not checked", "all rows in turn"))
def test_a_formula_of_items_is_known(name: str) -> None:
    formula, known = FORMULAS[name]

    def f(x: Tensor, index: Tensor) -> Tensor:
        return summed(x.flatten(0, 1), formula(x, index))

    x = torch.randn(3, 7, F, dtype=torch.float64, requires_grad=True)
    (captured,) = capture(f, x, torch.randint(7, (11,)))
    check(captured)
    found = {type(n) for n in captured.imported.program.nodes if isinstance(n, EachItem | Rounds)}
    assert found == ({known} if known else set())


# ---------------------------------------------------------------- kernels

NODES, EDGES, ALL_NODES, ALL_EDGES, ITEMS = (Space(name) for name in ("N", "E", "BN", "BE", "B"))


def attention() -> Program:
    """A softmax over the edges of each row of each item. Scores have a weight of the edge in all items, one of the edge
    in its item, and one of the item; sums have a bias of the row in all items."""
    b = Builder()
    x, each = b.add(Input("x", Type(ALL_NODES, (F,), DType.f64))), b.add(Input("each", Type(ALL_EDGES, (), DType.f64)))
    bias = b.add(Input("bias", Type(NODES, (F,), DType.f64)))
    shared, own = b.add(Input("shared", Type(EDGES, (F,), DType.f64))), b.add(Input("own", Type(ITEMS, (), DType.f64)))
    src, dst = (b.add(Input(name, Type(EDGES, (), DType.i64))) for name in ("src", "dst"))
    ends = [b.add(MapOf(b.add(EachItem(b.add(MapOf(i, NODES)), ALL_NODES, ALL_EDGES)), ALL_NODES)) for i in (src, dst)]
    edge = b.add(MapOf(b.add(Rounds(EDGES, ALL_EDGES)), EDGES))
    item = b.add(MapOf(b.add(EqualRuns(ITEMS, ALL_EDGES)), ITEMS))
    weight = b.add(Pointwise(Op.mul, (b.add(Pull(shared, edge)), b.add(Pull(own, item)))))
    weight = b.add(Pointwise(Op.mul, (weight, each)))
    row = b.add(MapOf(b.add(Rounds(NODES, ALL_NODES)), NODES))
    message = b.add(Pointwise(Op.mul, (b.add(Pull(x, ends[0])), weight)))
    top = b.add(Push(message, ends[1], Fold.max))
    shifted = b.add(Pointwise(Op.exp, (b.add(Pointwise(Op.sub, (message, b.add(Pull(top, ends[1]))))),)))
    sum_ = b.add(Pointwise(Op.add, (b.add(Push(shifted, ends[1], Fold.sum)), b.add(Pull(bias, row)))))
    total = b.add(Push(message, b.add(ToUnit(ALL_EDGES)), Fold.max, -7.0))
    sizes = {NODES: "s0", EDGES: "s1", ITEMS: "s2", ALL_NODES: "s0 * s2", ALL_EDGES: "s1 * s2"}
    return b.program([message, top, sum_, total], [(space, read(size)) for space, size in sizes.items()])


def given(items: int, nodes: int, edges: int) -> dict[str, Tensor]:
    shapes = {
        "x": (items * nodes, F),
        "shared": (edges, F),
        "own": (items,),
        "each": (items * edges,),
        "bias": (nodes, F),
    }
    numbers = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    return numbers | {name: torch.randint(max(nodes, 1), (edges,)) for name in ("src", "dst")}


@pytest.mark.parametrize(("items", "nodes", "edges"), [(3, 4, 6), (1, 2, 3), (2, 1, 2), (2, 3, 0), (0, 3, 2)])
def test_a_kernel_walks_the_map_of_one_item(items: int, nodes: int, edges: int) -> None:
    program = attention()
    plan = make_plan(PlanName("test"), Facts(program), Options(), {})
    walking = [k.lowered for k in plan.kernels.values() if k.lowered.kernel.csrs]
    for lowered in walking:
        kernel = lowered.kernel
        assert kernel.items == "num_BN" and kernel.sizes[0] == "num_N"
        assert all(b.rows != "num_BE" and b.rows != "num_BN" for b in kernel.buffers)
        verify(kernel)
        assert parse(show(kernel)) == kernel
        check_kernel(program, lowered, given(items, nodes, edges), "attention")
    assert walking


@pytest.mark.parametrize(("items", "edges"), [(0, 4), (2, 0), (2, 4)])
def test_a_total_over_no_edges_of_any_item_is_that_of_its_push(items: int, edges: int) -> None:
    program, values = attention(), given(items, 3, edges)
    facts = PassFacts(options=options_for("cpp"))
    (executable,) = build(compile(Request(program, facts)))
    names = [n.name for n in program.nodes if isinstance(n, Input)]
    total = executable([values[name] for name in names])[-1]
    assert bool((total == -7.0).all()) == (items * edges == 0)


def sums_over_items() -> Program:
    """The gradients of a weight and a bias of the edges that all items share, one of them a maximum."""
    b = Builder()
    x, grad = (b.add(Input(name, Type(ALL_NODES, (F,), DType.f64))) for name in ("x", "grad"))
    b.add(Input("bias", Type(NODES, (F,), DType.f64)))  # it says how many nodes an item has
    shared = b.add(Input("shared", Type(EDGES, (F,), DType.f64)))
    each = b.add(Input("each", Type(ALL_EDGES, (), DType.f64)))
    src, dst = (b.add(Input(name, Type(EDGES, (), DType.i64))) for name in ("src", "dst"))
    ends = [b.add(MapOf(b.add(EachItem(b.add(MapOf(i, NODES)), ALL_NODES, ALL_EDGES)), ALL_NODES)) for i in (src, dst)]
    edge = b.add(MapOf(b.add(Rounds(EDGES, ALL_EDGES)), EDGES))
    product = b.add(Pointwise(Op.mul, (b.add(Pull(x, ends[0])), b.add(Pull(grad, ends[1])))))
    bent = b.add(Pointwise(Op.tanh, (b.add(Pointwise(Op.mul, (product, b.add(Pull(shared, edge))))),)))
    sum_, top = b.add(Push(bent, edge, Fold.sum)), b.add(Push(each, edge, Fold.max, -math.inf))
    out = b.add(Pointwise(Op.mul, (sum_, top)))
    sizes = {NODES: "s0", EDGES: "s1", ITEMS: "s2", ALL_NODES: "s0 * s2", ALL_EDGES: "s1 * s2"}
    return b.program([sum_, top, out], [(space, read(size)) for space, size in sizes.items()])


@pytest.mark.parametrize(("items", "nodes", "edges"), [(3, 4, 6), (1, 2, 3), (2, 1, 2), (2, 3, 0), (0, 3, 2)])
def test_a_kernel_folds_over_items(items: int, nodes: int, edges: int) -> None:
    program = sums_over_items()
    plan = make_plan(PlanName("test"), Facts(program), Options(), {})
    folding = [k.lowered for k in plan.kernels.values() if k.lowered.kernel.items is not None]
    for lowered in folding:
        assert lowered.map is None and not lowered.kernel.csrs and lowered.kernel.sizes[0] == "num_E"
        verify(lowered.kernel)
        assert parse(show(lowered.kernel)) == lowered.kernel
        values = given(items, nodes, edges)
        check_kernel(program, lowered, values | {"grad": torch.randn_like(values["x"])}, "sums")
    assert len(folding) == 1


def test_equal_kernels_of_items_are_printed_alike() -> None:
    plans = [make_plan(PlanName("test"), Facts(attention()), Options(), {}) for _ in range(2)]
    first, second = ([print_kernel(k.lowered.kernel) for k in plan.kernels.values()] for plan in plans)
    assert first == second and any("gw_item" in text for text in first)


def test_on_a_gpu_a_batch_has_a_map_of_its_own() -> None:
    plan = make_plan(PlanName("test"), Facts(attention()), options_for("triton", "cuda"), {})
    assert plan.kernels and all(k.lowered.kernel.items is None for k in plan.kernels.values())


# ---------------------------------------------------------------- functions


def diffusion(x: Tensor, weight: Tensor, bias: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(1, dst, torch.tanh(x[:, src] * weight)) + bias


def at_ends(x: Tensor, weight: Tensor, bias: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """Results on the edges of all items, and one number of each item."""
    message = torch.sigmoid(x[:, src] - (x + bias)[:, dst]) * weight
    return message, message.sum((1, 2))


def softmax_of_edges(x: Tensor, weight: Tensor, bias: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    score = (x[:, src] * x[:, dst] * weight).sum(-1)
    index = dst.expand_as(score)
    top = torch.full(x.shape[:2], -torch.inf, dtype=x.dtype).scatter_reduce(1, index, score, "amax")
    score = torch.exp(score - top.detach()[:, dst])
    total = torch.zeros(x.shape[:2], dtype=x.dtype).scatter_add(1, index, score)
    return torch.zeros_like(x).index_add(1, dst, (score / total[:, dst])[..., None] * x[:, src]) + bias


def products(x: Tensor, weight: Tensor, bias: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    """Messages that are multiplied with a matrix on their edges, and rows with another one."""
    mix = torch.linspace(-1, 1, F * F, dtype=x.dtype).view(F, F)
    message = torch.relu((x[:, src] + x[:, dst] * weight) @ mix)
    return torch.tanh(torch.zeros_like(x).index_add(1, dst, message) @ mix + bias)


FUNCTIONS: dict[str, Function] = {f.__name__: f for f in (diffusion, at_ends, softmax_of_edges, products)}
BATCHES = ((3, 7, 19), (2, 5, 5), (4, 9, 30), (5, 4, 2), (2, 2, 9))
"""Numbers of items, nodes and edges."""


def arguments(items: int, nodes: int, edges: int, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    random = torch.Generator().manual_seed(items + nodes + edges)
    shapes = ((items, nodes, F), (edges, F), (nodes, F))
    numbers = [torch.randn(s, dtype=torch.float64, generator=random).requires_grad_() for s in shapes]
    return [*numbers, *(torch.randint(max(nodes, 1), (edges,), generator=random).to(dtype) for _ in range(2))]


def step(f: Function, args: list[Tensor]) -> list[Tensor]:
    """Results, and the gradients of all that has some."""
    args = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
    out = f(*args)
    outs = [out] if isinstance(out, Tensor) else list(out)
    weights = [torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view_as(o) for o in outs]
    loss = sum((o * w).sum() for o, w in zip(outs, weights, strict=True))
    assert isinstance(loss, Tensor)
    grads = torch.autograd.grad(loss, args[:3], allow_unused=True)
    return [*outs, *(torch.zeros_like(a) if g is None else g for a, g in zip(args, grads, strict=False))]


@pytest.mark.parametrize("name", by_default(FUNCTIONS, "diffusion", "products"))
def test_one_compilation_serves_batches_of_all_sizes(name: str) -> None:
    f = FUNCTIONS[name]
    compiled = torch.compile(f, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for sizes in BATCHES:
        args = arguments(*sizes)
        torch.testing.assert_close(step(compiled, args), step(f, args))
    counted = graphweave.counters()
    assert (counted["compilations"], counted["eager_fallbacks"]) == (1, 0)


@pytest.mark.parametrize(
    "sizes", by_default([(1, 6, 9), (2, 1, 3), (3, 4, 1), (3, 4, 0), (0, 4, 6), (2, 0, 0)], (3, 4, 0))
)
def test_sizes_that_have_code_of_their_own(sizes: tuple[int, int, int]) -> None:
    args = arguments(*sizes)
    torch.testing.assert_close(step(graphweave.compile(diffusion), args), step(diffusion, args))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_awkward_graphs_in_a_batch(dtype: torch.dtype) -> None:
    compiled = torch.compile(softmax_of_edges, backend="graphweave", dynamic=True)
    for graph in (g for g in zoo() if g.square):
        args = arguments(3, graph.num_dst, len(graph.dst))
        args[3:] = [graph.src.to(dtype), graph.dst.to(dtype)]
        torch.testing.assert_close(step(compiled, args), step(softmax_of_edges, args))


def test_formats_do_not_grow_with_the_batch() -> None:
    compiled = torch.compile(diffusion, backend="graphweave", dynamic=True)
    held = set()
    for items in (2, 3, 40):
        formats.clear()
        step(compiled, arguments(items, 50, 300))
        held.add(formats.stats()["bytes"])
    assert len(held) == 1


@pytest.mark.parametrize("number", by_default([7, -8, 12], 7))
def test_an_index_out_of_range_of_one_item_is_refused(number: int) -> None:
    compiled = torch.compile(diffusion, backend="graphweave", dynamic=True)
    x, weight, bias, src, dst = arguments(3, 7, 19)
    compiled(x, weight, bias, src - 7, dst)  # counted from the end
    for bad in (src, dst):
        wrong = bad.clone()
        wrong[4] = number
        with pytest.raises(IndexError, match=f"{number}"):
            compiled(x, weight, bias, *((wrong, dst) if bad is src else (src, wrong)))


def test_random_numbers_differ_between_items() -> None:
    def f(x: Tensor, weight: Tensor, bias: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        message = torch.dropout(x[:, src] * weight, 0.5, True)
        return torch.zeros_like(x).index_add(1, dst, message) + bias

    x, weight, bias, src, dst = arguments(2, 7, 60)
    alike = x[:1].detach().repeat(2, 1, 1).requires_grad_()
    out = torch.compile(f, backend="graphweave", dynamic=True)(alike, weight, bias, src, dst)
    assert not torch.equal(out[0], out[1])


WAYS = ("verified", "in 64 bits", "by a schedule", "without maps of items")


@pytest.mark.parametrize("how", by_default(WAYS, "verified"))
def test_other_ways_to_run_such_kernels(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"verify": True} if how == "verified" else {}
    if how == "by a schedule":
        options["schedule"] = graphweave.Schedule(unroll=2, walk="divided", chunks=3)
    if how == "in 64 bits":
        monkeypatch.setattr("graphweave.execute.region_step.INT32_MAX", 8)
    if how == "without maps of items":
        monkeypatch.setattr("graphweave.lower.draft.items_of", lambda *_: None)
    args = arguments(3, 7, 19)
    compiled = torch.compile(softmax_of_edges, backend="graphweave", options=options, dynamic=True)
    torch.testing.assert_close(step(compiled, args), step(softmax_of_edges, args))


def test_edges_of_an_item_that_are_as_many_as_its_rows() -> None:
    """The edges and the rows of all items are then rows of one space, and those of one item are of two."""

    def added_to_the_first(x: Tensor) -> Tensor:
        return x.index_add(1, torch.zeros(x.size(1), dtype=torch.long), x)

    compiled = torch.compile(added_to_the_first, backend="graphweave", dynamic=True)
    graphweave.reset_counters()
    for sizes in ((4, 3), (2, 5)):
        x = torch.randn(*sizes, F, dtype=torch.float64).requires_grad_()
        out, want = compiled(x), added_to_the_first(x)
        torch.testing.assert_close(out, want)
        weights = torch.randn_like(want)
        torch.testing.assert_close(torch.autograd.grad(out, x, weights), torch.autograd.grad(want, x, weights))
    assert graphweave.counters()["eager_fallbacks"] == 0
