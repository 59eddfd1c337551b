"""Products and grams of the rows of a tile: those of the edges in a program's step, or of its tile of rows.

Rows are arrays in registers, or are read from and written to memory. A matrix is read some rows and columns at a time,
since all of a wide one would fill the registers. A gram stays in registers until it is stored: one matrix for each of
its blocks, or the program's tile of it (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from graphweave.codegen.sums import Sum
from graphweave.codegen.triton.axes import EDGES, ROWS, Axis, aligned, names_of, power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.codegen.triton.parts import gram_extents, gram_room, padded
from graphweave.codegen.triton.registers import gather
from graphweave.codegen.triton.scope import Held, TritonScope
from graphweave.core.errors import IRError
from graphweave.core.types import HALF, DType, computed
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.walk import statements

MAX_STEP_ELEMENTS = 1 << 14
"""A program multiplies by at most this many elements of a matrix in one step."""

MAX_STORED_COLUMNS = 128
"""At most this many columns of a result are computed at a time if it is stored to memory."""

MAX_WHOLE_MATRIX = 1 << 12
"""Rows in registers are multiplied in one step by a whole matrix of at most this many elements."""

MAX_STEP_ROWS = 32
"""Rows of a larger matrix by which a step multiplies. In full precision, which has no matrix instructions, 64 do not
fit into the registers: for sm_80 some KB a thread are spilled (Triton 3.9)."""


def takes_one_row(kernel: loop.Kernel) -> bool:
    """Whether programs of the kernel take one row at a time, since products have a matrix or a sum for each row."""
    arrays = {b.name for b in kernel.buffers}
    return any(
        (isinstance(s, loop.TileMatMul) and not _is_plain(s)) or (isinstance(s, loop.TileGram) and s.out not in arrays)
        for s in statements(kernel.body)
    )


def _is_plain(stmt: loop.TileMatMul) -> bool:
    """Whether one matrix multiplies all rows, as it lies in memory, and no rows are gathered or scattered."""
    rows = any(isinstance(place, loop.Rows) for place in (stmt.x, stmt.out))
    return stmt.blocks == 1 and stmt.row is None and not stmt.transposed and not rows


@dataclass(frozen=True, slots=True)
class Tile:
    """The positions that are multiplied at once, as texts: their number `count`, and truths `ok` [count], false for
    padding. `positions` is the variable that holds them.
    """

    positions: str
    count: str
    ok: str

    @classmethod
    def of_edges(cls, tile: str) -> Tile:
        return cls(tile, "R * K", "tl.reshape(edge_ok, [R * K])")

    @classmethod
    def of_rows(cls, row: str) -> Tile:
        return cls(row, "R", "row_ok")


def print_matmul(scope: TritonScope, stmt: loop.TileMatMul, tile: Tile) -> None:
    arrays, w = scope.arrays, scope.w
    i, j = (arrays[_array(place)].numel // stmt.blocks for place in (stmt.x, stmt.out))
    matrix = _Matrix.of(scope, stmt, i, j)
    x, out = _operand(scope, stmt.x, tile), _operand(scope, stmt.out, tile, written=True)
    begun = None if stmt.add is None else _operand(scope, stmt.add, tile)
    if stmt.blocks > 1 and out.padded:
        raise IRError("a Triton kernel can store rows of several diagonal blocks only to memory, not to registers.")
    adds = isinstance(stmt.add, loop.Rows)
    step, columns = _steps(x, out, i, j, MAX_WHOLE_MATRIX if not adds else 0)
    acc = ttype(computed(arrays[stmt.w].dtype))
    total, at_i, at_j = (scope.fresh(stmt.w, part) for part in ("product", "i", "j"))
    for b in range(stmt.blocks):
        with _range(scope, at_j, j, columns) as from_j:
            start = f"tl.zeros([{tile.count}, {columns}], {acc})"
            if begun is not None and not adds:
                start = f"({begun.part(scope, tile, from_j, 0, j, columns)}).to({acc})"
            w.line(f"{total} = {start}")
            with _range(scope, at_i, i, step) as from_i:
                row = x.part(scope, tile, from_i, b * i, i, step)
                product = _dot(scope, row, matrix.part(at_i, at_j, b), total, acc, (x.dtype, matrix.dtype))
                w.line(f"{total} = {product}")
            if begun is not None and adds:
                w.line("tl.debug_barrier()  # other threads of this program may have stored what is read here")
                w.line(f"{total} += {begun.part(scope, tile, from_j, b * j, j, columns)}")
            _write(scope, out, tile, total, at_j, b * j, j)


def print_gram(scope: TritonScope, stmt: loop.TileGram, tile: Tile) -> None:
    """Prints a gram that is added to the matrices of `start_sum`, or to a total of the kernel."""
    x, y = (_operand(scope, place, tile) for place in (stmt.x, stmt.y))
    if stmt.blocks > 1 and (x.padded or y.padded):
        raise IRError("a Triton kernel can read rows of several diagonal blocks only from memory, not from registers.")
    acc = ttype(scope.arrays[stmt.out].dtype)
    held = scope.held.get(stmt.out)
    for b, own in enumerate(_gram_parts(scope, stmt)):
        rows = []
        for operand, at, n, size in ((x, own.i, own.num_i, own.size_i), (y, own.j, own.num_j, own.size_j)):
            part = operand.part(scope, tile, at, f"{own.block} * {n}" if own.block else b * n, n, size)
            rows.append(f"tl.where({tile.ok}[:, None], {part}, 0.0)" if operand.padded else part)
        total = held.name if held is not None else _sum_name(scope, stmt.out, b)
        product = _dot(scope, f"tl.trans({rows[0]})", rows[1], total, acc, (x.dtype, y.dtype))
        scope.w.line(f"{total} = {product}")


# ---------------------------------------------------------------- sums of a row


def start_sum(scope: TritonScope, name: str, found: Sum) -> None:
    """Prints the matrices of zeros that replace the array `name`."""
    if scope.parts.gram is None and gram_room(found.gram, scope.arrays) > MAX_STEP_ELEMENTS:
        i, j = gram_extents(found.gram, scope.arrays)
        raise IRError(f"a gram of {i} x {j} for each row is too large for a Triton kernel with other work on it.")
    for b, own in enumerate(_gram_parts(scope, found.gram)):
        zeros = f"tl.zeros([{own.size_i}, {own.size_j}], {ttype(scope.arrays[name].dtype)})"
        scope.w.line(f"{_sum_name(scope, name, b)} = {zeros}")


def flatten_sum(scope: TritonScope, name: str, found: Sum) -> None:
    """Prints the array `name`, made of the matrices after the edges, for the statements that read it."""
    i, j = gram_extents(found.gram, scope.arrays)
    rows, columns = padded(i), padded(j)
    info = scope.arrays[name]
    room = 0 if info.numel == 1 else power_of_two(info.numel)
    held = Held(scope.names.of(name), info.dtype, scope.axes, info.numel, room)
    scope.types[name], scope.held[name] = info.dtype, held
    at, size = scope.fresh(name, "at"), max(room, 1)
    scope.w.line(f"{at} = tl.arange(0, {size})")
    text = ""
    for b in range(found.gram.blocks):
        index = f"tl.minimum(tl.maximum({at} - {b * i * j}, 0), {i * j - 1})"
        flat = f"tl.reshape({_sum_name(scope, name, b)}, [{rows * columns}])"
        here = gather(flat, rows * columns, f"(({index} // {j}) * {columns} + {index} % {j})", size, ())
        text = here if not text else f"tl.where({at} < {b * i * j}, {text}, {here})"
    scope.w.line(f"{held.name} = tl.reshape({text}, [R{f', {room}' if room else ''}])")


def store_sum(scope: TritonScope, name: str, found: Sum, row: str) -> None:
    """Prints stores of the matrices, in place of the statement that copies the array `name` to row `row`."""
    to = scope.arrays[found.output]
    base = f"{scope.names.of(found.output)} + {_one(scope, row)} * {to.numel}"
    for b, own in enumerate(_gram_parts(scope, found.gram)):
        at_i, at_j = (f"({at} + tl.arange(0, {size}))" for at, size in ((own.i, own.size_i), (own.j, own.size_j)))
        mask = f"({at_i} < {own.num_i})[:, None] & ({at_j} < {own.num_j})[None, :]"
        of_block = f"{own.block or b} * {own.num_i * own.num_j}"
        at = f"{base} + {of_block} + {at_i}[:, None] * {own.num_j} + {at_j}[None, :]"
        scope.w.line(f"tl.store({at}, {_sum_name(scope, name, b)}.to({ttype(to.dtype)}), mask={mask})")


@dataclass(frozen=True, slots=True)
class _GramPart:
    """A part of a gram in registers, [size_i, size_j], that begins at element (`i`, `j`) of a block of num_i x num_j.

    `block` is the text of the block's number if programs have different blocks, else "".
    """

    i: str
    j: str
    size_i: int
    size_j: int
    num_i: int
    num_j: int
    block: str = ""


def _gram_parts(scope: TritonScope, gram: loop.TileGram) -> list[_GramPart]:
    """The parts of the gram that the program sums: a matrix for each block, or one tile of one block."""
    i, j = gram_extents(gram, scope.arrays)
    tiles = scope.parts.gram
    if tiles is None:
        return [_GramPart("0", "0", padded(i), padded(j), i, j)] * gram.blocks
    at_i, at_j = f"part // {tiles.columns} % {tiles.rows} * {tiles.i}", f"part % {tiles.columns} * {tiles.j}"
    return [_GramPart(f"({at_i})", f"({at_j})", tiles.i, tiles.j, i, j, f"(part // {tiles.rows * tiles.columns})")]


# ---------------------------------------------------------------- parts


@dataclass(frozen=True, slots=True)
class _Operand:
    """Rows of a tile: `text` is an array in registers, [count, padded], or if `padded` is 0 row numbers in `buffer`."""

    text: str
    numel: int
    dtype: DType
    padded: int
    buffer: str

    def part(self, scope: TritonScope, tile: Tile, at: str, first: int | str, limit: int, size: int) -> str:
        """[count, size] elements of each row from first + at on, with 0 from first + limit on.

        `at` is a multiple of `size`.
        """
        if not self.padded:
            lanes = f"({at} + tl.arange(0, {size}))"
            rows = f"{scope.names.of(self.buffer)} + {self.text}[:, None] * {self.numel}"
            inside = f"{tile.ok}[:, None] & ({lanes} < {limit})[None, :]"
            return f"tl.load({rows} + {first} + {lanes}[None, :], mask={inside}, other=0.0)"
        if size == self.padded and first == 0 and limit == self.numel:
            return self.text
        if first != 0 or limit != self.numel:
            lanes = f"({at} + tl.arange(0, {size}))"
            index = (
                f"tl.broadcast_to(tl.minimum({first} + {lanes}, {self.padded - 1})[None, :], [{tile.count}, {size}])"
            )
            taken = gather(self.text, self.padded, index, size, (Axis("positions", tile.count),))
            return f"tl.where(({lanes} < {limit})[None, :], {taken}, 0.0)"
        parts = self.padded // size
        chosen = f"(tl.arange(0, {parts}) == {at} // {size})[None, :, None]"
        return f"tl.sum(tl.where({chosen}, tl.reshape({self.text}, [{tile.count}, {parts}, {size}]), 0.0), axis=1)"


def _operand(scope: TritonScope, place: loop.Place, tile: Tile, *, written: bool = False) -> _Operand:
    """The rows of `place`. Rows in registers that are read get 0 in their padding."""
    info = scope.arrays[_array(place)]
    if isinstance(place, loop.Rows):
        return _Operand(_numbers(scope, place, tile), info.numel, info.dtype, 0, place.buffer)
    held = scope.held.get(place)
    if held is None:
        row = f"{scope.variables[tile.positions].text}.to(tl.int64)"
        return _Operand(row, info.numel, info.dtype, 0, place)
    text = held.name
    if not written and held.padded != held.numel:
        inside = aligned(
            f"(tl.arange(0, {held.padded}) < {held.numel})", ("element",), (*names_of(held.axes), "element")
        )
        text = f"tl.where({inside}, {text}, 0.0)"
    if not written and EDGES in held.axes:
        text = f"tl.reshape({text}, [{tile.count}, {held.padded}])"
    return _Operand(text, info.numel, info.dtype, held.padded, place)


def _numbers(scope: TritonScope, place: loop.Rows, tile: Tile) -> str:
    """Prints the numbers of the rows that `place` gathers or scatters, [R * K]; their name."""
    at = scope.variables[tile.positions].text
    if place.shift is not None:
        shift = scope.variables[place.shift]
        at = f"{at} + {aligned(shift.text, shift.dims, names_of((ROWS, EDGES)))}"
    name = scope.fresh(place.buffer, "row")
    scope.w.line(f"{name} = tl.load({scope.names.of(place.column)} + {at}, mask=edge_ok, other=0).to(tl.int64)")
    scope.w.line(f"{name} = tl.reshape({name}, [R * K])")
    return name


@dataclass(frozen=True, slots=True)
class _Matrix:
    """Matrices of i x j, one for each block, from `base` on; if `transposed`, they lie in memory as j x i."""

    base: str
    i: int
    j: int
    dtype: DType
    transposed: bool

    @classmethod
    def of(cls, scope: TritonScope, stmt: loop.TileMatMul, i: int, j: int) -> _Matrix:
        info, base = scope.arrays[stmt.w], scope.names.of(stmt.w)
        if stmt.row is not None:
            base = f"{base} + {_one(scope, stmt.row)} * {info.numel}"
        elif stmt.w in scope.held:
            raise IRError("a Triton kernel can multiply only by matrices in memory, not by those in registers.")
        return cls(base, i, j, info.dtype, stmt.transposed)

    def part(self, at_i: str, at_j: str, block: int) -> str:
        rows, columns = f"{at_i}[:, None]", f"{at_j}[None, :]"
        lies = f"{columns} * {self.i} + {rows}" if self.transposed else f"{rows} * {self.j} + {columns}"
        inside = f"({rows} < {self.i}) & ({columns} < {self.j})"
        return f"tl.load({self.base} + {block * self.i * self.j} + {lies}, mask={inside}, other=0.0)"


def _steps(x: _Operand, out: _Operand, i: int, j: int, whole: int) -> tuple[int, int]:
    """How many rows and columns of the matrix a step multiplies by.

    These are all columns if the result is in registers, and all rows if `x` is and both make at most `whole` elements.
    """
    step, columns = padded(i), padded(j)
    if not out.padded:
        columns = min(columns, MAX_STORED_COLUMNS)
    if not x.padded or step * columns > whole:
        step = min(step, MAX_STEP_ROWS)
    if step * columns > MAX_STEP_ELEMENTS:
        raise IRError(f"a matrix of {i} x {j} is too large for the registers of a Triton kernel.")
    return step, columns


@contextmanager
def _range(scope: TritonScope, name: str, extent: int, step: int) -> Iterator[str]:
    """Prints a loop in which `name` holds the next `step` of 0 .. extent - 1, or no loop if one step is enough.

    Gives the text of the first of these numbers.
    """
    if step >= extent:
        scope.w.line(f"{name} = tl.arange(0, {step})")
        yield "0"
        return
    with scope.block(f"for {name}_from in range(0, {extent}, {step})"):
        scope.w.line(f"{name} = {name}_from + tl.arange(0, {step})")
        yield f"{name}_from"


def _write(scope: TritonScope, out: _Operand, tile: Tile, total: str, at: str, first: int, limit: int) -> None:
    if out.padded:
        held = scope.held[out.buffer]
        scope.w.line(f"{held.name} = {f'tl.reshape({total}, [R, K, {out.padded}])' if EDGES in held.axes else total}")
        return
    to = f"{scope.names.of(out.buffer)} + {out.text}[:, None] * {out.numel} + {first} + {at}[None, :]"
    value = f"{total}.to({ttype(out.dtype)})" if out.dtype in HALF else total
    scope.w.line(f"tl.store({to}, {value}, mask={tile.ok}[:, None] & ({at} < {limit})[None, :])")


def _dot(scope: TritonScope, x: str, y: str, total: str, acc: str, dtypes: tuple[DType, DType]) -> str:
    """`total` + x y. If one of `dtypes` is of half precision, both operands are converted to that type."""
    half = next((dtype for dtype in dtypes if dtype in HALF), None)
    if half is None:
        return f"tl.dot({x}, {y}, {total}, input_precision=PRECISION, out_dtype={acc})"
    scope.helpers.add("gw_dot_half")
    x, y = (text if t is half else f"({text}).to({ttype(half)})" for text, t in zip((x, y), dtypes, strict=True))
    return f"gw_dot_half({x}, {y}, {total})"


def _array(place: loop.Place) -> str:
    return place.buffer if isinstance(place, loop.Rows) else place


def _sum_name(scope: TritonScope, name: str, block: int) -> str:
    return scope.names.derived(name, f"sum{block}")


def _one(scope: TritonScope, variable: str) -> str:
    """The value of a variable of a program's only row, or of one that is the same for all rows, as a number."""
    v = scope.variables[variable]
    return f"{f'tl.sum({v.text}, axis=0)' if v.dims else v.text}.to(tl.int64)"
