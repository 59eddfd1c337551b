"""Horizontal fusion of message programs: the merged program means what the loop meant."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics, with_unions
from graphweave.core.types import Fold
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import MatMul, Program, Push
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.horizontal.merge import Merge
from graphweave.passes.horizontal.to_edges import ToEdges
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.simplify import Simplify
from tests.passes.relation_loops import random_loops
from tests.programs.compare import assert_all_close
from tests.support import features


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 1 << 30))
def test_merging_keeps_what_loops_over_relations_compute(seed: int) -> None:
    program, inputs = random_loops(seed)
    program = Simplify()(program).program
    verify(program)
    want = interp(program, inputs)
    done = Merge()(program, PassFacts(statistics=Statistics((), 10)))
    verify(done.program)
    assert parse(show(done.program)) == done.program
    assert_all_close(interp(done.program, inputs), want, reduction_length=512, floor=1.0)
    to_edges = ToEdges(with_unions(_mostly_nodes(program), done.unions))
    moved = to_edges(Simplify()(done.program).program).program
    verify(moved)
    assert_all_close(interp(moved, inputs), want, reduction_length=512, floor=1.0)


def _mostly_nodes(program: Program) -> Statistics:
    """Row counts of a graph with far more relations x nodes than edges."""
    return Statistics(tuple((s, 1 if s.name.startswith("E") else 1000) for s, _ in program.spaces))


RGCN = """
space V = s0
space E0 = s1
space E1 = s2
%0: V[3] f64 = input x
%1: unit[2, 3, 2] f64 = input w
%2: E0[] i64 = input src0
%3: E0[] i64 = input dst0
%4: E1[] i64 = input src1
%5: E1[] i64 = input dst1
%6: E0 -> V = map %2 to V
%7: E0 -> V = map %3 to V
%8: E1 -> V = map %4 to V
%9: E1 -> V = map %5 to V
%10: E0[3] f64 = pull %0, %6
%11: V[3] f64 = push.sum %10, %7
%12: E1[3] f64 = pull %0, %8
%13: V[3] f64 = push.sum %12, %9
%14: unit[1, 3, 2] f64 = slice %1 dim=0 0:1:1
%15: unit[3, 2] f64 = reshape %14 [3, 2]
%16: unit[1, 3, 2] f64 = slice %1 dim=0 1:2:1
%17: unit[3, 2] f64 = reshape %16 [3, 2]
%18: V[2] f64 = matmul %11, %15
%19: V[2] f64 = matmul %13, %17
%20: V[2] f64 = add %18, %19
return %20
"""


def test_two_relations_become_one_program(golden: Callable[[str, str], None]) -> None:
    """The relations are merged, and moved to edges for a graph of few edges."""
    done = Merge()(parse(RGCN), PassFacts(statistics=Statistics((), 10)))
    few_edges = with_unions(_mostly_nodes(parse(RGCN)), done.unions)
    moved = ToEdges()(done.program, PassFacts(statistics=few_edges)).program
    golden("horizontal_two_relations.txt", f"{show(done.program)}\n# on edges\n{show(moved)}")
    assert not any(isinstance(n, Push) and n.fold is Fold.sum and t.space.name == "U1"  # type: ignore[union-attr]
                   for n, t in zip(moved.nodes, moved.types, strict=True))  # fmt: skip


BLOCKS = """
space V = s0
space E0 = s1
space E1 = s2
%0: V[4] f64 = input x
%1: unit[2, 2, 2, 3] f64 = input w
%2: E0[] i64 = input src0
%3: E0[] i64 = input dst0
%4: E1[] i64 = input src1
%5: E1[] i64 = input dst1
%6: E0 -> V = map %2 to V
%7: E0 -> V = map %3 to V
%8: E1 -> V = map %4 to V
%9: E1 -> V = map %5 to V
%10: E0[4] f64 = pull %0, %6
%11: V[4] f64 = push.sum %10, %7
%12: V[2, 2] f64 = reshape %11 [2, 2]
%13: E1[4] f64 = pull %0, %8
%14: V[4] f64 = push.sum %13, %9
%15: V[2, 2] f64 = reshape %14 [2, 2]
%16: unit[1, 2, 2, 3] f64 = slice %1 dim=0 0:1:1
%17: unit[2, 2, 3] f64 = reshape %16 [2, 2, 3]
%18: unit[1, 2, 2, 3] f64 = slice %1 dim=0 1:2:1
%19: unit[2, 2, 3] f64 = reshape %18 [2, 2, 3]
%20: V[2, 3] f64 = matmul %12, %17
%21: V[2, 3] f64 = matmul %15, %19
%22: V[2, 3] f64 = add %20, %21
return %22
"""


def test_relations_with_blocks_move_to_edges() -> None:
    """A view as blocks between the sum over edges and the product hinders neither the merging nor the move."""
    program = parse(BLOCKS)
    done = Merge()(program, PassFacts(statistics=Statistics((), 10)))
    moved = ToEdges()(done.program, PassFacts(statistics=with_unions(_mostly_nodes(program), done.unions))).program
    verify(moved)
    products = [t for n, t in zip(moved.nodes, moved.types, strict=True) if isinstance(n, MatMul)]
    assert [t.space.name for t in products] == ["U0"]  # type: ignore[union-attr]
    rows = torch.Generator().manual_seed(0)
    ends = {f"{end}{r}": torch.randint(5, (r + 3,), generator=rows) for end in ("src", "dst") for r in range(2)}
    inputs = {**ends, "x": features(5, 4, torch.float64), "w": features(8, 3, torch.float64).view(2, 2, 2, 3)}
    assert_all_close(interp(moved, inputs), interp(program, inputs), reduction_length=8)


def test_few_relations_of_many_nodes_stay_apart() -> None:
    program = parse(TWO_TYPES)
    assert Merge()(program, PassFacts(statistics=Statistics((), 1000))).program is not program
    assert Merge()(program, PassFacts(statistics=Statistics((), 10_000_000))).program is program


TWO_TYPES = """
space V = s0
space W = s1
space E0 = s2
space E1 = s3
%0: V[3] f64 = input x
%1: W[3] f64 = input y
%2: E0[] i64 = input src0
%3: E0[] i64 = input dst0
%4: E1[] i64 = input src1
%5: E1[] i64 = input dst1
%6: E0 -> V = map %2 to V
%7: E0 -> V = map %3 to V
%8: E1 -> W = map %4 to W
%9: E1 -> V = map %5 to V
%10: E0[3] f64 = pull %0, %6
%11: V[3] f64 = push.sum %10, %7
%12: E1[3] f64 = pull %1, %8
%13: V[3] f64 = push.sum %12, %9
%14: V[3] f64 = add %11, %13
return %14
"""


def test_the_two_ends_of_edges_are_no_relations() -> None:
    """Attention scores of one graph pull along two maps of the same edges."""
    program = parse("""
