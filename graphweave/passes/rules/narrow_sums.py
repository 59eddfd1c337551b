"""(A x) W -> A (x W), A (x W) -> (A x) W, gram(A x, g) -> gram(x, A' g): whichever sums along maps over fewer features.

A is a linear operator on rows (`row_operator.py`), such as a mean over neighbours, and A' its transpose. Legal for
weights that all rows share: A treats all features alike. The sums of a gram then have the other order, and rows that A
does not read are set to 0 where they may not be finite. It pays where edges are many: a layer from 64 to 16 features
gathers rows of 16 in its forward and its backward. Usually it pays only for all products with A and with A' at once:
the sum A' g serves the gradients of the weights and of the rows, and A x is not needed any more.
"""

from __future__ import annotations

from dataclasses import replace

from graphweave.core.types import Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import shaped, value_type
from graphweave.passes.row_operator import applied, guarded, row_operator, total, transposed, with_transpose
from graphweave.passes.rules.rule import Rule


def narrow_sums(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """(A x) W -> A (x W), A (x W) -> (A x) W, gram(A x, g) -> gram(x, A' g)"""
    match build.nodes[ref]:
        case ir.MatMul(map=None) as product:
            return _into_sums(build, ref, product)
        case ir.Gram(map=None) as gram:
            return _transposed(build, ref, gram)
        case ir.Push() | ir.Pointwise(Op.add | Op.sub | Op.mul | Op.div | Op.neg):
            return _out_of_sums(build, ref)
        case _:
            return None


def _into_sums(build: Builder, ref: ir.Ref, product: ir.MatMul) -> ir.Ref | None:
    """(A x) W -> A (x W), where x W has fewer features than x"""
    if _width(build, ref) >= _width(build, product.x) or (op := row_operator(build, product.x)) is None:
        return None
    loc, shape = build.locs[ref], value_type(build, product.x).shape
    values = {r: build.add(replace(product, x=shaped(build, r, shape, loc)), loc) for r in op.bases}
    return applied(build, op, values, loc)


def _out_of_sums(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """A (x W) -> (A x) W, where x has fewer features than x W"""
    if (op := row_operator(build, ref)) is None:
        return None
    products = [build.nodes[r] for r in op.bases]
    first = products[0]
    if not isinstance(first, ir.MatMul) or first.map is not None or _width(build, first.x) >= _width(build, ref):
        return None
    values: dict[ir.Ref, ir.Ref] = {}
    for base, product in zip(op.bases, products, strict=True):
        if not isinstance(product, ir.MatMul) or product.map is not None or product.w != first.w:
            return None
        values[base] = product.x
    loc = build.locs[ref]
    out = build.add(replace(first, x=applied(build, op, values, loc)), loc)
    return shaped(build, out, value_type(build, ref).shape, loc)


def _transposed(build: Builder, ref: ir.Ref, gram: ir.Gram) -> ir.Ref | None:
    """gram(A x, g) -> gram(x, A' g), where g has fewer features than x"""
    for side, (wide, narrow) in enumerate(((gram.x, gram.y), (gram.y, gram.x))):
        if _width(build, narrow) < _width(build, wide) and (found := with_transpose(build, wide)) is not None:
            op, read = found
            loc, shape = build.locs[ref], value_type(build, wide).shape
            parts = []
            for base, far in transposed(build, op, narrow, loc).items():
                x = shaped(build, guarded(build, base, read[base], loc), shape, loc)
                parts.append(build.add(ir.Gram(far, x) if side else ir.Gram(x, far), loc))
            return total(build, parts, loc)
    return None


def _width(build: Builder, ref: ir.Ref) -> int:
    return numel(value_type(build, ref).shape)


RULE = Rule("narrow-sums", "(A x) W, A (x W), gram(A x, g)", "A (x W), (A x) W, gram(x, A' g)", narrow_sums)
