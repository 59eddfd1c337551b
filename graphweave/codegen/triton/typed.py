"""What the text of scatters in Triton is made of, and the kernel that folds their parts.

Half types are multiplied as float32 rounded to TF32, which holds each of their values exactly, and summed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.core.types import HALF, DType

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
