"""Typed products summed by row: out[v] = sum over edges e with dst(e) = v of scale(e) x[src(e)] w[t(e)]."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.native import kernel_of
from graphweave.core.types import DType


@dataclass(frozen=True, slots=True)
class ScatterKernel:
    """Which kernel: x [nodes, blocks, k], matrices [types, blocks, k, j]. `wide`: indices are int64, else int32."""

    blocks: int
    k: int
    j: int
    dtype: DType
    wide: bool = False

    @property
    def name(self) -> str:
        return f"typed_scatter_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}" + ("_wide" if self.wide else "")


def print_scatter(kernel: ScatterKernel) -> str:
    """C++ text of the function `kernel.name`.

    Pointers are x, w, the scale (null for 1) and out; then indptr, the row of x, the row of out and the edge at each
    position of `runtime/typed_blocks.py`. Sizes are the numbers of types, and of scales an edge (1 or blocks). Chunks
    are the bounds of blocks.
    """
    index = "int64_t" if kernel.wide else "int32_t"
    shape = (ctype(kernel.dtype), index, kernel.blocks, kernel.k, kernel.j)
    return kernel_of(kernel.name, "typed_scatter", "gw_typed_scatter", shape, ("sizes[0]", "sizes[1]"))
