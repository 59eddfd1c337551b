"""Formulas over operators, as rows of `operators.py` write derivatives: `g * (1 - out * out)`, `where(x > 0, g, 0)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeVar

from graphweave.core.operators import Op

T = TypeVar("T")

_SYMBOLS: dict[type[ast.AST], Op] = {
    ast.Add: Op.add, ast.Sub: Op.sub, ast.Mult: Op.mul, ast.Div: Op.div, ast.USub: Op.neg,
    ast.Lt: Op.lt, ast.LtE: Op.le, ast.Gt: Op.gt, ast.GtE: Op.ge, ast.Eq: Op.eq, ast.NotEq: Op.ne,
}  # fmt: skip


def evaluate(
    formula: str, names: Mapping[str, T], apply: Callable[[Op, tuple[T, ...]], T], number: Callable[[float], T]
) -> T:
    """The value of `formula`, computed from left to right.

    `names` gives the operands, `apply(op, operands)` computes an operator, and `number` makes a value of a number.
    """

    def value(part: ast.expr) -> T:
        match part:
            case ast.Name(name):
                return names[name]
            case ast.Constant(value=int() | float() as constant):
                return number(float(constant))
            case ast.UnaryOp(ast.USub(), ast.Constant(value=int() | float() as constant)):
                return number(-float(constant))
            case ast.UnaryOp(symbol, x):
                return apply(_SYMBOLS[type(symbol)], (value(x),))
            case ast.BinOp(left, symbol, right) | ast.Compare(left, [symbol], [right]):
                return apply(_SYMBOLS[type(symbol)], (value(left), value(right)))
            case ast.Call(ast.Name(name), args):
                return apply(Op(name), tuple(map(value, args)))
        raise AssertionError(f"{ast.unparse(part)!r} in {formula!r} is no formula")

    return value(_parsed(formula))


@cache
def _parsed(formula: str) -> ast.expr:
    return ast.parse(formula, mode="eval").body
