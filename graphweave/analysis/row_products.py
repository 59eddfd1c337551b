"""Which products with one matrix for all rows a kernel may compute for tiles of rows, together with their neighbours.

Called by itself, a product reads every row from memory and writes every row to memory. In the kernel that computes its
operand, the rows are in cache, and its results are in cache for the nodes that read them.
"""

from __future__ import annotations

from graphweave.analysis.tiles import MAX_GRAM
from graphweave.core.types import UNIT, DType
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import AddMatMul, Const, Gram, MatMul, Program, Ref, Type

MAX_MATRIX_WIDTH = 256
"""Upper limit on the rows and columns of the matrix, which then stays in cache together with the rows of a tile."""

MIN_KERNEL_ROWS = 1024
"""Products over a space that is known to have fewer rows stay calls: the rows would not fill a kernel's threads."""

_DTYPES = (DType.f32, DType.f64, DType.bf16, DType.f16)


def row_products(program: Program, tiled: frozenset[Ref]) -> frozenset[Ref]:
    """The products of `program` that a region over their rows may compute; those in `tiled` are left out."""
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
    if min(widths) < 1 or max(widths) > MAX_MATRIX_WIDTH:
        return False
    if isinstance(node, Gram):
        return other.space == x.space and numel(widths) <= MAX_GRAM
    return other.space == UNIT and not isinstance(program.nodes[node.w], Const)


def _has_few_rows(program: Program, t: Type) -> bool:
    rows = dict(program.spaces).get(t.space)
    return isinstance(rows, int) and rows < MIN_KERNEL_ROWS
