"""The order of a program's steps in which the fewest bytes exist at once."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.analysis.statistics import Statistics
from graphweave.core.operators import Op
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Concat, Input, MatMul, Pointwise, Program, Type
from graphweave.lower import memory_order
from graphweave.lower.dependencies import StepNodes, dependencies
from graphweave.lower.memory_order import least_memory
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NODES, WIDE = 60, 320  # products this wide are calls of PyTorch
V = Space("V")
SIZES = Statistics(((V, 1 << 20),))


@pytest.fixture
def for_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_order, "MIN_PEAK", 0)


def branches(x: Tensor, ends: list[Tensor], weights: list[Tensor]) -> Tensor:
    """Sums of messages of wide products, all products first."""
    products = [x @ w for w in weights]
    sums = [
        torch.zeros(x.shape[0], WIDE, dtype=x.dtype).index_add(0, dst, product[src].relu())
        for product, (src, dst) in zip(products, ends, strict=True)
    ]
    return torch.stack([s.relu().sum(1) for s in sums]).sum(0)


@pytest.fixture
def args() -> tuple[Tensor, list[Tensor], list[Tensor]]:
    ends = [random_graph(NODES, NODES, 200, seed=i) for i in range(4)]
    return features(NODES, 16), ends, [features(16, WIDE, seed=i) for i in range(4)]


def _peak(args: tuple[Any, ...]) -> int:
    with torch.no_grad():
        report = graphweave.explain(graphweave.compile(branches, options={"merge": False}), *args)
    return max(note.during for graph in report.graphs for note in graph.memory)


def test_wide_products_are_made_where_they_are_read(monkeypatch: pytest.MonkeyPatch, args: tuple[Any, ...]) -> None:
    wide = NODES * WIDE * 4
    assert _peak(args) > 4 * wide
    monkeypatch.setattr(memory_order, "MIN_PEAK", 0)
    assert _peak(args) < 1.5 * wide


@pytest.mark.usefixtures("for_small_steps")
@pytest.mark.parametrize("door", by_default(["graphweave", "plain"], "plain"))
def test_results_and_gradients_are_those_of_eager_mode(door: str, args: tuple[Any, ...]) -> None:
    x, ends, weights = args
    options: dict[str, Any] = {"merge": False}
    compiled = (
        graphweave.compile(branches, options=options)
        if door == "graphweave"
        else torch.compile(branches, backend="graphweave", options=options)
    )
    assert_matches(compiled, branches, x.requires_grad_(), ends, [w.requires_grad_() for w in weights])


def _random_program(seed: int) -> tuple[Program, list[StepNodes]]:
    """Products of one or two earlier values, of random widths, each a step by itself."""
    chosen, build = random.Random(seed), Builder()
    widths = {build.add(Input("x", Type(V, (4,), DType.f32))): 4}
    steps = list[StepNodes]()
    for i in range(6):
        read = chosen.sample(list(widths), min(len(widths), chosen.choice([1, 1, 2])))
        rows = build.add(Concat(tuple(read), 0)) if len(read) > 1 else read[0]
        width = chosen.choice([2, 16, 64, 128])
        matrix = build.add(Input(f"w{i}", Type(UNIT, (sum(widths[r] for r in read), width), DType.f32)))
        made = build.add(MatMul(rows, matrix))
        steps.append(StepNodes((rows, made) if len(read) > 1 else (made,), (made,)))
        widths[made] = width
    return build.program([steps[-1].stored[0]], [(V, 1 << 20)]), steps


@pytest.mark.usefixtures("for_small_steps")
@pytest.mark.parametrize("seed", range(12))
def test_no_order_has_a_lower_peak(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_order, "_GAIN", 0.0)
    program, made = _random_program(seed)
    steps = list(enumerate(made))
    found = least_memory(program, steps, SIZES, frozenset())

    def peak(order: Any) -> int:
        return memory_order._OrderSearch(program, made, SIZES, frozenset()).peak(order)

    needed = [{j for j, other in enumerate(made) if set(other.stored) & _read(program, m)} for m in made]
    orders = (o for o in permutations(range(len(made))) if all(needed[i] <= set(o[:at]) for at, i in enumerate(o)))
    assert peak(range(len(made)) if found is None else found) == min(map(peak, orders))


def _read(program: Program, made: StepNodes) -> set[int]:
    found = set[int]()
    for r in made.nodes:
        node = program.nodes[r]
        found.update(node.xs if isinstance(node, Concat) else (node.x,) if isinstance(node, MatMul) else ())
    return found


def test_small_steps_and_unknown_sizes_keep_their_order() -> None:
    program, made = _random_program(0)
    steps = list(enumerate(made))
    assert least_memory(program, steps, None, frozenset()) is None
    assert least_memory(program, steps, Statistics(((V, 10),)), frozenset()) is None


@pytest.mark.usefixtures("for_small_steps")
def test_readers_of_a_product_wait_for_the_step_that_stores_it() -> None:
    """A fused push computes its product again. A reader of the stored product waited for the push, which may wait for
    the reader: then no order was found, and the graph ran eagerly."""
    build = Builder()
    x, w = build.add(Input("x", Type(V, (4,), DType.f32))), build.add(Input("w", Type(UNIT, (4, 4), DType.f32)))
    product = build.add(MatMul(x, w))
    read = build.add(Pointwise(Op.exp, (product,)))
    again = build.add(Pointwise(Op.mul, (product, read)))
    program = build.program([again], [(V, 1 << 20)])
    made = [StepNodes((product,), (product,)), StepNodes((read,), (read,)), StepNodes((product, again), (again,))]
    assert dependencies(program, made) == [set(), {0}, {1}]
    assert least_memory(program, list(enumerate(made)), SIZES, frozenset()) is None, "there is no other order"
