"""The C++ body of a declared operator, compiled in a kernel and compared with the operator."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import CompileError, ToolchainError
from graphweave.core.log import warn_once
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.execute.build import build_inference
from graphweave.extend.subject import Subject
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Const, Input, Pointwise, Program, Ref, Type
from graphweave.lower.options import options_for

_VALUES = (
    0.0, -0.0, 1e-3, -1e-3, 0.3, -0.3, 0.9, -0.9, 1.0, -1.0, 1.7, -1.7, 2.5, -2.5, 3.0, -3.0, 30.0, -30.0,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
_WIDTH = 7
"""Features of the kernel: a vector and some of another."""

_TOLERANCE = {DType.f64: 1e-8, DType.f32: 1e-4}
_ROWS = Space("rows")


def check_cpp(subject: Subject, op: Op, args: Sequence[Any]) -> None:
    """DeclarationError unless the body compiles and gives the operator's numbers, number by number and in vectors.

    Numbers among the operands are those of `args`. Without a C++ compiler nothing is checked, and no kernel will be
    compiled either; that is warned of.
    """
    numbers = {i: args[i] for i in op.facts.numbers}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of infinities
        _check(subject, op, numbers)


def _check(subject: Subject, op: Op, numbers: dict[int, Any]) -> None:
    cases = {d: values for d in _TOLERANCE if (values := _values(subject, op, d, numbers)) is not None}
    if not cases:
        raise subject.wrong("the operator takes neither float64 nor float32")
    program = _program(op, tuple(cases), numbers)
    try:
        made = build_inference(program, (), {}, options_for("cpp"), {}, verify=False, watches=False)
        if made.plan.refused:
            raise subject.wrong(f"no kernel was made ({'; '.join(made.plan.refused.values())})")
        given = {f"{x}_{d.value}_{k}": v[k] for d, values in cases.items() for x, v in values.items() for k in (0, 1)}
        got = made([given[n.name] for n in made.plan.program.nodes if isinstance(n, Input)])
    except CompileError as error:
        raise subject.wrong(f"the C++ compiler refuses the body: {_told(error)}") from error
    except ToolchainError as error:
        warn_once(f"{subject.said}: its C++ is not checked: {error}")
        return
    for (dtype, wide), result in zip(product(cases, (0, 1)), got, strict=True):
        _compare(subject, op, dtype, {x: v[wide] for x, v in cases[dtype].items()}, numbers, result)


def _program(op: Op, dtypes: Sequence[DType], numbers: dict[int, Any]) -> Program:
    """The operator in each dtype, of numbers and of vectors."""
    build = Builder()
    outputs: list[Ref] = []
    for dtype, (k, shape) in product(dtypes, enumerate(((), (_WIDTH,)))):
        operands = [
            build.add(Const(float(numbers[i]), Type(UNIT, (), dtype))) if i in numbers
            else build.add(Input(f"{'xyz'[i]}_{dtype.value}_{k}", Type(_ROWS, shape, dtype)))
            for i in range(op.facts.arity)
        ]  # fmt: skip
        outputs.append(build.add(Pointwise(op, tuple(operands))))
    return build.program(outputs, [(_ROWS, None)])


def _values(
    subject: Subject, op: Op, dtype: DType, numbers: dict[int, Any]
) -> dict[str, tuple[Tensor, Tensor]] | None:  # fmt: skip
    """By operand, values `[N]` and `[N, width]` that meet in every combination; None for a dtype it does not take."""
    places = [i for i in range(op.facts.arity) if i not in numbers]
    table = torch.tensor(list(product(_VALUES, repeat=len(places))), dtype=TORCH_DTYPE[dtype])
    rolled = torch.stack([table.roll(-k, 0) for k in range(_WIDTH)], 1)
    values = {"xyz"[i]: (table[:, at].contiguous(), rolled[:, :, at].contiguous()) for at, i in enumerate(places)}
    try:
        subject.call(*_operands(op, {x: v[0] for x, v in values.items()}, numbers))
    except (RuntimeError, TypeError, ValueError):
        return None
    return values


def _operands(op: Op, values: dict[str, Tensor], numbers: dict[int, Any]) -> list[Any]:
    return [numbers[i] if i in numbers else values["xyz"[i]] for i in range(op.facts.arity)]


def _compare(
    subject: Subject, op: Op, dtype: DType, values: dict[str, Tensor], numbers: dict[int, Any], got: Tensor
) -> None:  # fmt: skip
    operands = _operands(op, values, numbers)
    (want,) = subject.run(operands)
    if want.shape != got.shape:
        raise subject.wrong(f"of {list(got.shape)} numbers it gives {list(want.shape)}: it is not pointwise")
    allowed = _TOLERANCE[dtype]
    wrong = (~torch.isclose(got, want, rtol=allowed, atol=allowed, equal_nan=True)).flatten().nonzero()
    if not len(wrong):
        return
    at = int(wrong[0])
    numbers_of = (x.flatten()[at].item() if isinstance(x, Tensor) else x for x in operands)
    of = ", ".join(f"{name}={x:g}" for name, x in zip(subject.arguments, numbers_of, strict=True))
    mine, theirs = got.flatten()[at].item(), want.flatten()[at].item()
    raise subject.wrong(f"for {of} its C++ gives {mine:.6g} in {dtype.value}, the operator {theirs:.6g}")


def _told(error: CompileError) -> str:
    """What the compiler says is wrong, without the names of its files."""
    found = dict.fromkeys(re.findall(r"error: (.*)", str(error)))
    return "; ".join([*found][:3]) or str(error)
