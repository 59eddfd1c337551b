"""matmul(join(a, b), w, join(s, t)) -> join(matmul(a, w, s), matmul(b, w, t)), and likewise a gram, as a sum of grams.

Legal because a product works row by row, and a gram sums over rows. Only where all segments are one space: then they
are the heads of its rows, which a model has concatenated, and parts of the result are heads again. It pays
because rows of all heads are not copied to be concatenated, and edges can take the heads of their rows.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def copies_apart(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """matmul(join(a, b), w, join(s, t)) -> join(matmul(a, w, s), matmul(b, w, t)); a gram becomes a sum of grams"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.MatMul | ir.Gram) or node.map is None:
        return None
    xs, maps = _copies(build, node.x), _maps(build, node.map, loc)
    if xs is None or maps is None or len(xs) != len(maps):
        return None
    if isinstance(node, ir.MatMul):
        products = [build.add(ir.MatMul(x, node.w, m), loc) for x, m in zip(xs, maps, strict=True)]
        return build.add(ir.Join(tuple(products), value_type(build, ref).space), loc)
    ys = _copies(build, node.y)
    if ys is None or len(ys) != len(xs):
        return None
    grams = [build.add(ir.Gram(x, y, m), loc) for x, y, m in zip(xs, ys, maps, strict=True)]
    total = grams[0]
    for gram in grams[1:]:
        total = build.add(ir.Pointwise(Op.add, (total, gram)), loc)
    return total


def _copies(build: Builder, ref: ir.Ref) -> tuple[ir.Ref, ...] | None:
    """The values that `ref` joins, all on one space; None if it joins none or those of several spaces."""
    node = build.nodes[ref]
    if not isinstance(node, ir.Join) or len({value_type(build, x).space for x in node.xs}) > 1:
        return None
    return node.xs if len(node.xs) > 1 else None


def _maps(build: Builder, m: ir.Ref, loc: Location) -> list[ir.Ref] | None:
    node = build.nodes[m]
    indices = _copies(build, node.index) if isinstance(node, ir.MapOf) else None
    if indices is None or not isinstance(node, ir.MapOf):
        return None
    return [build.add(ir.MapOf(index, node.cod, node.wrap), loc) for index in indices]


RULE = Rule(
    "copies-apart", "[a ; b] W[s ; t] along rows", "[a W[s] ; b W[t]]", copies_apart
)  # fmt: skip
