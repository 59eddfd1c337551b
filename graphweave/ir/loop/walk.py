"""Walks over the statements and expressions of a kernel, by the fields that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias, TypeVar

from graphweave.ir.held import held, with_held
from graphweave.ir.loop.nodes import Accum, Edges, Expr, Kernel, Load, Stmt, Store, Tiles

_EXPRESSIONS, _STATEMENTS = frozenset({"Expr", "IndexSum"}), frozenset({"Stmt", "Let"})
"""Words in the annotations of fields that hold expressions, and of fields that hold statements."""

_N = TypeVar("_N")


def statements(body: Iterable[Stmt]) -> Iterator[Stmt]:
    """Every statement of `body`, outer before inner."""
    for stmt in body:
        yield stmt
        yield from statements(held(stmt, _STATEMENTS))


def csrs_around(kernel: Kernel) -> dict[str, str | None]:
    """For each CSR that is walked, the CSR whose positions are its rows; None if its rows are the kernel's rows."""
    walks = [s for s in statements(kernel.body) if isinstance(s, Edges | Tiles)]
    csr_of = {s.k: s.csr for s in walks if isinstance(s, Edges)}
    return {s.csr: csr_of.get(s.row) for s in walks}


def expressions(node: Stmt | Expr) -> tuple[Expr, ...]:
    """The expressions that a statement itself evaluates (not those of its body), or the parts of an expression."""
    return tuple(held(node, _EXPRESSIONS))


def subexpressions(expr: Expr) -> Iterator[Expr]:
    """`expr` and all its parts."""
    yield expr
    for part in expressions(expr):
        yield from subexpressions(part)


def mapped(node: _N, value: Callable[[Expr], Expr], statement: Callable[[Stmt], Stmt] | None = None) -> _N:
    """`node` with `statement` applied to the statements that it holds, then `value` to the expressions."""
    node = node if statement is None else with_held(node, _STATEMENTS, statement)
    return with_held(node, _EXPRESSIONS, value)


Index: TypeAlias = tuple[Expr, ...]


def relocated(stmt: Stmt, place: Callable[[str, Index], tuple[str, Index]]) -> Stmt:
    """`stmt`, a statement of a row or an edge, with every array[index] in it replaced by `place(array, index)`."""

    def value(expr: Expr) -> Expr:
        expr = mapped(expr, value)
        return Load(*place(expr.buffer, expr.index)) if isinstance(expr, Load) else expr

    def statement(stmt: Stmt) -> Stmt:
        match mapped(stmt, value, statement):
            case Store(buffer, index, x):
                return Store(*place(buffer, index), x)
            case Accum(buffer, index, fold, x):
                return Accum(*place(buffer, index), fold, x)
            case other:
                return other

    return statement(stmt)
