"""matmul(join(a, b), w, join(s, t)) -> join(matmul(a, w, s), matmul(b, w, t)), and likewise a gram, as a sum of grams.

Legal because a product works row by row, and a gram sums over rows. Only where all segments are one space: then they
are the heads of its rows, which a model has concatenated, and parts of the result are heads again. It pays
because rows of all heads are not copied to be concatenated, and edges can take the heads of their rows.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Gram, Join, MapOf, MatMul, Pointwise, Ref
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def copies_apart(build: Builder, ref: Ref) -> Ref | None:
    """matmul(join(a, b), w, join(s, t)) -> join(matmul(a, w, s), matmul(b, w, t)); a gram becomes a sum of grams"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, MatMul | Gram) or node.map is None:
        return None
    xs, maps = _copies(build, node.x), _maps(build, node.map, loc)
    if xs is None or maps is None or len(xs) != len(maps):
        return None
    if isinstance(node, MatMul):
        products = [build.add(MatMul(x, node.w, m), loc) for x, m in zip(xs, maps, strict=True)]
        return build.add(Join(tuple(products), value_type(build, ref).space), loc)
    ys = _copies(build, node.y)
    if ys is None or len(ys) != len(xs):
        return None
    grams = [build.add(Gram(x, y, m), loc) for x, y, m in zip(xs, ys, maps, strict=True)]
    total = grams[0]
    for gram in grams[1:]:
        total = build.add(Pointwise(Op.add, (total, gram)), loc)
    return total


def _copies(build: Builder, ref: Ref) -> tuple[Ref, ...] | None:
    """The values that `ref` joins, all on one space; None if it joins none or those of several spaces."""
    node = build.nodes[ref]
    if not isinstance(node, Join) or len({value_type(build, x).space for x in node.xs}) > 1:
        return None
    return node.xs if len(node.xs) > 1 else None


def _maps(build: Builder, m: Ref, loc: Location) -> list[Ref] | None:
    node = build.nodes[m]
    indices = _copies(build, node.index) if isinstance(node, MapOf) else None
    if indices is None or not isinstance(node, MapOf):
        return None
    return [build.add(MapOf(index, node.cod, node.wrap), loc) for index in indices]


RULE = Rule(
    "copies-apart", "[a ; b] W[s ; t] along rows", "[a W[s] ; b W[t]]", copies_apart
)  # fmt: skip
