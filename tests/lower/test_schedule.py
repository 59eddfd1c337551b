"""Schedules of random programs: every needed value is computed once, and is there when it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from graphweave.analysis.cones import map_type, space_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.typed import call_operands
from graphweave.compiler.compile import optimise
from graphweave.core.options import Target, options_for
from graphweave.core.types import UNIT
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Gram, Input, Program, Push, Ref
from graphweave.ir.message.parse import parse
from graphweave.lower.mark_calls import MarkCalls
from graphweave.lower.schedule import Region, StepOrder, TorchCall, demand, schedule
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.recompute import recomputed
from tests.programs.many_maps import many_maps_program
from tests.programs.random_programs import random_program

PROGRAMS = 300


def subjects(part: int) -> Iterator[tuple[str, Program]]:
    """Every fourth of the programs, as it is and optimised."""
    for number in range(part, PROGRAMS, 4):
        program = random_program(number)
        yield f"program {number}", program
        yield f"program {number}, optimised", optimise(program).program
        yield f"program {number} of many maps", many_maps_program(number)


def members(step: Region | TorchCall) -> tuple[Ref, ...]:
    return step.members if isinstance(step, Region) else (step.ref,)


def leaves(program: Program, refs: Iterable[Ref], stored: frozenset[Ref]) -> set[Ref]:
    """The tensors on which `refs` depend: inputs and stored values. Everything else is computed where it is used."""
    found: set[Ref] = set()
    for ref in refs:
        node = program.nodes[ref]
        found |= {ref} if ref in stored or isinstance(node, Input) else leaves(program, operands(node), stored)
    return found


@pytest.mark.parametrize("part", range(4))
def test_every_demanded_node_is_computed_once(part: int) -> None:
    for name, program in subjects(part):
        facts = Facts(program)
        given = facts.hoist.values
        order = schedule(facts, given)
        computed = [r for step in order.steps for r in members(step)]
        assert sorted(computed) == sorted(demand(facts, frozenset(given), facts.row_products)), name
        assert schedule(Facts(program), given) == order, name


@pytest.mark.parametrize("part", range(4))
def test_every_read_is_available(part: int) -> None:
    """Kernels read what earlier steps stored, or their own members at the same row that they compute before."""
    for name, program in subjects(part):
        facts = Facts(program)
        given = facts.hoist.values
        order = schedule(facts, given)
        there = {*given, *(r for r, n in enumerate(program.nodes) if isinstance(n, Input))}
        for step in order.steps:
            if isinstance(step, Region):
                reads = region_reads(facts, step, order)
            else:
                reads = leaves(program, call_operands(program, step.ref), order.stored)
            assert reads <= there, f"{name}: {step} reads {reads - there} too early"
            there.update(step.outputs if isinstance(step, Region) else (step.ref,))
        assert leaves(program, [r for r in program.outputs if r is not None], order.stored) <= there, name


@pytest.mark.parametrize("part", range(4))
def test_regions_fit_their_rows(part: int) -> None:
    """Members are values of the rows or of the map's edges, pushes along the map, or totals over either."""
    for name, program in subjects(part):
        facts = Facts(program)
        for step in schedule(facts, facts.hoist.values).steps:
            if not isinstance(step, Region):
                continue
            assert set(step.outputs) <= set(step.members), name
            edges = None if step.map is None else map_type(program, step.map).dom
            for r in step.members:
                node = program.nodes[r]
                if isinstance(node, Gram):
                    rows = step.rows if r in step.products else edges
                    assert space_of(program, node.x) == rows, f"{name}: {step}"
                elif not isinstance(node, Push):
                    on_edges = step.map is not None and facts.cones.walks_along(r) == step.map
                    assert space_of(program, r) == (edges if on_edges else step.rows), f"{name}: {step}"
                    assert not on_edges or r in step.outputs, f"{name}: {step}"
                elif map_type(program, node.map).cod == UNIT:
                    assert map_type(program, node.map).dom in (step.rows, edges), f"{name}: {step}"
                else:
                    assert node.map == step.map, f"{name}: {step}"


def test_a_row_wise_node_waits_for_what_it_reads_at_other_rows() -> None:
    """%8 reads %7 at other rows, so %9 cannot join the kernel of %7, of which it reads the same row."""
    program = parse("""
space V = s0
space E = s1
%0: E[] i64 = input dst
%1: V[] i64 = input parent
%2: E -> V = map %0 to V
%3: V -> V = map %1 to V
%4: E[4] f32 = input x
%5: E[4] f32 = tanh %4
%6: V[4] f32 = input y
%7: V[4] f32 = push.sum %5, %2
%8: V[4] f32 = pull %7, %3
%9: V[4] f32 = add %7, %8
return %9
""")
    first, *others = schedule(Facts(program)).steps
    assert isinstance(first, Region) and first.members == first.outputs == (7,)
    assert [r for step in others for r in members(step)] == [8, 9]


def region_reads(facts: Facts, region: Region, order: StepOrder) -> set[Ref]:
    """The values that the region reads from outside. Fails if a member is read at a row that is not the reader's."""
    program, cones = facts.program, facts.cones
    reads: set[Ref] = set()
    done: set[Ref] = set()
    for ref in region.members:
        node = program.nodes[ref]
        push = isinstance(node, Push)
        of_edges = region.map is not None and cones.walks_along(ref) == region.map
        n = cones.needs(ref, order.stored, through=cones.is_push(ref) or of_edges)
        on_edges = of_edges or (push and region.map is not None and map_type(program, node.map).dom != region.rows)
        on_edges = on_edges or (isinstance(node, Gram) and ref not in region.products)
        own = {y for y, m in n.pulls if m == region.map} if on_edges else set(n.same)
        other = {y for y, m in n.pulls if not on_edges or m != region.map} | set(n.shared)
        other |= set(n.same) if on_edges else set()
        inner = own & set(region.members)
        assert inner <= done, f"{region}: %{ref} reads members that come later"
        assert not other & set(region.members), f"{region}: %{ref} reads members at other rows"
        reads |= (own - inner) | other
        reads |= leaves(program, {m for _, m in n.pulls} | ({node.map} if push else set()), order.stored)
        done.add(ref)
    return reads


