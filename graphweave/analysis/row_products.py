"""Which products with one matrix for all rows a kernel may compute for tiles of rows, beside what makes and reads them.

On its own such a product reads every row from memory and writes every row to it. In the kernel that makes its rows
they are in cache: so are its results for what comes next.
"""

from __future__ import annotations

from graphweave.analysis.tiles import MAX_GRAM
from graphweave.core.types import UNIT, DType
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import AddMatMul, Const, Gram, MatMul, Program, Ref, Type

WIDEST = 256
"""Columns up to which the matrix stays in cache, beside the rows of a tile."""

FEW = 1024
"""A space that is known to have fewer rows is not worth a kernel's threads."""

_DTYPES = (DType.f32, DType.f64, DType.bf16, DType.f16)


def row_products(program: Program, tiled: frozenset[Ref]) -> frozenset[Ref]:
    """The products of `program`, but for those `tiled`, that a region over the rows that they multiply may compute."""
    return frozenset(r for r in range(len(program.nodes)) if r not in tiled and _is_row_product(program, r))


def _is_row_product(program: Program, ref: Ref) -> bool:
    node = program.nodes[ref]
    if not isinstance(node, MatMul | AddMatMul | Gram) or node.map is not None:
        return False
    x, other = (program.types[r] for r in ((node.x, node.y) if isinstance(node, Gram) else (node.x, node.w)))
    if not (isinstance(x, Type) and isinstance(other, Type)) or x.space == UNIT or len(x.shape) != 1:
        return False
    if x.dtype not in _DTYPES or other.dtype is not x.dtype or _has_few_rows(program, x):
        return False
    widths = (x.shape[0], other.shape[-1])
    if min(widths) < 1 or max(widths) > WIDEST:
        return False
    if isinstance(node, Gram):
        return other.space == x.space and numel(widths) <= MAX_GRAM
    return other.space == UNIT and not isinstance(program.nodes[node.w], Const)


def _has_few_rows(program: Program, t: Type) -> bool:
    rows = dict(program.spaces).get(t.space)
    return isinstance(rows, int) and rows < FEW
