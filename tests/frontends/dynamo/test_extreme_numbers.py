"""Numbers at the ends of their types: integers that no float holds, zeros with a sign, NaN and infinities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.codegen.cpp.names import literal as cpp_literal
from graphweave.codegen.triton.names import literal as triton_literal
from graphweave.core.errors import IRError
from graphweave.core.numbers import alike, converted, neutral, rounded, typed
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.loop.nodes import Lit
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Const, Push, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify

I64 = torch.iinfo(torch.int64)
SRC = torch.tensor([1, 2, 3, 4, 0, 2, 5, 6, 1])
DST = torch.tensor([0, 1, 1, 3, 4, 4, 0, 3, 6])
"""Edges between 7 nodes, of which 2 and 5 receive nothing."""

BEYOND = 2**53 + 1
"""The least positive integer that float64 does not hold."""


def through_both_doors(f: Callable[..., Any], *args: Any) -> None:
    """Compares the bits of each result, up to the payload of NaN, and that all of it was compiled."""
    want = f(*args)
    torch._dynamo.reset()
    for compiled in (graphweave.compile(f), torch.compile(f, backend="graphweave")):
        got = compiled(*args)
        for position, (one, other) in enumerate(zip(want, got, strict=True)):
            assert one.dtype == other.dtype, position
            assert torch.equal(bits(one), bits(other)), (position, one, other)


def bits(t: Tensor) -> Tensor:
    if not t.is_floating_point():
        return t
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[t.element_size()]
    return t.nan_to_num(nan=0.5, posinf=math.inf, neginf=-math.inf).view(kind)


# ---------------------------------------------------------------- start values of reductions


def test_start_values_of_reductions_keep_all_64_bits() -> None:
    def f(x: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
        n, e, places = x.size(0), x[src], dst[:, None].expand(-1, 2)
        return [
            x.new_full((n, 2), I64.max).scatter_reduce(0, places, e, "amin"),
            x.new_full((n, 2), I64.min).scatter_reduce(0, places, e, "amax"),
            x.new_full((n, 2), BEYOND).scatter_reduce(0, places, e, "amin"),
            x.new_full((n, 2), -BEYOND).scatter_reduce(0, places, e, "amax", include_self=False),
            x.new_full((n, 2), I64.max - 1).scatter_reduce(0, places, e, "sum", include_self=False),
            x.new_full((n, 2), BEYOND).scatter_reduce(0, places, e, "prod", include_self=False),
            x.new_full((n, 2), BEYOND).scatter_reduce(0, places, e, "sum"),
            x.new_full((n, 2), 2**62 + 3).index_add(0, dst, e),
        ]

    x = torch.tensor([[I64.max - 1, 3], [I64.min + 1, I64.max], [3, I64.min], [2**62, 5], [7, 9], [1, 2], [0, 5]])
    through_both_doors(f, x, SRC, DST)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_reductions_of_each_integer_type_start_at_its_ends(dtype: torch.dtype) -> None:
    info = torch.iinfo(dtype)

    def f(x: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
        n, e = x.size(0), x[src]
        least = x.new_full((n, 2), info.max).index_reduce(0, dst, e, "amin")
        most = x.new_full((n, 2), info.min).index_reduce(0, dst, e, "amax")
        below = x.index_reduce(0, dst, e, "amin")  # a base that is not one number
        return [least, most, below, e.amin(0) + x[dst], e.amax(0) + x[dst], e.amin(1), least + info.max]

    x = torch.tensor([[info.max - 1, 3], [info.min + 1, info.max], [3, info.min], [9, 5], [7, 9], [1, 2], [0, 5]])
    through_both_doors(f, x.to(dtype), SRC, DST)


def test_constants_beyond_floats_in_arithmetic_and_comparisons() -> None:
    def f(x: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
        e = x[src]
        return [
            e + BEYOND, e * BEYOND, e - I64.min, torch.where(e > 3, e, BEYOND), e < BEYOND, e == BEYOND - 1,
            e.clamp(max=BEYOND), e.clamp(min=I64.min + 1), e.masked_fill(e > 3, I64.max), x.index_fill(0, dst, BEYOND),
            torch.full_like(x, BEYOND).to(torch.float32)[src] * 2, torch.full_like(x, 2**40).to(torch.int32)[src] + 1,
            torch.full_like(x, BEYOND).double()[src] * 3, torch.zeros_like(x).index_add(0, dst, e, alpha=BEYOND),
        ]  # fmt: skip

    through_both_doors(f, torch.tensor([I64.max - 1, I64.min + 1, 3, 2**53, 7, 1, BEYOND]), SRC, DST)


def test_numbers_that_a_type_does_not_hold_mean_what_they_mean_in_eager_mode() -> None:
    def f(x: Tensor, y: Tensor, src: Tensor) -> list[Tensor]:
        return [x[src] + 300, x[src] < 300, x[src] > -300, y[src] * 1000, y[src] == 200, y[src] * 0.5]

    x = torch.tensor([255, 0, 44, 200, 7, 1, 2], dtype=torch.uint8)
    through_both_doors(f, x, x.to(torch.int8), SRC)


def test_a_constant_that_was_rounded_stays_rounded() -> None:
    """float32 rounds 0.1, float16 rounds it further; a conversion to a wider type gives none of that back."""

    def f(x: Tensor, src: Tensor) -> list[Tensor]:
        tenth = torch.full((x.size(0),), 0.1, dtype=torch.float32)
        return [tenth.double()[src] * x[src], tenth.half().double()[src] * x[src], tenth.bfloat16().float()[src]]

    through_both_doors(f, torch.arange(7, dtype=torch.float64), SRC)


# ---------------------------------------------------------------- the IRs


def test_numbers_are_typed() -> None:
    assert [typed(1, d) for d in (DType.f32, DType.i8, DType.bool)] == [1.0, 1, True]
    assert type(typed(True, DType.f64)) is float
    assert type(typed(2.0, DType.i32)) is int
    assert typed(2**63 - 1, DType.i64) == 2**63 - 1
    for value, dtype in ((2**63, DType.i64), (256, DType.u8), (-1, DType.u8), (0.5, DType.i32), (math.inf, DType.i64),
                         (math.nan, DType.i8), (2, DType.bool)):  # fmt: skip
        with pytest.raises(IRError, match="is no number of"):
            typed(value, dtype)
    assert neutral(Fold.min, DType.i64) == 2**63 - 1
    assert neutral(Fold.max, DType.u8) == 0
    assert not alike(0.0, -0.0, DType.f64)
    assert alike(math.nan, math.nan, DType.f32)


@pytest.mark.parametrize("after", DType)
@pytest.mark.parametrize("before", DType)
def test_conversions_are_those_of_pytorch(before: DType, after: DType) -> None:
    numbers: tuple[Any, ...] = (0.1, -0.0, 3.7, -2.5, 1e-20, 65519.0, 65520.0, 1e30, -1e39, math.inf, math.nan)
    if not before.is_float:
        numbers = (0, 1, -1, 200, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))
    for number in numbers:
        held = torch.tensor(number, dtype=TORCH_DTYPE[DType.f64 if before.is_float else DType.i64])
        held = held.to(TORCH_DTYPE[before])
        got = converted(held.item(), before, after)
        if got is not None:
            assert alike(got, held.to(TORCH_DTYPE[after]).item(), after), number
        if before.is_float:
            assert alike(rounded(float(number), before), held.item(), before), number


def test_an_integer_survives_text_builder_and_interpreter() -> None:
    text = f"""\
