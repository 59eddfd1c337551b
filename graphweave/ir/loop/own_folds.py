"""A user's fold as expressions of the loop IR."""

from __future__ import annotations

from graphweave.core.formulas import evaluate
from graphweave.core.types import DType, OwnFold
from graphweave.ir.loop.nodes import Accum, Call, Expr, Lit, Load, Store


def combined(fold: OwnFold, dtype: DType, old: Expr, new: Expr) -> Expr:
    """The fold of two values of `dtype`."""
    return evaluate(fold.combine, {"x": old, "y": new}, Call, lambda number: Lit(number, dtype))


def as_store(stmt: Accum, fold: OwnFold, dtype: DType) -> Store:
    """The statement as a store of what it makes of the element, which has `dtype`."""
    return Store(stmt.buffer, stmt.index, combined(fold, dtype, Load(stmt.buffer, stmt.index), stmt.value))
