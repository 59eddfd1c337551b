"""Values of edges behind products of matrices that several walks read: which are stored, and what is computed."""

from __future__ import annotations

import pytest

from graphweave.analysis.facts import Facts
from graphweave.ir.message.parse import parse
from graphweave.lower.schedule import Region, schedule
from tests.program_support import assert_computes, compiled
from tests.programs.graphs import zoo

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
    FORCE.replace("space E = s1", "space E = s1\nspace W = s2")
    + """
%15: E[] i64 = input third
%16: E -> W = map %15 to W
%17: W[WIDTH] f64 = push.sum %12, %16
return %13, %14, %17
"""
)


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


@pytest.mark.parametrize("width", [3, 64])
def test_results(width: int) -> None:
    program = parse(FORCE.replace("WIDTH", str(width)) + "return %13, %14\n")
    assert_computes(compiled(program), program, [graph for graph in zoo() if graph.square])
