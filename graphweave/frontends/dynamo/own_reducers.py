"""Users' reducers of numbers: which functions kernels fold, and the derivative of their results.

A pair (function, identity) is folded by kernels if the function is a formula of two numbers (`formula_of`), and is
commutative and associative on numbers drawn here. Its derivative in one of the values follows without the others:

- A function that returns one of its operands (a maximum, the number of the largest magnitude) selects a value. Values
  that equal the result share the gradient evenly.
- A function f that is strictly monotone is a sum on another scale: f(a, b) = h(g(a) + g(b)) with h the inverse of g
  (Aczel, "Lectures on Functional Equations", 1966, section 6.2). The derivative of the result in a value is then
  g'(value) / g'(result), and g'(value) / g'(result) = f2(result, value) / f1(result, value) with f1 and f2 the
  derivatives of f in its operands. Whether f is such a function is tried, too.

- A function that is flat somewhere, such as a product at 0, is no such function there: g' is infinite, and the quotient
  0 / 0. A value on which the result depends least through the others, the one with the least f1(result, value), is
  therefore left out of a second fold, kept. By the chain rule the derivative is f2(kept, value) in the value that was
  left out, and f1(kept, left) f2(kept, value) / f1(kept, value) in any other. As f1 of the value that was left out is
  the least, no error is enlarged by the division, and a divisor that is 0 belongs to a derivative that is 0. This is
  tried, too, where up to three values are folded.

A function whose derivative none of these gives is combined by a tree.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import replace

import torch
import torch._dynamo
from torch import Tensor

from graphweave.core.edge_functions import PairFunction
from graphweave.core.errors import DataError
from graphweave.core.own_reducer import OwnReducer
from graphweave.frontends.dynamo.scalar_functions import formula_of
from graphweave.ir.fold_rows import slopes, value_of

_NUMBERS = (-39.5, -2.5, -1.2, -0.3, 0.0, 0.7, 1.0, 3.0, 40.0)
"""Values at which functions are tried: no two of one magnitude, of which a fold may choose either."""

_TIES = "where(x == out, 1 / ties, 0)"
_NAMED = {("add(x, y)", 0.0): "sum", ("mul(x, y)", 1.0): "prod"}
"""The formula and identity of functions that are reducers with a name."""

_MAX_KEPT = 256
_kept: dict[Hashable, str | None] = {}
"""The answers of `own_reducer` by key. It is emptied when it has become too large."""


@torch._dynamo.assume_constant_result
def own_reducer(combine: PairFunction, identity: float, slope: PairFunction | None = None) -> str | None:
    """The name of the reducer, or the text of the `OwnReducer` that kernels fold; None if `combine` is not commutative,
    not associative, or no formula of two numbers, or if no formula for the derivative is found.

    `slope` of a value and the result is the derivative of the result in that value. DataError if it is no formula of
    two numbers, or `combine` is not.
    """
    key = _key(combine), repr(float(identity)), slope and _key(slope)
    if key[0] is None or (slope is not None and key[2] is None):
        return _found(combine, identity, slope)
    if key not in _kept:
        if len(_kept) >= _MAX_KEPT:
            _kept.clear()
        _kept[key] = _found(combine, identity, slope)
    return _kept[key]


def _found(combine: PairFunction, identity: float, slope: PairFunction | None) -> str | None:
    formula = formula_of(combine, ("x", "y"))
    if formula is None or not _is_fold(formula, identity):
        if slope is None:
            return None
        raise DataError(
            "reduce with a slope must be a commutative and associative function of two numbers (got a function that"
            f" {'does more' if formula is None else 'is not'}). Correct it, or leave the slope out."
        )
    if slope is None and (formula, float(identity)) in _NAMED:
        return _NAMED[formula, float(identity)]
    found = _with_slope(combine, OwnReducer(formula, float(identity), ""), slope)
    return None if found is None else found.text


# ---------------------------------------------------------------- what a function is


def _triples() -> tuple[Tensor, Tensor, Tensor]:
    numbers = torch.tensor(_NUMBERS, dtype=torch.float64)
    a, b, c = torch.cartesian_prod(numbers, numbers, numbers).unbind(1)
    return a, b, c


def _is_fold(formula: str, identity: float) -> bool:
    """Whether the function is commutative and associative, and the identity changes no number."""
    a, b, c = _triples()
    ab, ba, bc = value_of(formula, x=a, y=b), value_of(formula, x=b, y=a), value_of(formula, x=b, y=c)
    pairs = (
        (ab, ba),
        (value_of(formula, x=ab, y=c), value_of(formula, x=a, y=bc)),
        (value_of(formula, x=a, y=torch.full_like(a, identity)), a),
    )
    return all(torch.allclose(x, y, rtol=1e-9, atol=1e-12, equal_nan=True) for x, y in pairs)


def _selects(formula: str) -> bool:
    """Whether the function returns one of its operands wherever it was tried."""
    numbers = torch.tensor(_NUMBERS, dtype=torch.float64)
    x, y = torch.cartesian_prod(numbers, numbers).unbind(1)
    out = value_of(formula, x=x, y=y)
    return bool(((out == x) | (out == y)).all())


# ---------------------------------------------------------------- its derivative


def _with_slope(combine: PairFunction, reducer: OwnReducer, given: PairFunction | None) -> OwnReducer | None:
    if given is not None:
        found = formula_of(given, ("x", "out"))
        if found is None:
            raise DataError(
                f"the slope of reduce must be a function of two numbers, a value and the result (got {given!r})."
                " Write it with operators that work element by element."
            )
        return replace(reducer, slope=found)
    if _selects(reducer.combine):
        return replace(reducer, slope=_TIES)
    slope_in = [_derivative(combine, operand) for operand in (0, 1)]

    def first(*names: str) -> str | None:
        return formula_of(slope_in[0], names)

    def second(*names: str) -> str | None:
        return formula_of(slope_in[1], names)

    if first("out", "x") is None or second("out", "x") is None:
        raise DataError(
            f"reduce: no formula for the derivative of the function was found (got {combine!r}). "
            "Pass (function, identity, slope), with slope(value, result) the derivative of the result in the value."
        )
    quotient = replace(reducer, slope=f"div({second('out', 'x')}, {first('out', 'x')})")
    own, divisor = second("kept", "x"), first("kept", "x")
    through = f"{first('kept', 'left')} * {own} / where({divisor} == 0, 1, {divisor})"
    around = replace(reducer, slope=f"where(chosen, {own}, {through})", pivot=f"abs({first('out', 'x')})")
    tried = (quotient, around) if _increases(str(first("x", "y"))) else (around,)
    return next((r for r in tried if _agrees(r, str(second("rest", "x")))), None)


def _derivative(combine: PairFunction, operand: int) -> Callable[[Tensor, Tensor], Tensor]:
    def derivative(x: Tensor, y: Tensor) -> Tensor:
        out, *pulled_back = torch.func.vjp(combine, x, y)
        found: Tensor = pulled_back[0](torch.ones_like(out))[operand]
        return found

    return derivative


def _increases(first: str) -> bool:
    """Whether the derivative `first` is negative nowhere. As f(x, identity) = x, one of a strictly monotone function
    is positive, and one that is negative somewhere is 0 on the way there."""
    numbers = torch.tensor(_NUMBERS, dtype=torch.float64)
    x, y = torch.cartesian_prod(numbers, numbers).unbind(1)
    return not bool((value_of(first, x=x, y=y) < 0).any())


def _agrees(reducer: OwnReducer, second: str) -> bool:
    """Whether the reducer's slopes are the derivatives of folds of three values, `second` of the others and the value,
    wherever that was tried. For a pivot, values that may cancel each other are among them."""
    opposites = [-n for n in _NUMBERS if n] if reducer.pivot else []
    numbers = torch.tensor([*_NUMBERS, *opposites], dtype=torch.float64)
    a, b, c = torch.cartesian_prod(numbers, numbers, numbers).unbind(1)
    ab, bc, ac = (value_of(reducer.combine, x=x, y=y) for x, y in ((a, b), (b, c), (a, c)))
    values = torch.cat([a, b, c])
    want = value_of(second, rest=torch.cat([bc, ac, ab]), x=values)
    got = slopes(values, torch.arange(len(a)).repeat(3), value_of(reducer.combine, x=ab, y=c), reducer)
    return torch.allclose(got, want, rtol=1e-6, atol=1e-9, equal_nan=True)


# ---------------------------------------------------------------- which functions are the same


def _key(function: object) -> Hashable:
    """A key that functions of the same meaning share; None for a function whose meaning may change."""
    if not isinstance(function, types.FunctionType):
        return function if isinstance(function, types.BuiltinFunctionType) else None
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    known = (*cells, *(function.__defaults__ or ()), *_global_numbers(function))
    if function.__kwdefaults__ or not all(isinstance(x, int | float | types.ModuleType) for x in known):
        return None
    return function.__code__, tuple((type(x).__name__, repr(x)) for x in known)


def _global_numbers(function: types.FunctionType) -> list[object]:
    """The values of global names in the function's code, but for modules and functions of those."""
    found = (function.__globals__.get(name) for name in function.__code__.co_names)
    return [x for x in found if x is not None and not isinstance(x, types.ModuleType)]
