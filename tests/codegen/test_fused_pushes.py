"""Pushes that multiply what they fold: what is recognised, what is stored then, and that no value changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.analysis.typed import call_operands, computed_for, pushed_product
from graphweave.core.choices import Choices
from graphweave.core.types import Space
from graphweave.ir.message.nodes import MatMul, Program, Ref
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.lower.schedule import Region, schedule
from graphweave.passes.partition import split
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.recompute import POLICIES, Recompute
from tests.program_support import assert_computes, compiled, names_at
from tests.programs.graphs import EdgeList
from tests.programs.random_programs import draw_inputs

V, R, E = Space("V"), Space("R"), Space("E")
HEAD = """
space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input etype
%2: E[] i64 = input dst
%3: E -> V = map %0 to V
%4: E -> R = map %1 to R
%5: E -> V = map %2 to V
%6: V[4] f32 = input x
%7: R[4, 6] f32 = input w
%8: E[] f32 = input s
%9: E[4] f32 = pull %6, %3
%10: E[6] f32 = matmul %9, %7, %4
"""
PLAIN = "%11: V[6] f32 = push.sum %10, %5 fused\nreturn %11\n"
SCALED = "%11: E[6] f32 = mul %10, %8\n%12: V[6] f32 = push.sum %11, %5 fused\nreturn %12\n"
SHAPED = """%11: E[2, 3] f32 = reshape %10 [2, 3]
%12: E[1, 1] f32 = reshape %8 [1, 1]
%13: E[2, 3] f32 = mul %12, %11
%14: V[2, 3] f32 = push.sum %13, %5 fused
return %14
"""
READ_TOO = "%11: V[6] f32 = push.sum %10, %5 fused\n%12: E[6] f32 = tanh %10\nreturn %11, %12\n"
FUSED = {"as it is": PLAIN, "scaled": SCALED, "through reshapes": SHAPED, "read by others too": READ_TOO}


def program_of(body: str) -> Program:
    program = parse(HEAD + body)
    verify(program)
    assert parse(show(program)) == program
    return program


@pytest.mark.parametrize("body", FUSED.values(), ids=FUSED)
def test_a_fused_push_is_one_kernel_of_the_rows_behind_it(body: str) -> None:
    program = program_of(body)
    (push,) = (r for r in range(len(program.nodes)) if pushed_product(program, r) is not None)
    assert set(call_operands(program, push)) - {8, 12} == {6, 7, 0, 1, 2}  # the rows gathered on the fly, no product
    steps = schedule(Facts(program)).steps
    regions = [step for step in steps if isinstance(step, Region)]
    assert any(10 in region.outputs for region in regions) == (body == READ_TOO)
    assert Region(V, 5, (10, push), (push,)) in regions


@pytest.mark.parametrize("body", FUSED.values(), ids=FUSED)
def test_fusing_changes_no_value(body: str) -> None:
    fused, plain = program_of(body), program_of(body.replace(" fused", ""))
    for program in (fused, plain):  # both are compared with the interpreter, which does not fuse
        assert_computes(compiled(program), program, inputs_of=given_for)


def given_for(program: Program, graph: EdgeList, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    types = torch.randint(3, (len(graph.src),), generator=generator)
    rows = {V: max(graph.num_src, graph.num_dst), R: 3, E: len(graph.src)}
    return draw_inputs(program, rows, {"src": graph.src, "dst": graph.dst, "etype": types}, generator)


@pytest.mark.parametrize(
    "body",
    [
        "%11: V[6] f32 = push.max %10, %5 fused\nreturn %11\n",
        "%11: V[6] f32 = push.sum %10, %5 empty=1.0 fused\nreturn %11\n",
        "%11: E[6] f32 = add %10, %8\n%12: V[6] f32 = push.sum %11, %5 fused\nreturn %12\n",
        "%11: E[6] f32 = mul %10, %10\n%12: V[6] f32 = push.sum %11, %5 fused\nreturn %12\n",
        "%11: unit[4, 6] f32 = input u\n%12: E[6] f32 = matmul %9, %11\n"
        "%13: V[6] f32 = push.sum %12, %5 fused\nreturn %13\n",
        "%11: E -> unit = tounit E\n%12: unit[6] f32 = push.sum %10, %11 fused\nreturn %12\n",
        "%11: V[4] f32 = push.sum %9, %5 fused\nreturn %11\n",
    ],
    ids=["a maximum", "another value without edges", "a sum", "rows", "shared weights", "to unit", "no product"],
)
def test_any_other_push_is_what_it_is_without_the_mark(body: str) -> None:
    program = program_of(body)
    assert all(pushed_product(program, r) is None for r in range(len(program.nodes)))
    regions = [step for step in schedule(Facts(program)).steps if isinstance(step, Region)]
    assert any(10 in step.members for step in regions) == (10 in computed_for(program, program.outputs))


def test_what_a_fused_push_is_computed_from() -> None:
    program = program_of(PLAIN)
    assert 10 not in computed_for(program, [11])
    assert {3, 4, 5, 6, 7, 9} <= computed_for(program, [11])
    assert 10 in computed_for(program, [11, 10])
    assert computed_for(program, [11], frozenset({9})).isdisjoint({6})


def stored_products(program: Program) -> list[Ref]:
    return [r for r in schedule(Facts(program)).stored if isinstance(program.nodes[r], MatMul)]


@pytest.mark.parametrize("recompute", POLICIES)
def test_no_half_stores_the_product_of_a_fused_push(recompute: Recompute) -> None:
    """Values that only a fused push of one half reads are neither saved nor computed by the other half."""
    program = program_of("""%11: E[6] f32 = mul %10, %8
%12: V[6] f32 = push.sum %11, %5 fused
%13: V[6] f32 = tanh %12
%14: V[6] f32 = input g
%15: V[6] f32 = mul %13, %14
%16: E[6] f32 = pull %15, %5
%17: R[6, 4] f32 = permute %7 [1, 0]
%18: E[4] f32 = matmul %16, %17, %4
%19: V[4] f32 = push.sum %18, %3 fused
%20: V[4] f32 = tanh %6
%21: V[4] f32 = mul %19, %20
%22: E[4] f32 = pull %21, %5
%23: E[6] f32 = matmul %22, %7, %4
%24: V[6] f32 = push.sum %23, %3 fused
%25: V[6] f32 = input y
%26: V[6] f32 = sin %25
%27: V[6] f32 = mul %24, %26
return %13, %27
""")
    cut = split(program, 1, PassFacts(tangents=names_at(program, 14), choices=Choices(recompute=recompute)))
    assert not {10, 11, 18, 23} & set(cut.saved)
    assert stored_products(cut.forward.program) == stored_products(cut.backward.program) == []
