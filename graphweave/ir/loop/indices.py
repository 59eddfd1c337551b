"""Static facts about an index: its range, the lanes it depends on, whether it reads memory."""

from __future__ import annotations

from graphweave.ir.loop.nodes import Expr, IndexSum, Lit, Load, Var
from graphweave.ir.loop.walk import subexpressions


def bounds(index: Expr, extents: dict[str, int]) -> tuple[int, int] | None:
    """Smallest and largest value of a feature index; None if they are not static."""
    match index:
        case Var(name) if name in extents:
            return 0, extents[name] - 1
        case Lit(value, _):
            return int(value), int(value)
        case IndexSum(terms, offset, div, mod):
            low = offset + sum(min(0, c * (extents[name] - 1)) for name, c in terms)
            high = offset + sum(max(0, c * (extents[name] - 1)) for name, c in terms)
            low, high = low // div, high // div
            return (low, high) if mod is None or (low >= 0 and high < mod) else (min(low, 0), mod - 1)
    return None


def lanes_of(expr: Expr) -> set[str]:
    """Names of the variables and lanes on which `expr` depends."""
    names: set[str] = set()
    for node in subexpressions(expr):
        if isinstance(node, Var):
            names.add(node.name)
        elif isinstance(node, IndexSum):
            names.update(name for name, coefficient in node.terms if coefficient)
    return names


def loads(expr: Expr) -> bool:
    """Whether an index reads memory; it may then differ from lane to lane even if it names no lane."""
    return any(isinstance(node, Load) for node in subexpressions(expr))
