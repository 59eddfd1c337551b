"""Products whose matrix depends on the type of the row: the GEMM template of Hector, Y[S] = X[G] W[T] (3.3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.native import kernel_of
from graphweave.core.types import DType

Kind: TypeAlias = Literal["matmul", "gram"]


@dataclass(frozen=True, slots=True)
class TypedKernel:
    """Which kernel: x [rows, blocks, k] and matrices [types, blocks, k, j], or y [rows, blocks, j] of a gram.

    `transposed`: matrices are given as [types, blocks, j, k] (never of a gram). `wide`: indices are int64, else int32.
    """

    kind: Kind
    blocks: int
    k: int
    j: int
    dtype: DType
    transposed: bool = False
    wide: bool = False

    @property
    def name(self) -> str:
        flags = ("_t" if self.transposed else "") + ("_wide" if self.wide else "")
        return f"typed_{self.kind}_{self.blocks}_{self.k}_{self.j}_{self.dtype.value}{flags}"


def print_typed(kernel: TypedKernel) -> str:
    """C++ text of the function `kernel.name`.

    Pointers are x, w (or y), out, indptr [types + 1] of the rows in the order of their types, and two indices that say
    which row of x and which row of out (or y) stand at each position of that order: null where row p is at position p.
    The one size is the number of types; chunks are ranges of positions.
    """
    index = "int64_t" if kernel.wide else "int32_t"
    shape = (ctype(kernel.dtype), index, kernel.blocks, kernel.k, kernel.j)
    if kernel.kind == "gram":
        return kernel_of(kernel.name, "typed_gram", "gw_typed_gram", shape, ("sizes[0]",))
    return kernel_of(kernel.name, "typed_matmul", "gw_typed_matmul", (*shape, kernel.transposed), ("sizes[0]",))
