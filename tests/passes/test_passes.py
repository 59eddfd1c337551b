"""Rewrites of message programs: what they do, when they do nothing, and that they change no value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphweave.analysis.statistics import Statistics
from graphweave.compiler.road import ROAD
from graphweave.core.choices import Choices
from graphweave.core.types import DType, Space
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import AddMatMul, Pull, Push, Reshape
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.accumulate import Accumulate
from graphweave.passes.pass_facts import Pass, PassFacts
from graphweave.passes.sink_reshape import SinkReshape
from tests.programs.graphs import zoo
from tests.programs.random_programs import inputs, random_program

HEADS = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[8] f32 = input x
%5: V[2, 4] f32 = reshape %4 [2, 4]
%6: E[2, 4] f32 = pull %5, %2
%7: E[8] f32 = reshape %6 [8]
%8: V[8] f32 = push.sum %7, %3
return %8
"""


PRODUCTS = """
space V = s0
space E = s1
%0: V[3] f64 = input x
%1: V[4] f64 = input y
%2: unit[3, 2] f64 = input w
%3: unit[4, 2] f64 = input u
%4: unit[2] f64 = input b
%5: V[2] f64 = matmul %0, %2
%6: V[2] f64 = add %5, %4
%7: V[2] f64 = matmul %1, %3
%8: V[2] f64 = sub %6, %7
return %8
"""


def test_reshapes_sink_below_pull_and_push(golden: Callable[[str, str], None]) -> None:
    golden("message_sink_reshape.txt", show(SinkReshape()(parse(HEADS)).program))


LARGE = PassFacts(
    statistics=Statistics(((Space("E"), 1_000_000), (Space("V"), 100_000), (Space("W"), 100_000))),
    choices=Choices(relabel="degree"),
)
PASSES = {p.name: p for p in (*ROAD.joint, *ROAD.half, *ROAD.prelude)}


@pytest.mark.parametrize("rewrite", PASSES.values(), ids=PASSES)
def test_twice_is_once_and_nothing_to_do_is_the_same_program(rewrite: Pass) -> None:
    for number in range(60):
        program = random_program(number)
        once = rewrite(program, LARGE)
        verify(once.program)
        assert {r for r in program.outputs if r is not None} <= once.where.keys()
        assert rewrite(once.program, LARGE).program is once.program


_ELSEWHERE = (
    "merge",
    "narrow-gathers",
    "to-edges",
    "segment-indices",
    "shard",
    "halo-totals",
    "bucket-sums",
    "mark-calls",
    "pack-rows",
    "split-pairs",
    "symmetric-pairs",
    "given-rows",
)
ON_ANY = {name: p for name, p in PASSES.items() if name not in _ELSEWHERE}
"""Passes for which a sample of random programs suffices. test_horizontal_pass.py, test_narrow_gathers.py,
test_shard_program.py, test_shard.py, test_schedule.py, test_packed.py, test_index_memory.py, test_symmetric_pairs.py
and test_given_rows.py test the others."""


@pytest.mark.parametrize("rewrite", ON_ANY.values(), ids=ON_ANY)
def test_values_stay_what_they_were(rewrite: Pass) -> None:
    changed = 0
    sample = [random_program(number, DType.f64) for number in range(40)]
    for number, program in enumerate([*sample, parse(PRODUCTS)]):
        after = rewrite(program, LARGE).program
        changed += after is not program
        for graph in zoo(number)[::3]:
            given = inputs(program, graph, number)
            for got, want in zip(interp(after, given), interp(program, given), strict=True):
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert changed, "no program of the sample is touched: the test says nothing"


def test_no_move_of_a_reshape_is_left() -> None:
    for number in range(60):
        program = SinkReshape()(random_program(number)).program
        moves = [n for n in program.nodes if isinstance(n, Pull | Push)]
        assert not any(isinstance(program.nodes[n.x], Reshape) for n in moves)


def test_a_sum_of_products_is_accumulated() -> None:
    program = parse(PRODUCTS)
    after = Accumulate()(program).program
    assert [type(n) for n in after.nodes].count(AddMatMul) == 1
    given = {"x": torch.randn(5, 3), "y": torch.randn(5, 4), "w": torch.randn(3, 2), "u": torch.randn(4, 2)}
    given = {name: value.double() for name, value in (given | {"b": torch.randn(2)}).items()}
    torch.testing.assert_close(interp(after, given), interp(program, given))


@pytest.mark.parametrize("output", ["%5", "%7"])
def test_a_product_that_somebody_else_reads_is_left_alone(output: str) -> None:
    text = PRODUCTS.replace("return %8", f"return %8, {output}")
    program = parse(text)
    assert Accumulate()(program).program is program
