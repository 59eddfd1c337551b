"""Which matrix products on edges a kernel computes tile by tile, so that their rows are never stored.

A product on edges has a row for each message. A kernel gathers a tile of operand rows, multiplies, and uses the result
before the next tile overwrites it.
"""

from __future__ import annotations

from graphweave.analysis.flow import Flow
from graphweave.core.types import UNIT, DType, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

MAX_WIDTH = 512
"""Most elements of a row of a product in tiles. Wider products take so long that storing their rows hardly matters."""

MAX_GRAM_WIDTH = 2048
"""Most elements of a row of a gram's operand. Storing such rows would take more memory than all else together."""

MAX_GRAM = 65536
"""Most elements of a gram in tiles: every chunk of rows has a partial sum of its size."""

MAX_PRODUCTS = 8
"""Most products in tiles that one value needs: wherever the value is used, all of them are recomputed."""

_DTYPES = frozenset({DType.f32, DType.f64, DType.f16, DType.bf16})
_ROW_WISE = (ir.Pointwise, ir.Cast, ir.Reduce, ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Pad, ir.Concat)


def tiled_products(program: ir.Program, flow: Flow) -> frozenset[ir.Ref]:
    """The MatMuls and Grams over edges that kernels compute in tiles."""
    if not any(isinstance(node, ir.MatMul | ir.Gram) for node in program.nodes):
        return frozenset()
    edges = tile_spaces(program, flow)
    behind: dict[ir.Ref, frozenset[ir.Ref]] = {}  # the tiled products from which a value's own row is computed
    for ref, node in enumerate(program.nodes):
        t = program.types[ref]
        if not isinstance(node, (*_ROW_WISE, ir.MatMul, ir.Gram)) or not isinstance(t, ir.Type):
            continue
        inside = frozenset().union(*(behind.get(r, frozenset()) for r in flow.operands[ref]))
        if isinstance(node, ir.MatMul | ir.Gram):
            if not _fits(program, node, edges) or len(inside) >= MAX_PRODUCTS:
                continue
            inside |= {ref}
        behind[ref] = inside
    return frozenset(r for r in behind if isinstance(program.nodes[r], ir.MatMul | ir.Gram))


def tile_spaces(program: ir.Program, flow: Flow) -> frozenset[Space]:
    """Spaces of messages: two maps or more start in them (a batch of nodes has one map), and none ends in them."""
    ends = {t.cod for maps in flow.maps_from.values() for m in maps if isinstance(t := program.types[m], ir.MapType)}
    starts = (s for s, maps in flow.maps_from.items() if len(maps) > 1)
    return frozenset(s for s in starts if s not in ends and s != UNIT)


def _fits(program: ir.Program, node: ir.MatMul | ir.Gram, edges: frozenset[Space]) -> bool:
    x, other = (program.types[r] for r in _pair(node))
    if not (isinstance(x, ir.Type) and isinstance(other, ir.Type)) or node.map is not None or len(x.shape) != 1:
        return False
    if node.called or x.space not in edges or x.dtype not in _DTYPES or other.dtype is not x.dtype:
        return False
    if isinstance(node, ir.MatMul):
        widths = (*x.shape, *other.shape)
        fits = min(widths) >= 1 and max(widths) <= MAX_WIDTH
        return fits and other.space == UNIT and not isinstance(program.nodes[node.w], ir.Const)
    # If both operands are inputs, they are stored anyway, and the vendor's library is as good.
    stored = all(isinstance(program.nodes[r], ir.Input) for r in _pair(node))
    return other.space == x.space and gram_fits(x, other) and not stored


def gram_fits(x: ir.Type, y: ir.Type) -> bool:
    """Whether a gram of rows of these shapes is small enough for tiles; operands of others are stored."""
    widths = (*x.shape, *y.shape)
    return min(widths) >= 1 and max(widths) <= MAX_GRAM_WIDTH and numel(widths) <= MAX_GRAM


def _pair(node: ir.Node) -> tuple[ir.Ref, ir.Ref]:
    assert isinstance(node, ir.MatMul | ir.Gram)
    return (node.x, node.w) if isinstance(node, ir.MatMul) else (node.x, node.y)
