"""Which products with one matrix for all rows a kernel may compute for tiles of rows, together with their neighbours.

Called by itself, a product reads every row from memory and writes every row to memory. In the kernel that computes its
operand, the rows are in cache, and its results are in cache for the nodes that read them.
"""

from __future__ import annotations

from graphweave.analysis.tiles import MAX_GRAM
from graphweave.core.types import UNIT, DType
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

MAX_MATRIX_WIDTH = 256
"""Upper limit on the rows and columns of the matrix, which then stays in cache together with the rows of a tile."""

MIN_KERNEL_ROWS = 1024
"""Products over a space that is known to have fewer rows stay calls: the rows would not fill a kernel's threads."""

_DTYPES = (DType.f32, DType.f64, DType.bf16, DType.f16)


def row_products(program: ir.Program, tiled: frozenset[ir.Ref]) -> frozenset[ir.Ref]:
    """The products of `program` that a region over their rows may compute; those in `tiled` are left out."""
    return frozenset(r for r in range(len(program.nodes)) if r not in tiled and _is_row_product(program, r))


def _is_row_product(program: ir.Program, ref: ir.Ref) -> bool:
    node = program.nodes[ref]
    if not isinstance(node, ir.MatMul | ir.AddMatMul | ir.Gram) or node.map is not None:
        return False
    x, other = (program.types[r] for r in ((node.x, node.y) if isinstance(node, ir.Gram) else (node.x, node.w)))
    if not (isinstance(x, ir.Type) and isinstance(other, ir.Type)) or x.space == UNIT or len(x.shape) != 1:
        return False
    if x.dtype not in _DTYPES or other.dtype is not x.dtype or _has_few_rows(program, x):
        return False
    widths = (x.shape[0], other.shape[-1])
    if min(widths) < 1 or max(widths) > MAX_MATRIX_WIDTH:
        return False
    if isinstance(node, ir.Gram):
        return other.space == x.space and numel(widths) <= MAX_GRAM
    return other.space == UNIT and not isinstance(program.nodes[node.w], ir.Const)


def _has_few_rows(program: ir.Program, t: ir.Type) -> bool:
    rows = dict(program.spaces).get(t.space)
    return isinstance(rows, int) and rows < MIN_KERNEL_ROWS