def test_a_value_of_edges_with_two_wide_ends_is_computed_under_the_rows_of_one() -> None:
    """An SDDMM walks the edges of each destination, whose row stays in cache; one narrow end is no reason to."""
    text = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[64] f32 = input x
%5: V[WIDTH] f32 = input y
%6: E[64] f32 = pull %4, %2
%7: E[WIDTH] f32 = pull %5, %3
%8: E[64] f32 = mul %6, %7
%9: E[] f32 = reduce.sum %8 [0]
return %9
"""
    (wide,) = schedule(Facts(parse(text.replace("WIDTH", "64")))).steps
    assert isinstance(wide, Region) and wide.rows.name == "V" and wide.map == 3 and wide.members == (9,)
    narrow = [s for s in schedule(Facts(parse(text.replace("WIDTH", "1")))).steps if isinstance(s, Region)]
    assert [(s.rows.name, s.map) for s in narrow] == [("E", None)]


ON_EDGES = """
space V = s0
space E = s1
space R = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E[] i64 = input type
%3: E -> V = map %0 to V
%4: E -> V = map %1 to V
%5: E -> R = map %2 to R
%6: V[8] TYPE = input x
%7: unit[8, 32] TYPE = input shared
%8: R[32, WIDTH] TYPE = input typed
%9: E[8] TYPE = pull %6, %3
%10: E[8] TYPE = relu %9
%11: E[32] TYPE = matmul %10, %7
%12: E[32] TYPE = tanh %11
%13: E[WIDTH] TYPE = matmul %12, %8, %5
%14: V[WIDTH] TYPE = push.sum %13, %4
return %14
"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("width", "target"), [(4, "cpp"), (513, "cpp"), (4, "triton"), (513, "triton")])
def test_products_that_no_kernel_of_the_target_multiplies_are_calls(width: int, target: Target, dtype: str) -> None:
    """Work before and after these products stays in kernels."""
    options = options_for(target)
    given = PassFacts(options=options)
    program = MarkCalls()(parse(ON_EDGES.replace("TYPE", dtype).replace("WIDTH", str(width))), given).program
    called = width > 512 and target == "cpp"
    assert {r for r, n in enumerate(program.nodes) if getattr(n, "called", False)} == ({13} if called else set())
    assert MarkCalls()(program, given).program is program
    steps = schedule(Facts(program), options=options).steps
    assert [s.ref for s in steps if isinstance(s, TorchCall)] == ([13] if called else [])
    assert {12, 14} <= {r for s in steps if isinstance(s, Region) for r in members(s)} or not called
    assert recomputed("auto", Facts(program), 11)


def test_a_total_that_edges_need_is_complete_before_them() -> None:
    """Totals over edges are placed last, but every edge's %9 depends on %5 (random program 140)."""
    program = parse("""
space V = s0
space E = s1
%0: E[] i64 = input dst
%1: E -> V = map %0 to V
%2: E[] f32 = input e
%3: unit[] f32 = const -0.5
%4: E -> unit = tounit E
%5: unit[] f32 = push.min %2, %4 empty=1.0
%6: unit[] bool = lt %5, %3
%7: E[31] f32 = input y
%8: E[31] f32 = where %6, %7, %3
%9: V[31] f32 = push.sum %8, %1
return %9
""")
    facts = Facts(program)
    order = schedule(facts, ())
    for step in order.steps:
        if isinstance(step, Region):
            region_reads(facts, step, order)
    steps = [step.members if isinstance(step, Region) else (step.ref,) for step in order.steps]
    assert [5 in members for members in steps].index(True) < [9 in members for members in steps].index(True)


STATISTICS = """
space V = ?
space E = ?
%0: V[32] f32 = input x
%1: unit[] f32 = input count
%2: unit[2, 16] f32 = input running
%3: V -> unit = tounit V
%4: unit[32] f32 = push.sum %0, %3 empty=0.0
%5: unit[32] f32 = div %4, %1
%6: unit[32] f32 = reshape %2 [32]
%7: unit[32] f32 = add %6, %5
%8: V -> unit = tounit V
%9: V[32] f32 = pull %5, %8
%10: V[32] f32 = sub %0, %9
%11: V[32] f32 = exp %10
%12: unit[32] f32 = push.sum %11, %3 empty=0.0
return %7, %11, %12
"""


def test_shared_data_between_two_kernels_is_a_kernel() -> None:
    """Its views are looked through. Behind the last kernel it is a call of PyTorch."""
    program = parse(STATISTICS)
    order = schedule(Facts(program))
    regions = [step for step in order.steps if isinstance(step, Region)]
    assert [(r.rows.name, r.members) for r in regions] == [("V", (4,)), ("unit", (5, 7)), ("V", (9, 10, 11, 12))]
    assert len(order.steps) == 3
    behind = parse(STATISTICS.replace("sub %0, %9", "neg %0"))
    order = schedule(Facts(behind))
    assert [step.ref for step in order.steps if isinstance(step, TorchCall)] == [5, 7]
