"""What is known of an index without running: its range, the lanes it depends on, whether it reads memory."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.ir.loop.nodes import Call, CastTo, Degree, Expr, IndexSum, Lit, Load, Uniform, Var


def bounds(index: Expr, extents: dict[str, int]) -> tuple[int, int] | None:
    """Smallest and largest value of a feature index, None where that is not static."""
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


def walk(expr: Expr, found: Callable[[Expr], None]) -> None:
    found(expr)
    match expr:
        case Load(_, parts) | Call(_, parts):
            for part in parts:
                walk(part, found)
        case CastTo(x, _) | Degree(_, x):
            walk(x, found)
        case Uniform(seed, row, _, index):
            for part in (seed, row, index):
                walk(part, found)


def lanes_of(expr: Expr) -> set[str]:
    names: set[str] = set()

    def visit(node: Expr) -> None:
        if isinstance(node, Var):
            names.add(node.name)
        elif isinstance(node, IndexSum):
            names.update(name for name, coefficient in node.terms if coefficient)

    walk(expr, visit)
    return names


def loads(expr: Expr) -> bool:
    """Whether an index reads memory, so that lanes may differ in ways that are not visible here."""
    found: list[Expr] = []
    walk(expr, lambda node: found.append(node) if isinstance(node, Load) else None)
    return bool(found)