space V = s0
space W = s1
%0: V[2] i64 = input x
%1: V[] i64 = input index
%2: V -> W = map %1 to W
%3: W[2] i64 = push.min %0, %2 empty={2**63 - 1}
%4: W[2] i64 = const {BEYOND}
%5: W[2] i64 = minimum %3, %4
return %3, %5
"""
    program = parse(text)
    verify(program)
    assert show(program) == text
    assert isinstance(push := program.nodes[3], Push) and push.empty == 2**63 - 1
    x, index = torch.full((2, 2), BEYOND + 1), torch.tensor([0, 2])
    least, fewest = interp(program, {"x": x, "index": index}, {Space("W"): 3})
    assert least[:, 0].tolist() == [BEYOND + 1, 2**63 - 1, BEYOND + 1]
    assert fewest[:, 0].tolist() == [BEYOND] * 3


@pytest.mark.parametrize("wrong", ["push.min %0, %2 empty=1.5", "push.min %0, %2 empty=9223372036854775808",
                                   "push.min %0, %2 empty=inf", "push.max %0, %2 empty=true"])  # fmt: skip
def test_a_number_of_another_type_is_refused(wrong: str) -> None:
    text = "space V = s0\nspace W = s1\n%0: V[2] i64 = input x\n%1: V[] i64 = input index\n%2: V -> W = map %1 to W\n"
    with pytest.raises(IRError, match="cannot be a value of i64"):
        verify(parse(f"{text}%3: W[2] i64 = {wrong}\nreturn %3\n"))


def test_pushes_with_other_numbers_are_other_pushes() -> None:
    assert Push(0, 1, Fold.sum) != Push(0, 1, Fold.sum, -0.0)
    assert Push(0, 1, Fold.max, math.nan) == Push(0, 1, Fold.max, math.nan)
    assert Push(0, 1, Fold.sum).is_plain_sum
    assert not Push(0, 1, Fold.sum, -0.0).is_plain_sum
    assert Const(1, Type(UNIT, (), DType.i64)) != Const(1.0, Type(UNIT, (), DType.f64))
    assert Lit(0.0, DType.f32) != Lit(-0.0, DType.f32)


def test_printers_write_the_same_number() -> None:
    assert cpp_literal(2**63 - 1, DType.i64) == "INT64_C(9223372036854775807)"
    assert cpp_literal(-(2**63), DType.i64) == "INT64_MIN"
    assert cpp_literal(255, DType.u8) == "255"
    assert cpp_literal(-0.0, DType.f32) == "(-0.0f)"
    assert triton_literal(BEYOND, DType.i64) == f"tl.full([], {BEYOND}, tl.int64)"
    assert triton_literal(-0.0, DType.f32) == "-0.0"
    # To Triton a bare number that is no normal float32 has 64 bits, and so would what is computed with it.
    assert triton_literal(1e-40, DType.f32) == "tl.full([], 1e-40, tl.float32)"
    assert triton_literal(1e39, DType.f32) == 'float("inf")'
    assert triton_literal(1e-40, DType.f64) == "tl.full([], 1e-40, tl.float64)"


# ---------------------------------------------------------------- zeros with a sign, NaN, infinities

ODD_FLOATS = torch.tensor(
    [[-0.0, 0.0, 1.0], [-0.0, -0.0, -1.0], [0.0, -0.0, math.nan], [math.inf, -math.inf, -0.0], [1e-320, -1e-320, 3.0],
     [-0.0, 1.0, 2.0], [-0.0, -0.0, -0.0]], dtype=torch.float64,
)  # fmt: skip


def test_numbers_that_change_nothing_keep_the_sign_of_zero() -> None:
    def f(x: Tensor, src: Tensor) -> list[Tensor]:
        e = x[src]
        return [
            e + 0.0, 0.0 + e, e + -0.0, e - 0.0, e - -0.0, 0.0 - e, sum([e, -e]), e * 1.0, e * -1.0, e / 1.0,
            e.neg().neg(), e * 0.0, (e.abs() + 0.0) * -1.0, (e + 0.0) / 2, 1 / (e + 0), torch.where(e > 0, e, -0.0),
        ]  # fmt: skip

    through_both_doors(f, ODD_FLOATS, SRC)


def test_limits_keep_the_sign_of_zero() -> None:
    def f(x: Tensor, src: Tensor) -> list[Tensor]:
        e = x[src]
        relu6 = torch.nn.functional.relu6(e)
        return [e.clamp(min=0.0), e.clamp(max=0.0), e.clamp(0.0, 1.0), e.abs().clamp(min=-0.0), e.relu(), relu6]

    through_both_doors(f, ODD_FLOATS, SRC)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_limits_without_a_kernel_keep_the_sign_of_zero(dtype: torch.dtype, fresh_compiler: None) -> None:
    """With one size, a program of numbers that belong to no rows is calls of PyTorch."""
    # In eager mode, PyTorch 2.11 leaves a limit out that is NaN.
    limits = [math.nan] if torch.ones(8, dtype=dtype).clamp(min=math.nan).isnan().all() else []

    def f(x: Tensor) -> list[Tensor]:
        return [
            x.clamp(min=0.0),
            x.clamp(max=0.0),
            x.clamp(-0.0, 1.0),
            torch.nn.functional.relu6(x),
            *[x.clamp(min=limit) for limit in limits],
        ]

    x = ODD_FLOATS.to(dtype).repeat(3, 4)
    compiled = torch.compile(f, backend="graphweave", dynamic=False)
    for one, other in zip(f(x), compiled(x), strict=True):
        assert torch.equal(one.signbit(), other.signbit()) and torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def test_start_values_of_float_reductions() -> None:
    def f(x: Tensor, src: Tensor, dst: Tensor) -> list[Tensor]:
        e, places = x[src], dst[:, None].expand(-1, 3)
        out = [
            x.new_full(x.shape, start).scatter_reduce(0, places, e, kind, include_self=own)
            for start, kind, own in [
                (-0.0, "amax", True), (-0.0, "amin", False), (-0.0, "sum", False), (-0.0, "mean", False),
                (math.nan, "sum", False), (math.nan, "amax", True), (math.inf, "amin", True), (math.inf, "sum", True),
                (-math.inf, "amax", True),
            ]
        ]  # fmt: skip
        written = [x.index_put((dst,), e * 1), x.scatter(0, places, e * 1), x.index_fill(0, dst, -0.0)]
        return [*out, *written, x.new_zeros(x.shape).index_add(0, dst, e)]

    through_both_doors(f, ODD_FLOATS, SRC, DST)


def test_maxima_of_two_zeros_are_the_first() -> None:
    """PyTorch's own result depends on the place in memory: vectors take the second, single numbers the first."""

    def f(x: Tensor, src: Tensor) -> list[Tensor]:
        e = x[src]
        return [torch.maximum(e, e * 0), torch.minimum(e * 0, e)]

    torch._dynamo.reset()
    minus = torch.full((7, 19), -0.0)
    most, least = graphweave.compile(f)(minus, SRC)
    assert most.signbit().all() and least.signbit().all()
    plus = graphweave.compile(lambda x, src: torch.maximum(x[src].abs(), x[src]))(minus, SRC)
    assert not plus.signbit().any()


# ---------------------------------------------------------------- reductions that have no result


@pytest.mark.parametrize("first", [5, 0])
@pytest.mark.parametrize(
    "text", ["(x * 2).amax(0)", "x.amin(0, keepdim=True)", "(x[src] * 2).max(0).values", "x.max()", "x.amin()",
             "x.argmax(0) * 1.0", "(x * 2).min(0).indices", "torch.aminmax(x * 2, dim=0).min"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:graphweave")
def test_extremes_of_no_rows_are_refused_as_in_eager_mode(text: str, first: int) -> None:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def f(x, src):\n    return {text}\n", scope)
    torch._dynamo.reset()
    compiled = graphweave.compile(scope["f"])
    for rows in (first, 6, 0):
        x, src = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True), torch.arange(rows)
        try:
            want = scope["f"](x, src)
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error)):
                compiled(x, src)
        else:
            torch.testing.assert_close(compiled(x, src), want)
