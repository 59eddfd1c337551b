"""Values of edges that one walk stores for the others, since these would pay more to compute them again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.parse import parse
from graphweave.lower.schedule import Region, schedule
from tests.captures import capture
from tests.layout_support import DOORS, compare
from tests.program_support import assert_computes, compiled
from tests.programs.graphs import zoo
from tests.support import by_default, features, random_graph

FORCE = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[8] f64 = input x
%5: unit[8, 40] f64 = input w
%6: unit[40, WIDTH] f64 = input u
%7: E[8] f64 = pull %4, %2
%8: E[8] f64 = pull %4, %3
%9: E[8] f64 = sub %7, %8
%10: E[40] f64 = matmul %9, %5
%11: E[40] f64 = tanh %10
%12: E[WIDTH] f64 = matmul %11, %6
%13: V[WIDTH] f64 = push.sum %12, %2
%14: V[WIDTH] f64 = push.sum %12, %3
"""
"""A network of the two ends of an edge, whose result both of them get."""

THIRD_WALK = (
    FORCE
    + """%15: E[WIDTH] f64 = pull %13, %3
%16: E[WIDTH] f64 = mul %15, %12
%17: V[WIDTH] f64 = push.sum %16, %2
return %14, %17
"""
)
"""A second round needs the network again, after the first one."""


@pytest.mark.parametrize(("width", "stored"), [(1, True), (3, True), (4, False)])
def test_a_narrow_value_is_stored_for_two_walks(width: int, stored: bool) -> None:
    program = parse(FORCE.replace("WIDTH", str(width)) + "return %13, %14\n")
    facts = Facts(program)
    assert facts.stored_rows == (frozenset([12]) if stored else frozenset())
    found = [s for s in schedule(facts).steps if isinstance(s, Region)]
    with_products = [s for s in found if {10, 12} & {i for m in s.members for i in _computed(facts, m)}]
    assert len(with_products) == (1 if stored else 2)


def _computed(facts: Facts, ref: int) -> tuple[int, ...]:
    stored = schedule(facts).stored
    return (ref, *facts.cones.needs(ref, stored, through=facts.cones.on_edges(ref)).inner)


def test_a_wide_value_is_stored_for_three_walks() -> None:
    assert Facts(parse(THIRD_WALK.replace("WIDTH", "64"))).stored_rows == {12}
    cheap = THIRD_WALK.replace("WIDTH", "64").replace("40", "16")
    assert Facts(parse(cheap)).stored_rows == frozenset()


def test_along_one_map_nothing_is_repeated() -> None:
    program = FORCE.replace("WIDTH", "3").replace("push.sum %12, %3", "push.max %12, %2 empty=0.0")
    assert Facts(parse(program + "return %13, %14\n")).stored_rows == frozenset()


def test_the_walk_that_stores_a_value_goes_on_with_it() -> None:
    """One kernel multiplies, writes the rows, and adds them up; the others read what it wrote."""
    facts = Facts(parse(THIRD_WALK.replace("WIDTH", "64")))
    order = schedule(facts)
    first, *others = (s for s in order.steps if isinstance(s, Region))
    assert set(first.members) == {12, 14} == set(first.outputs) and len(others) == 2
    for region in others:
        (push,) = region.members
        assert facts.cones.needs(push, order.stored, through=True).same == (12,)


BACKWARD = """
%15: V[64] f64 = input tangent
%16: E[64] f64 = pull %15, %2
%17: E[64] f64 = mul %16, %12
%18: V[64] f64 = push.sum %17, %3
%19: V[64] f64 = push.sum %17, %2
"""


@pytest.mark.parametrize(("second", "saved"), [("push.sum %12, %3", {12}), ("push.max %12, %2 empty=0.0", set())])
def test_the_backward_gets_what_the_forward_stores_for_itself(second: str, saved: set[int]) -> None:
    """An ordinary step needs the value in one walk of the forward, and saves no rows of edges x features."""
    forward = FORCE.replace("WIDTH", "64").replace("push.sum %12, %3", second)
    facts = Facts(parse(f"{forward}{BACKWARD.strip()}\nreturn %13, %14, %18, %19\n"))
    assert facts.saved_rows(frozenset([15])) == saved


@pytest.mark.parametrize(
    ("source", "width"), [(FORCE + "return %13, %14\n", 3), (THIRD_WALK, 64)], ids=["two walks", "three walks"]
)
def test_results(source: str, width: int) -> None:
    program = parse(source.replace("WIDTH", str(width)))
    assert_computes(compiled(program), program, [graph for graph in zoo() if graph.square])


def sinkhorn(x: Tensor, edge_index: Tensor, rounds: int = 6) -> Tensor:
    """Scores of edges, normalised by source and by destination in turns."""
    src, dst = edge_index
    w = (x[src] * x[dst]).sum(-1).tanh().exp()
    for at in (src, dst) * rounds:
        w = w / (w.new_zeros(x.shape[0]).index_add(0, at, w)[at] + 0.1)
    return torch.zeros_like(x).index_add(0, dst, w[:, None] * x[src])


def attention(x: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    w = (x[src] * x[dst]).sum(-1).exp()
    w = w / w.new_zeros(x.shape[0]).index_add(0, dst, w)[dst]
    return torch.zeros_like(x).index_add(0, dst, w[:, None] * x[src])


def kept_in(layer: object) -> list[ir.Node]:
    (captured,) = capture(layer, features(7, 8, torch.float64).requires_grad_(), random_graph(7, 7, 20))  # type: ignore[arg-type]
    program = captured.imported.program
    kept = Facts(program).stored_rows
    assert all(isinstance(t := program.types[r], ir.Type) and t.space != UNIT and numel(t.shape) == 1 for r in kept)
    return [program.nodes[r] for r in kept]


@pytest.mark.usefixtures("fresh_compiler")
def test_scores_of_many_rounds_are_kept_and_those_of_attention_are_not() -> None:
    assert kept_in(sinkhorn) and not kept_in(attention)


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("door", by_default(DOORS, "torch.compile"))
def test_values_and_gradients(door: str) -> None:
    sizes = ((7, 20), (5, 3), (3, 9))
    compare(sinkhorn, [(features(n, 8, torch.float64, seed=n), random_graph(n, n, e)) for n, e in sizes], door)


@pytest.mark.usefixtures("fresh_compiler")
def test_no_edges_and_few() -> None:
    sizes = ((1, 0), (1, 1), (2, 2), (0, 0))
    compare(sinkhorn, [(features(n, 8, torch.float64), random_graph(n, n, e)) for n, e in sizes], "graphweave.compile")
