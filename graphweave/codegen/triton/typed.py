"""Products whose matrix depends on the type of the row, in Triton: Y[S] = X[G] W[T] (Hector, 3.3.1), and their grams.

The programs of a kernel share out parts of rows of one type (`runtime/typed_parts.py`), blocks, and tiles of the
matrix's columns; all programs of a part stand side by side, so that its rows are gathered from a cache but once.
A sum over the rows of a type that has several parts is folded afterwards, in the order of parts: no atomics.

Half types are multiplied as float32 rounded to TF32, which holds each of their values exactly, and summed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.core.types import HALF, DType

Kind: TypeAlias = Literal["matmul", "gram"]

LEAST = 16
"""Rows and columns of a tile that is multiplied, at least."""

COLUMNS = 64
"""Of a tile of the result, at most."""

TERMS = 32
"""That are multiplied in one step, at most. In full precision, which has no matrix instructions, a step of 64 is too
much for the registers: for sm_80 some 4 to 10 KB a thread are spilled (Triton 3.9, 4 warps), of 32 none."""

FOLDED = 256
"""Elements that a program folds."""

HEAD = """\
import triton
import triton.language as tl


@triton.jit
"""

_MATMUL = """\
def {name}(x, w, out, x_rows, out_rows, indptr, kinds, begins, M: tl.constexpr, PRECISION: tl.constexpr):
    # out[r, b, j] = sum over k of x[g(r), b, k] * w[t(r), b, k, j], for M rows of one type
    program = tl.program_id(0).to(tl.int64)
    part = {part}
    b = {b}
    kind = tl.load(kinds + part)
    if kind >= 0:
        at = tl.load(begins + part) + tl.arange(0, M)
        at_ok = at < tl.load(indptr + kind + 1)
        x_row = tl.load(x_rows + at, mask=at_ok, other=0).to(tl.int64)
        out_row = tl.load(out_rows + at, mask=at_ok, other=0).to(tl.int64)
        j = {j_from}tl.arange(0, {j_tile})
        total = tl.zeros([M, {j_tile}], {acc})
        for step in range(0, {k}, {k_tile}):
            k = step + tl.arange(0, {k_tile})
            row = tl.load(x + x_row[:, None] * {x_width} + (b * {k} + k)[None, :], mask={x_ok}, other=0.0){widen}
            at_w = {matrix} + {w_k} + {w_j}
            matrix = tl.load(w + at_w{w_ok}){widen}
            total = tl.dot(row, matrix, total, input_precision=PRECISION, out_dtype={acc})
        tl.store(out + out_row[:, None] * {out_width} + (b * {j} + j)[None, :], total{narrow}, mask={out_ok})
"""

_GRAM = """\
def {name}(
    x, y, sums, x_rows, y_rows, indptr, kinds, begins, targets, length, M: tl.constexpr, PRECISION: tl.constexpr
):
    # sums[target, b, i, j] = sum over r of x[g(r), b, i] * y[h(r), b, j], for `length` rows of one type, M at a time
    program = tl.program_id(0).to(tl.int64)
    part = {part}
    b = {b}
    kind = tl.load(kinds + part)
    if kind >= 0:
        begin = tl.load(begins + part)
        end = tl.minimum(begin + length, tl.load(indptr + kind + 1).to(tl.int64))
        i = {i_from}tl.arange(0, {i_tile})
        j = {j_from}tl.arange(0, {j_tile})
        total = tl.zeros([{i_tile}, {j_tile}], {acc})
        for step in range(begin, end, M):
            at = step + tl.arange(0, M)
            at_ok = at < end
            x_row = tl.load(x_rows + at, mask=at_ok, other=0).to(tl.int64)
            y_row = tl.load(y_rows + at, mask=at_ok, other=0).to(tl.int64)
            left = tl.load(x + x_row[:, None] * {x_width} + (b * {k} + i)[None, :], mask={x_ok}, other=0.0){widen}
            right = tl.load(y + y_row[:, None] * {out_width} + (b * {j} + j)[None, :], mask={out_ok}, other=0.0){widen}
            total = tl.dot(tl.trans(left), right, total, input_precision=PRECISION, out_dtype={acc})
        target = tl.load(targets + part) * {sums_width} + b * {size}
        tl.store(sums + target + i[:, None] * {j} + j[None, :], total{sums_ok})
"""

_FOLD = """\
def {name}(sums, rows, begins, ends, num_rows, P: tl.constexpr):
    # sums[row] = sum of sums[num_rows + slot] over the row's slots, P at a time
    program = tl.program_id(0).to(tl.int64)
    fold = {part}
    begin = tl.load(begins + fold)
    end = tl.load(ends + fold)
    if begin < end:
        i = {i_from}tl.arange(0, {tile})
        total = tl.zeros([{tile}], {acc})
        for step in range(begin, end, P):
            slot = step + tl.arange(0, P)
            ok = (slot < end)[:, None] & (i < {width})[None, :]
            part = tl.load(sums + (num_rows + slot)[:, None] * {width} + i[None, :], mask=ok, other=0.0)
            total += tl.sum(part, axis=0)
        tl.store(sums + tl.load(rows + fold) * {width} + i, total, mask=i < {width})