space V = s0
space E = s1
%0: V[2] f64 = input a
%1: V[2] f64 = input b
%2: E[] i64 = input src
%3: E[] i64 = input dst
%4: E -> V = map %2 to V
%5: E -> V = map %3 to V
%6: E[2] f64 = pull %0, %4
%7: E[2] f64 = pull %1, %5
%8: E[2] f64 = add %6, %7
%9: V[2] f64 = push.sum %8, %5
return %9
""")
    assert Merge()(program, PassFacts(statistics=Statistics((), 10))).program is program


def test_copies_of_the_forward_and_of_the_backward_stay_apart() -> None:
    """A layer that is applied again and again gives both halves copies of equal gradients. A copy of the forward that
    was packed with one of the backward would need a tangent."""
    lines = [line for line in BLOCKS.strip().splitlines() if not line.startswith("return")]
    lines += ["%23: unit[3] f64 = input b", "%24: unit[3] f64 = input g"]
    of = [23, 23, 24, 24]
    lines += [f"%{25 + i}: unit[3] f64 = call aten.clone.default(%{x}) serial={1 + i}" for i, x in enumerate(of)]
    program = parse("\n".join([*lines, "return %22, %25, %26, %27, %28"]))
    done = Merge()(program, PassFacts(statistics=Statistics((), 10), tangents=frozenset({"g"}))).program
    assert done is not program
    late = Facts(done).flow.depending(PassFacts(tangents=frozenset({"g"})).tangents_of(done))
    assert [r in late for r in done.outputs if r is not None] == [False, False, False, True, True]
