"""The Triton kernel that folds the pieces of divided rows of a fused push."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.codegen.triton.axes import power_of_two
from graphweave.codegen.triton.names import ttype
from graphweave.core.types import DType

ELEMENTS_PER_PROGRAM = 256
"""A program folds at most this many elements of a row."""

_FOLD = """\
import triton
import triton.language as tl


@triton.jit
def {name}(sums, rows, begins, ends, num_rows, P: tl.constexpr):
    # sums[row] = sum of sums[num_rows + slot] over the row's slots, P at a time
    program = tl.program_id(0).to(tl.int64)
    fold = program // {programs}
    begin = tl.load(begins + fold)
    end = tl.load(ends + fold)
    if begin < end:
        i = program % {programs} * {tile} + tl.arange(0, {tile})
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
    """Folds rows of `width` elements of `dtype` by sums."""

    width: int
    dtype: DType

    @property
    def name(self) -> str:
        return f"typed_fold_{self.width}_{self.dtype.value}"

    @property
    def programs(self) -> int:
        """The number of programs for one row."""
        return -(-self.width // ELEMENTS_PER_PROGRAM)


def print_fold(kernel: FoldProgram) -> str:
    """The module's text; tables are those of `Folds`. There are `kernel.programs` programs for each fold."""
    tile = ELEMENTS_PER_PROGRAM if kernel.programs > 1 else power_of_two(kernel.width)
    names = {"name": kernel.name, "tile": tile, "width": kernel.width, "programs": kernel.programs}
    return _FOLD.format(**names, acc=ttype(kernel.dtype))
