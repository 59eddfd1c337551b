"""Errors of a step's values against float64, judged by those that eager mode makes in its own precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.certificate.step import StepValues

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}
"""Relative error that is always allowed. Sums in another order differ by a few roundings for each addition."""

TIMES_EAGER = 4.0
"""An error that is larger may be this many times eager mode's own."""

LARGEST = 1e-2
"""Eager mode's own error, of a program that loses digits in its precision, allows a relative error up to this one.
Where it is larger, the numbers must be those of eager mode, or lie within what the rounding of inputs explains."""

NOISE_FLOOR = 1e-2
"""Errors of a gradient are relative to at least this fraction of the largest gradient of the program, and a number's
units in the last place to at least this fraction of the largest number.

Gradients that are zero in exact arithmetic (a bias before batch norm, a softmax shift) hold rounding noise only.
"""


@dataclass(frozen=True, slots=True)
class Errors:
    """The largest difference from float64: in itself, relative to the largest number of the tensor, and in units in the
    last place of each number."""

    absolute: float = 0.0
    relative: float = 0.0
    ulps: float = 0.0


@dataclass(frozen=True, slots=True)
class ValueCheck:
    """A result, a gradient or a tensor changed in place: how far it is from float64, compiled and in eager mode.

    `data` numbers the arguments, of which 0 are the first. `allowed` bounds the compiled program's relative error.
    `ties` numbers differ by more, as those of eager mode do, or as they may if its inputs are rounded otherwise, since
    rounding decides a comparison, such as which of two numbers is the maximum. `problem` says what is wrong, and is
    empty if nothing is.
    """

    name: str
    data: int
    shape: tuple[int, ...]
    dtype: str
    compiled: Errors
    eager: Errors
    allowed: float
    ties: int = 0
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem


Spread = Callable[[str], Tensor]
"""Name of a value -> how much each of its numbers changes when the inputs of eager mode are rounded otherwise."""


def judge(
    compiled: StepValues, eager: StepValues, exact: StepValues, spread: Spread, data: int = 0
) -> Iterator[ValueCheck]:
    """Compare a compiled step with eager mode, and both with float64. All have the same seed."""
    gradients = compiled.gradients | eager.gradients | exact.gradients
    largest = max((_magnitude(exact.tensors[name]) for name in exact.gradients), default=0.0)
    for name in dict.fromkeys([*eager.tensors, *exact.tensors, *compiled.tensors]):
        ours, own, wide = (values.tensors.get(name) for values in (compiled, eager, exact))
        known = own if own is not None else wide if wide is not None else ours
        assert known is not None
        if name in gradients:  # a gradient that is missing counts as zeros
            ours, own, wide = (torch.zeros_like(known) if x is None else x for x in (ours, own, wide))
        if ours is None:
            yield _lost(name, data, known, "is missing; eager mode has it")
        elif own is None:
            yield _lost(name, data, known, "is not there in eager mode")
        else:
            floor = NOISE_FLOOR * largest if name in gradients else 0.0
            yield _judged(name, data, ours, own, own if wide is None else wide, floor, spread)


def _lost(name: str, data: int, value: Tensor, problem: str) -> ValueCheck:
    return ValueCheck(name, data, tuple(value.shape), _dtype(value), Errors(), Errors(), 0.0, 0, problem)


def _judged(
    name: str, data: int, compiled: Tensor, eager: Tensor, exact: Tensor, floor: float, spread: Spread
) -> ValueCheck:
    """`floor`: errors are relative to at least this magnitude."""
    if compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        got, want = (f"{_dtype(x)} {list(x.shape)}" for x in (compiled, eager))
        return _lost(name, data, compiled, f"is {got}; in eager mode it is {want}")
    tolerance = TOLERANCE.get(_real(eager.dtype), 0.0)
    ours, theirs = (_Difference(x, eager, exact, floor, tolerance) for x in (compiled, eager))
    allowed = max(tolerance, min(TIMES_EAGER * theirs.errors.relative, LARGEST) if tolerance else 0.0)
    beyond = ours.beyond(allowed)
    wrong = beyond & _Difference(compiled, eager, eager, floor, tolerance).beyond(allowed)
    if wrong.any():
        wrong = wrong & ours.beyond(allowed, TIMES_EAGER * spread(name))
    ties, problem = int((beyond & ~wrong).sum()), _problem(wrong, ours, compiled, exact)
    return ValueCheck(name, data, tuple(eager.shape), _dtype(eager), ours.errors, theirs.errors, allowed, ties, problem)


def _problem(wrong: Tensor, found: _Difference, compiled: Tensor, exact: Tensor) -> str:
    if not wrong.any():
        return ""
    misplaced = wrong & found.misplaced
    off = torch.where(misplaced, math.inf, torch.where(wrong, found.off, -1.0))
    at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    got, want = (float(_as_double(x)[at]) for x in (compiled, exact))
    place = f" at [{', '.join(map(str, at))}]" if at else ""
    count = f"{int(wrong.sum()):,} of {wrong.numel():,} numbers"
    return f"{count} are wrong, the worst{place}: {got:.9g} instead of {want:.9g}"


class _Difference:
    """The differences `off` of a value from float64, and where NaN or infinities are `misplaced`.

    A number may be NaN or infinite where eager mode's is, or where float64's is.
    """

    def __init__(self, value: Tensor, eager: Tensor, exact: Tensor, floor: float, tolerance: float) -> None:
        got, own, want = (_as_double(x) for x in (value, eager, exact))
        known = got.isfinite() & want.isfinite()
        self.misplaced = ~known & ~_equal(got, own) & ~_equal(got, want) & ~(got.isfinite() & own.isfinite())
        self.off = torch.where(known, (got - want).abs(), torch.zeros((), dtype=torch.float64))
        size = torch.where(want.isfinite(), want.abs(), torch.zeros((), dtype=torch.float64))
        largest = float(size.max()) if size.numel() else 0.0
        self.scale = max(largest, floor, torch.finfo(torch.float32).tiny) if tolerance else 1.0
        self.errors = Errors()
        if self.misplaced.any():
            self.errors = Errors(math.inf, math.inf, math.inf)
        elif value.numel():
            worst = float(self.off.max())
            unit = torch.finfo(_real(value.dtype)).eps if tolerance else 1.0
            ulps = self.off / (unit * size.clamp(min=max(NOISE_FLOOR * self.scale, torch.finfo(torch.float32).tiny)))
            self.errors = Errors(worst, worst / self.scale, float(ulps.max()) if tolerance else worst)

    def beyond(self, allowed: float, spread: Tensor | float = 0.0) -> Tensor:
        """Where the relative error is above `allowed`, and the difference above that and `spread`."""
        return (self.off > allowed * self.scale + spread) | self.misplaced


def _as_double(x: Tensor) -> Tensor:
    return torch.view_as_real(x.resolve_conj()).double() if x.is_complex() else x.double()


def _equal(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | (a.isnan() & b.isnan())


def _magnitude(value: Tensor) -> float:
    finite = _as_double(value)[_as_double(value).isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _real(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")
