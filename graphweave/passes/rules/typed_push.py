"""push(s * typed(x, W, t), m) -> typedpush(x, W, s, t, m): what is pushed of a typed product is never stored.

Legal for sums. Its kernel adds the scaled rows of each destination and type before it multiplies, which is compaction
by destination and relation without its tensors. It pays unless somebody else needs the rows of the product.
"""

from __future__ import annotations

from graphweave.core.types import DType, Fold
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import MapOf, MatMul, Push, Ref, TypedPush
from graphweave.passes.products import Factor, below_reshapes, multiplied, negated, product, shaped, value_type
from graphweave.passes.rules.rule import Rule


def typed_push(build: Builder, ref: Ref) -> Ref | None:
    """push(s * typed(x, W, t), m) -> typedpush(x, W, s, t, m)"""
    push = build.nodes[ref]
    if not isinstance(push, Push) or push.fold is not Fold.sum or push.empty != 0:
        return None
    whole = value_type(build, ref)
    if not isinstance(build.nodes[push.map], MapOf) or whole.dtype not in (DType.f32, DType.f64):
        return None
    p = product(build, push.x)
    found = [(f, n) for f in p.factors if (n := _typed(build, f.ref)) is not None]
    if len(found) != 1:
        return None
    factor, typed = found[0]
    others = [f for f in p.factors if f is not factor]
    if factor.inverse or any(numel(f.shape) != 1 for f in others) or numel(factor.shape) != numel(whole.shape):
        return None
    loc, rows = build.locs[ref], value_type(build, typed.x)
    scale = multiplied(build, [Factor(f.ref, (), f.inverse) for f in others], rows.dtype, rows.space, loc)
    scale = shaped(build, scale, (), loc)
    assert typed.map is not None
    out = build.add(TypedPush(typed.x, typed.w, scale, typed.map, push.map), loc)
    return negated(build, shaped(build, out, whole.shape, loc), p.sign, loc)


def _typed(build: Builder, ref: Ref) -> MatMul | None:
    node = build.nodes[below_reshapes(build, ref)]
    return node if isinstance(node, MatMul) and node.map is not None else None


RULE = Rule("typed-push", "push(s * typed(x, W, t), m)", "typedpush(x, W, s, t, m)", typed_push)
