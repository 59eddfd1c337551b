"""push(s * (x W[t]), m) -> the same, fused: the kernel of the push computes the typed product and never stores it.

Legal for sums. The kernel adds the scaled rows of each destination and type before it multiplies, which is compaction
by destination and relation without its tensors. It pays unless another node needs the rows of the product.
"""

from __future__ import annotations

from graphweave.core.types import DType, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import Factor, below_reshapes, multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule


def typed_push(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(s1 * s2 * (x W[t]), m) -> push((s1 * s2) * (x W[t]), m), fused, for numbers of rows s1, s2"""
    push = build.nodes[ref]
    if not isinstance(push, ir.Push) or push.fused or not push.is_plain_sum:
        return None
    whole = value_type(build, ref)
    if not isinstance(build.nodes[push.map], ir.MapOf) or whole.dtype not in (DType.f32, DType.f64):
        return None
    p = product(build, push.x)
    found = [(f, n) for f in p.factors if (n := _typed(build, f.ref)) is not None]
    if len(found) != 1:
        return None
    factor, _ = found[0]
    others = [f for f in p.factors if f is not factor]
    if factor.inverse or any(numel(f.shape) != 1 for f in others) or numel(factor.shape) != numel(whole.shape):
        return None
    loc, t = build.locs[ref], value_type(build, push.x)
    x = below_reshapes(build, factor.ref)
    if others:
        numbers = [Factor(f.ref, (), f.inverse) for f in others]
        scale = shaped(build, multiplied(build, numbers, t.dtype, t.space, loc), (), loc)
        x = build.add(ir.Pointwise(Op.mul, (scale, x)), loc)
    out = build.add(ir.Push(x, push.map, Fold.sum, fused=True), loc)
    return negated(build, shaped(build, out, whole.shape, loc), p.sign, loc)


def _typed(build: Builder, ref: ir.Ref) -> ir.MatMul | None:
    node = build.nodes[below_reshapes(build, ref)]
    return node if isinstance(node, ir.MatMul) and node.map is not None else None


RULE = Rule("typed-push", "push(s * (x W[t]), m)", "push(s * (x W[t]), m), fused", typed_push)
