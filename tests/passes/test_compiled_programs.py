"""Random programs, compiled, compute what the interpreter computes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from torch import Tensor

from graphweave.compiler.compile import optimise
from graphweave.core.options import Options
from graphweave.core.types import DType
from graphweave.execute import region_step
from graphweave.ir.message.nodes import Program
from graphweave.ir.message.parse import parse
from tests.program_support import assert_computes, compiled, large
from tests.programs.graphs import EdgeList
from tests.programs.many_maps import many_maps_inputs, many_maps_program
from tests.programs.random_programs import inputs, random_program
from tests.programs.strategies import programs

STARVED = Options(wide=1, stash_width=0, prefetch_bytes=1, prefetch_distance=1)
"""Options far from the default ones."""


def check(number: int) -> None:
    """Checks program `number`, by turns in float32 or float64, and as it is or optimised."""
    program = random_program(number, DType.f64 if number % 2 else DType.f32)
    made = compiled(optimise(program).program if number % 3 else program)
    assert_computes(made, program)


@pytest.mark.parametrize("number", range(20))
def test_program(number: int) -> None:
    check(number)


def check_many_maps(number: int) -> None:
    program = many_maps_program(number, DType.f64 if number % 2 else DType.f32)
    made = compiled(optimise(program).program if number % 3 else program)
    assert_computes(made, program, inputs_of=many_maps_inputs)


@pytest.mark.parametrize("number", range(6))
def test_program_of_many_maps(number: int) -> None:
    check_many_maps(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6, 100))
def test_more_programs_of_many_maps(number: int) -> None:
    check_many_maps(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20, 200))
def test_more_programs(number: int) -> None:
    check(number)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(240, 280))
def test_many_chunks(number: int) -> None:
    program = random_program(number, DType.f64)
    assert_computes(compiled(program), program, [large()])


@pytest.mark.slow
@given(programs(DType.f64))
@settings(max_examples=40)
def test_any_program(program: Program) -> None:
    assert_computes(compiled(program), program)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(200, 240))
def test_options_change_no_result(number: int) -> None:
    program = random_program(number, DType.f64)
    assert_computes(compiled(program, STARVED), program)


@pytest.mark.parametrize("number", range(4, 8))
def test_wide_indices(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the kernels for graphs with more rows or edges than 32 bits count on small graphs."""
    monkeypatch.setattr(region_step, "INT32_MAX", -1)
    check(number)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_spreads_alike(number: int, special: float) -> None:
    """Matrix products are left out, because PyTorch computes them."""
    program = random_program(number, DType.f64)

    def with_special(program: Program, graph: EdgeList, seed: int) -> dict[str, Tensor]:
        given = inputs(program, graph, seed)
        for x in given.values():
            if x.is_floating_point():
                x.view(-1)[::11] = special
        return given

    assert_computes(compiled(program), program, inputs_of=with_special)


# ---------------------------------------------------------------- found by these programs, reduced by hand


def check_text(text: str) -> None:
    program = parse(text)
    assert_computes(compiled(program), program)
    assert_computes(compiled(optimise(program).program), program)


GRAPH = """
space V = s0
space W = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> W = map %1 to W
"""


@pytest.mark.parametrize("fold", ["sum", "mul", "max", "min"])
def test_total_over_no_rows(fold: str) -> None:
    """A total over nodes in a kernel of nodes, one over edges in a kernel of edges, one on the way along a map."""
    check_text(f"""{GRAPH}
%4: V[4] f32 = input x
%5: V -> unit = tounit V
%6: V[4] f32 = tanh %4
%7: unit[4] f32 = push.{fold} %6, %5 empty=-2.5
%8: E -> unit = tounit E
%9: E[4] f32 = pull %6, %2
%10: unit[4] f32 = push.{fold} %9, %8 empty=1.5
%11: W[4] f32 = push.{fold} %9, %3 empty=-1.5
%12: W[1] f32 = input y
return %7, %10, %11, %12
""")


def test_gram_of_a_value_with_itself() -> None:
    check_text(f"""{GRAPH}
%4: V[4] f32 = input x
%5: W[4] f32 = input y
%6: unit[4, 4] f32 = gram %4, %4
return %6, %5
""")


def test_gram_of_shared_data() -> None:
    check_text(f"""{GRAPH}
%4: V[] f32 = input x
%5: W[] f32 = input y
%6: unit[4] f32 = input a
%7: unit[3] f32 = input b
%8: unit[4, 3] f32 = gram %6, %7
%9: unit[4, 4] f32 = gram %6, %6
return %8, %9, %4, %5
""")


def test_degrees_of_a_space_known_by_its_features_only() -> None:
    """Degrees are computed once per graph, from index tensors, which do not tell how many nodes there are."""
    check_text(f"""{GRAPH}
%4: V[2] f32 = input x
%5: W[2] f32 = input y
%6: E[] i64 = const 1
%7: V[] i64 = push.sum %6, %2
%8: V[] f32 = cast %7 f32
%9: V[1] f32 = reshape %8 [1]
%10: V[2] f32 = mul %4, %9
%11: W[] i64 = push.sum %6, %3
return %10, %11, %5
""")


def test_inputs_named_as_kernels_name_their_own() -> None:
    check_text(f"""{GRAPH}
%4: V[2] f32 = input v
%5: V[2] f32 = input k
%6: E[2] f32 = input e
%7: E[2] f32 = input perm
%8: V[2] f32 = input x.1
%9: V[2] f32 = input x_1
%10: W[2] f32 = input add_17
%11: unit[2] f32 = input float
%12: unit[2] f32 = input "2\u00e9 ?"
%13: E[2] f32 = pull %4, %2
%14: E[2] f32 = pull %5, %2
%15: E[2] f32 = pull %8, %2
%16: E[2] f32 = pull %9, %2
%17: E[2] f32 = add %13, %14
%18: E[2] f32 = pull %10, %3
%19: E[2] f32 = mul %17, %6
%20: E[2] f32 = mul %19, %7
%21: E[2] f32 = add %20, %15
%22: E[2] f32 = mul %21, %16
%23: E[2] f32 = add %22, %18
%24: E[2] f32 = mul %23, %11
%25: E[2] f32 = mul %24, %12
%26: W[2] f32 = push.sum %25, %3
return %26
""")


def test_infinity_times_no_edges() -> None:
    """The map is no graph-only one, so its degrees belong to the kernel."""
    check_text(f"""{GRAPH}
%4: E[] i64 = cast %0 i64
%5: W[2] f32 = input y
%6: V[] f32 = input x
%7: E[] f32 = pull %6, %2
%8: E[] f32 = mul %7, %7
%9: E[] i64 = cast %8 i64
%10: unit[] i64 = const 0
%11: E[] i64 = mul %9, %10
%12: E -> W = map %11 to W
%13: E[2] f32 = const inf
%14: E[2] f32 = const 2.5
%15: W[2] f32 = push.sum %13, %12
%16: W[2] f32 = push.sum %14, %12
%17: W[2] f32 = add %5, %16
return %15, %17
""")
