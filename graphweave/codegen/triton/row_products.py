"""Products of the rows of a tile with one matrix for all: the rows of a program are the tile.

What the loop IR keeps in arrays of the tile stays in registers, [R, elements]; rows in memory are read and written
there. A program takes 16 rows at least, the fewest that `tl.dot` multiplies.
"""

from __future__ import annotations

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.codegen.triton.products import DOT, LARGEST
from graphweave.codegen.triton.scope import Scope
from graphweave.core.errors import IRError
from graphweave.ir.loop.nodes import Rows, TileGram, TileMatMul


def print_row_matmul(scope: Scope, stmt: TileMatMul, row: str) -> None:
    """`row` is the kernel's."""
    assert isinstance(stmt.x, str) and isinstance(stmt.out, str) and not isinstance(stmt.add, Rows)
    if stmt.blocks != 1 or stmt.transposed or stmt.row is not None:
        raise IRError("a Triton kernel multiplies the rows of a tile by one matrix, as it lies.")
    w = scope.w
    i, j = (scope.arrays[name].numel for name in (stmt.x, stmt.out))
    rows, columns = _padded(i), _padded(j)
    if rows * columns > LARGEST:
        raise IRError(f"a matrix of {i} x {j} for each row is too large for a Triton kernel.")
    x = _rows(scope, stmt.x, row)
    begun = "" if stmt.add is None else f"{_rows(scope, stmt.add, row)}, "
    name = scope.fresh(stmt.w, "matrix")
    at_i, at_j = f"tl.arange(0, {rows})[:, None]", f"tl.arange(0, {columns})[None, :]"
    mask = f"mask=({at_i} < {i}) & ({at_j} < {j}), other=0.0"
    w.line(f"{name} = tl.load({scope.names.of(stmt.w)} + {at_i} * {j} + {at_j}, {mask})")
    precision = f"input_precision=PRECISION, out_dtype={ttype(scope.arrays[stmt.w].dtype)}"
    product = f"tl.dot({x}, {name}, {begun}{precision})"
    if stmt.out in scope.held:
        w.line(f"{scope.held[stmt.out].name} = {product}")
        return
    at, inside = _place(scope, stmt.out, row)
    w.line(f"tl.store({at}, {product}, mask={inside})")


def print_row_gram(scope: Scope, stmt: TileGram, row: str) -> None:
    assert isinstance(stmt.x, str) and isinstance(stmt.y, str)
    x, y = (f"tl.where(row_ok[:, None], {_rows(scope, name, row)}, 0.0)" for name in (stmt.x, stmt.y))
    total = scope.held[stmt.out]
    precision = f"input_precision=PRECISION, out_dtype={ttype(total.dtype)}"
    scope.w.line(f"{total.name} += tl.dot(tl.trans({x}), {y}, {precision})")


def _padded(n: int) -> int:
    return max(power_of_two(n), DOT)


def _rows(scope: Scope, array: str, row: str) -> str:
    """Rows of an array of the tile, or of a parameter, [R, elements], whose padding is 0."""
    held = scope.held.get(array)
    if held is not None:
        if held.padded == held.numel:
            return held.name
        return f"tl.where((tl.arange(0, {held.padded}) < {held.numel})[None, :], {held.name}, 0.0)"
    name = scope.fresh(array, "rows")
    at, inside = _place(scope, array, row)
    scope.w.line(f"{name} = tl.load({at}, mask={inside}, other=0.0)")
    return name


def _place(scope: Scope, array: str, row: str) -> tuple[str, str]:
    """Addresses of the rows of a parameter, and which of them there are."""
    n = scope.arrays[array].numel
    lanes = f"tl.arange(0, {_padded(n)})[None, :]"
    at = f"{scope.names.of(array)} + {scope.variables[row].text}[:, None].to(tl.int64) * {n} + {lanes}"
    return at, f"row_ok[:, None] & ({lanes} < {n})"
