"""The cheaper way to print folds inside of a loop over lanes: vectors along each fold, or vectors across the folds.

A sum over channels for each component, `out[i] = sum over c of x[9 c + i] w[c]`, has its terms 9 elements apart. Along
the sum, a vector of terms is gathered and its lanes are added to each other at last, for each i. Across the sums, a
vector holds terms of the sums for all i, and each step loads neighbours. Both ways add in the same order, since a
kernel may compare its numbers with those of another kernel, where other strides make the other way cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

from graphweave.codegen.arrays import flatten
from graphweave.codegen.cpp.expr import CppScope
from graphweave.codegen.cpp.lane_expr import Vector
from graphweave.codegen.cpp.printer import SHORT
from graphweave.codegen.cpp.walk import lanes_used
from graphweave.core.types import DType
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import expressions, statements, subexpressions

_VECTOR = 8
"""Lanes of a vector for which costs are counted. The text is the same for all machines."""
_TOGETHER = 8
"""Operations that fold the lanes of one vector to a number."""
_DEAR = 8
"""Operations of a function such as `exp`."""


def is_cheaper_across(vector: Vector, stmt: loop.FoldLanes) -> bool:
    """Whether the fold for each lane of `vector` costs less by vectors of these lanes than by vectors of its terms.

    Both ways are counted in vector operations; an element that is gathered counts as one.
    """
    if len(stmt.lanes) != 1 or vector.extent < SHORT - 1 or stmt.dtype is DType.bool:
        return False
    ((lane, terms),) = stmt.lanes
    parts = [part for expr in _values(stmt) for part in subexpressions(expr)]
    along = float(_TOGETHER)
    across = float(terms * -(-vector.extent // _VECTOR))
    for part in parts:
        match part:
            case loop.Call(op):
                work = _DEAR if op.facts.dear else 1
                along += work * terms / _VECTOR
                across += work * terms * -(-vector.extent // _VECTOR)
            case loop.Load(array, index):
                step = _step(vector.scope, array, index, (lane,), partial(_names, lane=lane))
                along += terms if step is None or step > 1 else step * terms / _VECTOR
                step = _step(vector.scope, array, index, vector.lanes, vector.differs)
                if step is None or step > 1:
                    return False
                pieces = vector.extent if vector.extent < SHORT else -(-vector.extent // _VECTOR)
                across += terms * (pieces if step else 1)
    return across < along * vector.extent


def _values(stmt: loop.FoldLanes) -> list[loop.Expr]:
    return [stmt.value, *(expr for inner in statements(stmt.body) for expr in expressions(inner))]


def _names(expr: loop.Expr, lane: str) -> bool:
    return lane in lanes_used((), (expr,))


def _step(
    scope: CppScope,
    array: str,
    index: tuple[loop.Expr, ...],
    lanes: Collection[str],
    differs: Callable[[loop.Expr], bool],
) -> int | None:
    """How many elements of `array` neighbours among `lanes` are apart; None if that is not one number. `differs` says
    which expressions depend on these lanes."""
    info = scope.arrays[array]
    affine, rest = flatten(index[1:] if info.has_rows else index, info.shape)
    others = [expr for expr, _ in rest] + ([index[0]] if info.has_rows else [])
    step = sum(c for name, c in affine.terms.items() if name in lanes)
    return None if step < 0 or any(map(differs, others)) else step
