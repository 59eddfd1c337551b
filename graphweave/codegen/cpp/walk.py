"""Facts about a kernel's statements that the printer needs before it prints them."""

from __future__ import annotations

from graphweave.codegen.arrays import Array, flatten
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import expressions, statements, subexpressions


def lanes_used(body: tuple[loop.Stmt, ...], values: tuple[loop.Expr, ...]) -> set[str]:
    """Every variable that `body` or `values` use."""
    tops = list(values)
    for stmt in statements(body):
        tops.extend(expressions(stmt))
    used = set()
    for top in tops:
        for expr in subexpressions(top):
            if isinstance(expr, loop.Var):
                used.add(expr.name)
            if isinstance(expr, loop.IndexSum):
                used.update(name for name, _ in expr.terms)
    return used


def can_fuse(
    outer: str,
    inner: str,
    extent: int,
    body: tuple[loop.Stmt, ...],
    values: tuple[loop.Expr, ...],
    arrays: dict[str, Array],
) -> bool:
    """Whether every use of the two lanes in `body` and `values` has the form `outer * extent + inner`.

    Then one loop over both walks memory linearly. Any other use (a value, a division, one lane alone) forbids it.
    """
    if not all(_value_fuses(value, outer, inner, extent, arrays) for value in values):
        return False
    for stmt in statements(body):
        if isinstance(stmt, loop.Lanes | loop.FoldLanes | loop.Edges | loop.Tiles):
            return False
        indexed = [(stmt.buffer, stmt.index)] if isinstance(stmt, loop.Store | loop.Accum) else []
        own = [stmt.value] if isinstance(stmt, loop.Store | loop.Accum | loop.Let) else []
        if not all(_fuses(array, index, outer, inner, extent, arrays) for array, index in indexed):
            return False
        if not all(_value_fuses(value, outer, inner, extent, arrays) for value in own):
            return False
    return True


def _value_fuses(value: loop.Expr, outer: str, inner: str, extent: int, arrays: dict[str, Array]) -> bool:
    match value:
        case loop.Var(name):
            return name not in (outer, inner)
        case loop.IndexSum(terms):
            return not {name for name, _ in terms} & {outer, inner}
        case loop.Load(array, index):
            return _fuses(array, index, outer, inner, extent, arrays)
        case loop.Call(_, args):
            return all(_value_fuses(arg, outer, inner, extent, arrays) for arg in args)
        case loop.CastTo(x, _) | loop.Degree(_, x):
            return _value_fuses(x, outer, inner, extent, arrays)
        case loop.Uniform(seed, row, size, index):
            affine, rest = flatten((index,), (size,))
            linear = affine.terms.get(outer, 0) == affine.terms.get(inner, 0) * extent
            return linear and not rest and all(_value_fuses(x, outer, inner, extent, arrays) for x in (seed, row))
    return True


def _fuses(
    array: str, index: tuple[loop.Expr, ...], outer: str, inner: str, extent: int, arrays: dict[str, Array]
) -> bool:
    info = arrays[array]
    features = index[1:] if info.has_rows else index
    if info.has_rows and not _value_fuses(index[0], outer, inner, extent, arrays):
        return False
    affine, rest = flatten(features, info.shape)
    if not all(_value_fuses(expr, outer, inner, extent, arrays) for expr, _ in rest):
        return False
    return affine.terms.get(outer, 0) == affine.terms.get(inner, 0) * extent
