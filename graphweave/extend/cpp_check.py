"""Compiles the C++ body of a declared operator in a kernel and compares it with the operator."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.compiler.compile import compile
from graphweave.compiler.request import Request
from graphweave.core.choices import Choices
from graphweave.core.errors import CompileError, ToolchainError
from graphweave.core.log import warn_once
from graphweave.core.options import options_for
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.execute.build import build
from graphweave.execute.executable import Executable
from graphweave.extend.subject import Subject
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.passes.pass_facts import PassFacts

_VALUES = (
    0.0, -0.0, 1e-3, -1e-3, 0.3, -0.3, 0.9, -0.9, 1.0, -1.0, 1.7, -1.7, 2.5, -2.5, 3.0, -3.0, 30.0, -30.0,
    math.inf, -math.inf, math.nan,
)  # fmt: skip
_WIDTH = 7
"""Number of features of the kernel: a full vector and part of another."""

_TOLERANCE = {DType.f64: 1e-8, DType.f32: 1e-4}
_ROWS = Space("rows")

Cases: TypeAlias = Mapping[DType, Mapping[str, tuple[Tensor, Tensor]]]
"""Numbers `[N]` and the same numbers as rows `[N, width]`, by dtype and operand."""


def check_cpp(subject: Subject, op: Op, tries: Sequence[Sequence[Any]]) -> None:
    """Raise DeclarationError unless the body compiles and returns the operator's numbers, both for scalars and for
    vectors.

    Floats among the operands are those of `tries`, one after the other. Without a C++ compiler nothing is checked, and
    no kernel will be compiled either; a warning says so.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of infinities
        numbers = [{i: float(args[i]) for i in op.facts.numbers} for args in tries]
        cases = {d: values for d in _TOLERANCE if (values := _values(subject, op, d, numbers[0])) is not None}
        if not cases:
            raise subject.wrong("the operator takes neither float64 nor float32. Use rowwise")
        try:
            facts = PassFacts(options=options_for("cpp"), choices=Choices(unseen_edits=False))
            (made,) = build(compile(Request(_program(op, cases), facts)))
            if made.plan.refused:
                raise subject.wrong(
                    f"no kernel was made ({'; '.join(map(str, made.plan.refused.values()))}). Please report it"
                )
            for chosen in numbers:
                _check_numbers(subject, op, made, cases, chosen)
        except CompileError as error:
            raise subject.wrong(f"the C++ compiler refuses the body: {_told(error)}. Correct it") from error
        except ToolchainError as error:
            warn_once(f"{subject.said}: its C++ is not checked ({error}). Install a compiler.")


def _check_numbers(subject: Subject, op: Op, made: Executable, cases: Cases, numbers: Mapping[int, float]) -> None:
    """Compare the kernel with the operator, with these floats as operands."""
    given = {f"{x}_{d.value}_{k}": v[k] for d, values in cases.items() for x, v in values.items() for k in (0, 1)}
    given |= {f"{'xyz'[i]}_{d.value}": torch.tensor(n, dtype=TORCH_DTYPE[d]) for d in cases for i, n in numbers.items()}
    got = made([given[n.name] for n in made.plan.program.nodes if isinstance(n, ir.Input)])
    for (dtype, wide), result in zip(product(cases, (0, 1)), got, strict=True):
        _compare(subject, op, dtype, {x: v[wide] for x, v in cases[dtype].items()}, numbers, result)


def _program(op: Op, dtypes: Iterable[DType]) -> ir.Program:
    """A program that applies the operator in each dtype to numbers and to vectors. Floats are shared by all rows."""
    build = Builder()
    outputs: list[ir.Ref] = []
    for dtype, (k, shape) in product(dtypes, enumerate(((), (_WIDTH,)))):
        operands = [
            build.add(ir.Input(f"{x}_{dtype.value}", ir.Type(UNIT, (), dtype))) if i in op.facts.numbers
            else build.add(ir.Input(f"{x}_{dtype.value}_{k}", ir.Type(_ROWS, shape, dtype)))
            for i, x in enumerate("xyz"[: op.facts.arity])
        ]  # fmt: skip
        outputs.append(build.add(ir.Pointwise(op, tuple(operands))))
    return build.program(outputs, [(_ROWS, None)])


def _values(
    subject: Subject, op: Op, dtype: DType, numbers: Mapping[int, float]
) -> dict[str, tuple[Tensor, Tensor]] | None:  # fmt: skip
    """Values `[N]` and `[N, width]` of each operand in every combination; None for a dtype that the operator does not
    take."""
    places = [i for i in range(op.facts.arity) if i not in numbers]
    table = torch.tensor(list(product(_VALUES, repeat=len(places))), dtype=TORCH_DTYPE[dtype])
    rolled = torch.stack([table.roll(-k, 0) for k in range(_WIDTH)], 1)
    values = {"xyz"[i]: (table[:, at].contiguous(), rolled[:, :, at].contiguous()) for at, i in enumerate(places)}
    try:
        subject.call(*_operands(op, {x: v[0] for x, v in values.items()}, numbers))
    except (RuntimeError, TypeError, ValueError):
        return None
    return values


def _operands(op: Op, values: dict[str, Tensor], numbers: Mapping[int, float]) -> list[object]:
    return [numbers[i] if i in numbers else values["xyz"[i]] for i in range(op.facts.arity)]


def _compare(
    subject: Subject, op: Op, dtype: DType, values: dict[str, Tensor], numbers: Mapping[int, float], got: Tensor
) -> None:  # fmt: skip
    operands = _operands(op, values, numbers)
    (want,) = subject.run(operands)
    if want.shape != got.shape:
        raise subject.wrong(
            f"of {list(got.shape)} numbers it gives {list(want.shape)}: it is not pointwise. Use rowwise"
        )
    allowed = _TOLERANCE[dtype]
    wrong = (~torch.isclose(got, want, rtol=allowed, atol=allowed, equal_nan=True)).flatten().nonzero()
    if not len(wrong):
        return
    at = int(wrong[0])
    numbers_of = (x.flatten()[at].item() if isinstance(x, Tensor) else x for x in operands)
    of = ", ".join(f"{name}={x:g}" for name, x in zip(subject.arguments, numbers_of, strict=True))
    mine, theirs = got.flatten()[at].item(), want.flatten()[at].item()
    raise subject.wrong(f"for {of} its C++ gives {mine:.6g} in {dtype.value}, the operator {theirs:.6g}. Correct it")


def _told(error: CompileError) -> str:
    """The compiler's report, without the names of its files."""
    found = dict.fromkeys(re.findall(r"error: (.*)", str(error)))
    return "; ".join([*found][:3]) or str(error)
