"""Facts about a kernel's statements that the printer needs before it prints them."""

from __future__ import annotations

from graphweave.codegen.arrays import Array, flatten
from graphweave.ir.loop.nodes import (
    Accum,
    Call,
    CastTo,
    Degree,
    Edges,
    Expr,
    FoldLanes,
    IndexSum,
    Lanes,
    Let,
    Load,
    Stmt,
    Store,
    Tiles,
    Uniform,
    Var,
)
from graphweave.ir.loop.walk import expressions, statements, subexpressions


def lanes_used(body: tuple[Stmt, ...], values: tuple[Expr, ...]) -> set[str]:
    """Every variable that `body` or `values` use."""
    tops = list(values)
    for stmt in statements(body):
        tops.extend(expressions(stmt))
    used = set()
    for top in tops:
        for expr in subexpressions(top):
            if isinstance(expr, Var):
                used.add(expr.name)
            if isinstance(expr, IndexSum):
                used.update(name for name, _ in expr.terms)
    return used


def can_fuse(
    outer: str,
    inner: str,
    extent: int,
    body: tuple[Stmt, ...],
    values: tuple[Expr, ...],
    arrays: dict[str, Array],
) -> bool:
    """Whether every use of the two lanes in `body` and `values` has the form `outer * extent + inner`.

    Then one loop over both walks memory linearly. Any other use (a value, a division, one lane alone) forbids it.
    """
    if not all(_value_fuses(value, outer, inner, extent, arrays) for value in values):
        return False
    for stmt in statements(body):
        if isinstance(stmt, Lanes | FoldLanes | Edges | Tiles):
            return False
        indexed = [(stmt.buffer, stmt.index)] if isinstance(stmt, Store | Accum) else []
        own = [stmt.value] if isinstance(stmt, Store | Accum | Let) else []
        if not all(_fuses(array, index, outer, inner, extent, arrays) for array, index in indexed):
            return False
        if not all(_value_fuses(value, outer, inner, extent, arrays) for value in own):
            return False
    return True


def _value_fuses(value: Expr, outer: str, inner: str, extent: int, arrays: dict[str, Array]) -> bool:
    match value:
        case Var(name):
            return name not in (outer, inner)
        case IndexSum(terms):
            return not {name for name, _ in terms} & {outer, inner}
        case Load(array, index):
            return _fuses(array, index, outer, inner, extent, arrays)
        case Call(_, args):
            return all(_value_fuses(arg, outer, inner, extent, arrays) for arg in args)
        case CastTo(x, _) | Degree(_, x):
            return _value_fuses(x, outer, inner, extent, arrays)
        case Uniform(seed, row, size, index):
            affine, rest = flatten((index,), (size,))
            linear = affine.terms.get(outer, 0) == affine.terms.get(inner, 0) * extent
            return linear and not rest and all(_value_fuses(x, outer, inner, extent, arrays) for x in (seed, row))
    return True


def _fuses(array: str, index: tuple[Expr, ...], outer: str, inner: str, extent: int, arrays: dict[str, Array]) -> bool:
    info = arrays[array]
    features = index[1:] if info.has_rows else index
    if info.has_rows and not _value_fuses(index[0], outer, inner, extent, arrays):
        return False
    affine, rest = flatten(features, info.shape)
    if not all(_value_fuses(expr, outer, inner, extent, arrays) for expr, _ in rest):
        return False
    return affine.terms.get(outer, 0) == affine.terms.get(inner, 0) * extent