"""


@dataclass(frozen=True, slots=True)
class TypedProgram:
    """Which kernel: x [rows, blocks, k] and matrices [types, blocks, k, j], or y [rows, blocks, j] of a gram.

    `transposed`: matrices are given as [types, blocks, j, k] (never of a gram). Indices may be int32 or int64.
    """

    kind: Kind
    blocks: int
    k: int
    j: int
    dtype: DType
    transposed: bool = False

    @property
    def name(self) -> str:
        return f"typed_{self.kind}_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}" + "_t" * self.transposed

    @property
    def programs(self) -> int:
        """Of one part."""
        rows = tiles(self.k) if self.kind == "gram" else 1
        return self.blocks * rows * tiles(self.j)


@dataclass(frozen=True, slots=True)
class FoldProgram:
    """Sums of rows of `width` elements of `dtype`."""

    width: int
    dtype: DType

    @property
    def name(self) -> str:
        return f"typed_fold_{self.width}_{self.dtype.value}"

    @property
    def programs(self) -> int:
        """Of one row."""
        return -(-self.width // FOLDED)


def print_typed(kernel: TypedProgram) -> str:
    """The module's text, with the function `kernel.name`.

    x_rows and out_rows (y_rows) say which row stands at each position in the order of types; the other tables are those
    of `TypedParts`. There are `kernel.programs` programs for each part. M is a power of two, 16 at least, and of a
    product the size of a part; of a gram that is `length`. A gram's sums [types + slots, blocks, k, j] have the type
    that half types are summed in, and are to be folded.
    """
    form = _MATMUL if kernel.kind == "matmul" else _GRAM
    return HEAD + form.format(**_names(kernel))


def print_fold(kernel: FoldProgram) -> str:
    """The module's text; tables are those of `Folds`. There are `kernel.programs` programs for each fold."""
    tile = FOLDED if kernel.programs > 1 else power_of_two(kernel.width)
    names = {"name": kernel.name, "tile": tile, "width": kernel.width, "acc": ttype(kernel.dtype)}
    return HEAD + _FOLD.format(**names, **program_names(1, kernel.programs, tile))


def tile(extent: int, most: int) -> int:
    return min(max(power_of_two(extent), LEAST), most)


def tiles(columns: int) -> int:
    return -(-columns // COLUMNS)


def program_names(blocks: int, rows: int, row: int, columns: int = 1, column: int = 1) -> dict[str, str]:
    """What a program does, of `blocks` x `rows` x `columns` programs for each part: which part, block and tile.

    Tiles are of `row` rows and `column` columns.
    """
    each = blocks * rows * columns

    def digit(step: int, count: int) -> str:
        number = f"program % {step * count}" if step * count > 1 else "program"
        return number + (f" // {step}" if step > 1 else "")

    return {
        "part": f"program // {each}" if each > 1 else "program",
        "b": digit(rows * columns, blocks) if blocks > 1 else "0",
        "i_from": f"{digit(columns, rows)} * {row} + " if rows > 1 else "",
        "j_from": f"{digit(1, columns)} * {column} + " if columns > 1 else "",
    }


def matrix_names(blocks: int, k: int, j: int, transposed: bool) -> dict[str, str]:
    """Where an element of a type's and block's matrix lies."""
    matrix = f"(kind * {blocks} + b)" if blocks > 1 else "kind"
    w_k, w_j = "k[:, None]", "j[None, :]"
    return {
        "matrix": f"{matrix} * {k * j}",
        "w_k": w_k if transposed else f"{w_k} * {j}",
        "w_j": f"{w_j} * {k}" if transposed else w_j,
    }


def masked(*parts: str) -> str:
    """Arguments of a load of what is 0 where one of `parts` does not hold."""
    held = " & ".join(part for part in parts if part)
    return f", mask={held}, other=0.0" if held else ""


def inside(name: str, extent: int, step: int, at: str) -> str:
    """That `name`, which comes in steps of `step`, is less than `extent`; "" where it always is."""
    return f"({name} < {extent}){at}" if extent % step else ""


def summed(dtype: DType) -> DType:
    """The type in which numbers of `dtype` are multiplied and summed."""
    return DType.f32 if dtype in HALF else dtype


def element_names(dtype: DType) -> dict[str, str]:
    half = dtype in HALF
    acc = ttype(summed(dtype))
    return {"acc": acc, "widen": f".to({acc})" if half else "", "narrow": f".to({ttype(dtype)})" if half else ""}


def _names(kernel: TypedProgram) -> dict[str, str | int]:
    k, j, blocks, gram = kernel.k, kernel.j, kernel.blocks, kernel.kind == "gram"
    j_tile, k_tile = tile(j, COLUMNS), tile(k, COLUMNS if gram else TERMS)
    x_ok, out_ok = inside("i" if gram else "k", k, k_tile, "[None, :]"), inside("j", j, j_tile, "[None, :]")
    sums_ok = [ok for ok in (x_ok.replace("[None, :]", "[:, None]"), out_ok) if ok]
    return {
        "name": kernel.name, "k": k, "j": j, "size": k * j, "x_width": blocks * k, "out_width": blocks * j,
        "sums_width": blocks * k * j, "i_tile": k_tile, "k_tile": k_tile, "j_tile": j_tile,
        **program_names(blocks, tiles(k) if gram else 1, k_tile, tiles(j), j_tile),
        **matrix_names(blocks, k, j, kernel.transposed),
        "x_ok": " & ".join(filter(None, ["at_ok[:, None]", x_ok])),
        "out_ok": " & ".join(filter(None, ["at_ok[:, None]", out_ok])),
        "w_ok": masked(inside("k", k, k_tile, "[:, None]"), out_ok),
        "sums_ok": f", mask={' & '.join(sums_ok)}" if sums_ok else "", **element_names(kernel.dtype),
    }  # fmt: skip
