"""Users' reducers of numbers: which functions kernels fold, and the derivative of their results.

A pair (function, identity) is folded by kernels if the function is a formula of two numbers (`formula_of`), and is
commutative and associative on numbers drawn here. Its derivative in one of the values follows without the others:

- A function that returns one of its operands (a maximum, the number of the largest magnitude) selects a value. Values
  that equal the result share the gradient evenly.
- A function f that is strictly monotone is a sum on another scale: f(a, b) = h(g(a) + g(b)) with h the inverse of g
  (Aczel, "Lectures on Functional Equations", 1966, section 6.2). The derivative of the result in a value is then
  g'(value) / g'(result), and g'(value) / g'(result) = f2(result, value) / f1(result, value) with f1 and f2 the
  derivatives of f in its operands. Whether f is such a function is tried, too.

Otherwise the derivative is f2(rest, value), with the fold of all other values for each value.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable

import torch
import torch._dynamo
from torch import Tensor

from graphweave.core.edge_functions import PairFunction
from graphweave.core.errors import DataError
from graphweave.core.own_reducer import OwnReducer
from graphweave.frontends.dynamo.scalar_functions import formula_of
from graphweave.ir.fold_rows import value_of

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
    not associative, or no formula of two numbers.

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
    return OwnReducer(formula, float(identity), _slope(combine, formula, slope)).text


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


def _slope(combine: PairFunction, formula: str, given: PairFunction | None) -> str:
    if given is not None:
        found = formula_of(given, ("x", "out"))
        if found is None:
            raise DataError(
                f"the slope of reduce must be a function of two numbers, a value and the result (got {given!r})."
                " Write it with operators that work element by element."
            )
        return found
    if _selects(formula):
        return _TIES
    second = formula_of(_derivative(combine, 1), ("rest", "x"))
    if second is None:
        raise DataError(
            f"reduce: no formula for the derivative of the function was found (got {combine!r}). "
            "Pass (function, identity, slope), with slope(value, result) the derivative of the result in the value."
        )
    first = formula_of(_derivative(combine, 0), ("out", "x"))
    ratio = f"div({formula_of(_derivative(combine, 1), ('out', 'x'))}, {first})"
    return ratio if first is not None and _agree(formula, second, ratio) else second


def _derivative(combine: PairFunction, operand: int) -> Callable[[Tensor, Tensor], Tensor]:
    def derivative(x: Tensor, y: Tensor) -> Tensor:
        out, *pulled_back = torch.func.vjp(combine, x, y)
        found: Tensor = pulled_back[0](torch.ones_like(out))[operand]
        return found

    return derivative


def _agree(formula: str, second: str, ratio: str) -> bool:
    """Whether the derivative in a value follows from the value and the result wherever that was tried."""
    a, b, x = _triples()
    rest = value_of(formula, x=a, y=b)
    want = value_of(second, rest=rest, x=x)
    got = value_of(ratio, out=value_of(formula, x=rest, y=x), x=x)
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
