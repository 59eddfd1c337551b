"""(x * pull(W, t)) . pull(w, t) -> x . pull(W w, t): weights first, by associativity (Hector, section 3.2.3).

Legal always. It pays if nobody else reads the rows' products, which then are not needed: a matrix times a vector for
each type costs next to nothing compared with a product for each row. The same holds for vectors that all types share.
The backward has three transposed forms, for the gradients of the rows, of the matrices and of the vectors.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import Factor, below_reshapes, multiplied, negated, product, shaped, value_type, viewed
from graphweave.passes.rules.linear_through_push import ends
from graphweave.passes.rules.rule import Rule
from graphweave.passes.rules.split_linear import split


def dot(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """sum_j typed(x, W, t)[j] pull(w, t)[j] -> typed(x, W w, t), for each head; typed(x, W, t) q -> typed(x, W q, t)"""
    node, loc = build.nodes[ref], build.locs[ref]
    match node:
        case ir.MatMul(y, q, None) if (found := _typed(build, y)) is not None:
            return build.add(ir.MatMul(found.x, _times(build, found.w, q, loc), found.map), loc)
        case ir.Reduce(x, Fold.sum, (dim,), _) if dim == len(value_type(build, x).shape) - 1:
            return _dot(build, ref, x)
        case _:
            return None


def _dot(build: Builder, ref: ir.Ref, x: ir.Ref) -> ir.Ref | None:
    shape = value_type(build, x).shape  # [J] or [H, J]
    if len(shape) not in (1, 2):
        return None
    p = product(build, x)
    y = next((f for f in p.factors if not f.inverse and f.shape == shape and _typed(build, f.ref) is not None), None)
    if y is None:
        return None
    typed = _typed(build, y.ref)
    assert typed is not None and typed.map is not None
    others = [f for f in p.factors if f is not y]
    scales = [f for f in others if f.shape[-1] == 1]
    vectors = [f for f in others if f.shape[-1] != 1]
    if len(vectors) != 1 or vectors[0].inverse:
        return None
    loc, t = build.locs[ref], value_type(build, x)
    vector = _on_types(build, vectors[0], typed.map)
    if vector is None:
        return None
    heads = shape[0] if len(shape) == 2 else 1
    k = value_type(build, typed.x).shape[0]
    w = build.add(ir.Reshape(typed.w, (k, heads, shape[-1])), loc)
    vector = shaped(build, vector, (heads, shape[-1]), loc)
    summed = _sum(build, build.add(ir.Pointwise(Op.mul, (w, vector)), loc), 2, loc)
    out = build.add(ir.MatMul(typed.x, summed, typed.map), loc)
    own = shape[:-1]
    factors = [Factor(shaped(build, out, own, loc), own), *(Factor(f.ref, f.shape[:-1], f.inverse) for f in scales)]
    value = multiplied(build, factors, t.dtype, t.space, loc)
    return negated(build, shaped(build, value, value_type(build, ref).shape, loc), p.sign, loc)


def rows_gradient(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """typed(s * pull(w, t), W, t) -> s * pull(W' w, t)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.MatMul) or node.map is None or len(value_type(build, node.x).shape) != 1:
        return None
    product = _shared(build, node.x)
    if product is not None:
        return build.add(ir.MatMul(product.x, _before(build, product.w, node.w, loc), node.map), loc)
    found = _scaled_vector(build, node.x, node.map)
    if found is None:
        return None
    sign, scales, vector = found
    (j,) = value_type(build, node.x).shape
    column = shaped(build, vector, (j, 1), loc)
    summed = _sum(build, build.add(ir.Pointwise(Op.mul, (node.w, column)), loc), 0, loc)
    t = value_type(build, ref)
    pulled = build.add(ir.Pull(summed, node.map), loc)
    factors = [Factor(pulled, t.shape), *(Factor(f.ref, (1,), f.inverse) for f in scales)]
    out = multiplied(build, factors, t.dtype, t.space, loc)
    return negated(build, shaped(build, out, t.shape, loc), sign, loc)


def matrices_gradient(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """gram(x, s * pull(w, t), t) -> outer(gram(x, s, t), w)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.Gram) or node.map is None or len(value_type(build, node.x).shape) != 1:
        return None
    product = _shared(build, node.y)
    if product is not None:
        return _times(build, build.add(ir.Gram(node.x, product.x, node.map), loc), product.w, loc)
    found = _scaled_vector(build, node.y, node.map)
    if found is None:
        return None
    sign, scales, vector = found
    t, y = value_type(build, ref), value_type(build, node.y)
    scale = multiplied(build, [Factor(f.ref, (1,), f.inverse) for f in scales], y.dtype, y.space, loc)
    scale = shaped(build, scale, (1,), loc)
    total = build.add(ir.Gram(node.x, scale, node.map), loc)
    row = shaped(build, vector, (1, t.shape[1]), loc)
    return negated(build, build.add(ir.Pointwise(Op.mul, (total, row)), loc), sign, loc)


def vectors_gradient(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(s * typed(x, W, t), t) -> W' gram(x, s, t)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if isinstance(node, ir.Gram) and node.map is None:
        return _shared_gradient(build, node, loc)
    if not isinstance(node, ir.Push) or not node.is_plain_sum:
        return None
    p = product(build, node.x)
    y = next((f for f in p.factors if not f.inverse and _typed(build, f.ref) is not None), None)
    if y is None or (typed := _typed(build, y.ref)) is None or typed.map != node.map:
        return None
    scales = [f for f in p.factors if f is not y]
    heads = p.shape[0] if len(p.shape) == 2 else 1
    if len(p.shape) not in (1, 2) or y.shape != p.shape or any(f.shape[-1] != 1 for f in scales):
        return None
    t = value_type(build, ref)
    space = value_type(build, node.x).space
    scale = multiplied(build, [Factor(f.ref, f.shape[:-1], f.inverse) for f in scales], t.dtype, space, loc)
    scale = shaped(build, scale, (heads,), loc)
    total = build.add(ir.Gram(typed.x, scale, node.map), loc)  # [K, H]
    (k,) = value_type(build, typed.x).shape
    w = build.add(ir.Reshape(typed.w, (k, heads, p.shape[-1])), loc)
    wide = build.add(ir.Reshape(total, (k, heads, 1)), loc)
    summed = _sum(build, build.add(ir.Pointwise(Op.mul, (w, wide)), loc), 0, loc)
    return negated(build, shaped(build, summed, t.shape, loc), p.sign, loc)


def _shared_gradient(build: Builder, node: ir.Gram, loc: Location) -> ir.Ref | None:
    """gram(typed(x, W, t), d) -> the sum over types of W' gram(x, d, t); its transpose for gram(d, typed(x, W, t))."""
    for y, d, transposed in ((node.x, node.y, False), (node.y, node.x, True)):
        typed = _typed(build, y)
        if typed is None or len(value_type(build, d).shape) != 1:
            continue
        total = build.add(ir.Gram(typed.x, d, typed.map), loc)  # [K, H]
        types = value_type(build, total).space
        (k, j), h = value_type(build, typed.w).shape, value_type(build, d).shape[0]
        w = build.add(ir.Reshape(typed.w, (k, j, 1)), loc)
        both = build.add(ir.Pointwise(Op.mul, (w, build.add(ir.Reshape(total, (k, 1, h)), loc))), loc)
        out = build.add(ir.Push(_sum(build, both, 0, loc), build.add(ir.ToUnit(types), loc), Fold.sum), loc)
        return build.add(ir.Permute(out, (1, 0)), loc) if transposed else out
    return None


def _times(build: Builder, w: ir.Ref, q: ir.Ref, loc: Location) -> ir.Ref:
    """w[t] q for every type t: `w: R x [K, J]`, `q: unit x [J, H]`."""
    wide = build.add(ir.Reshape(w, (*value_type(build, w).shape, 1)), loc)
    return _sum(build, build.add(ir.Pointwise(Op.mul, (wide, q)), loc), 1, loc)


def _before(build: Builder, q: ir.Ref, w: ir.Ref, loc: Location) -> ir.Ref:
    """q w[t] for every type t: `q: unit x [H, J]`, `w: R x [J, K]`."""
    h, j = value_type(build, q).shape
    wide = build.add(ir.Reshape(q, (h, j, 1)), loc)
    return _sum(build, build.add(ir.Pointwise(Op.mul, (wide, w)), loc), 1, loc)


def _shared(build: Builder, ref: ir.Ref) -> ir.MatMul | None:
    """The product if `ref` is one with shared weights that at least doubles a row's width; None otherwise.

    The gradient of a product with a few shared vectors is of this form.
    """
    node = build.nodes[below_reshapes(build, ref)]
    if (
        not isinstance(node, ir.MatMul)
        or node.map is not None
        or value_type(build, ref).shape != value_type(build, below_reshapes(build, ref)).shape
    ):
        return None
    (h, j) = value_type(build, node.w).shape
    return node if 2 * h <= j else None


def distributed(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """typed(a + b, W, t) -> typed(a, W, t) + typed(b, W, t), and likewise for grams, if other rules here fit a part."""
    node = build.nodes[ref]
    if not isinstance(node, ir.MatMul | ir.Gram) or node.map is None:
        return None
    m, side = node.map, len(ends(node)) - 1
    whole = ends(node)[side]
    shape, both = value_type(build, whole).shape, build.nodes[below_reshapes(build, whole)]
    if not isinstance(both, ir.Pointwise) or len(both.op.facts.signs) != 2 or len(shape) != 1:
        return None
    if any(numel(value_type(build, r).shape) != numel(shape) for r in both.args):
        return None
    parts = [shaped(build, r, shape, build.locs[ref]) for r in both.args]
    if not any(_scaled_vector(build, r, m) is not None or _shared(build, r) is not None for r in parts):
        return None
    return split(build, ref, side)


def _scaled_vector(build: Builder, ref: ir.Ref, m: ir.Ref) -> tuple[int, list[Factor], ir.Ref] | None:
    """(sign, factors of one number a row, w) if `ref` is their product with pull(w, m), where w has a vector a type."""
    t = value_type(build, ref)
    p = product(build, ref)
    vectors = [f for f in p.factors if f.shape[-1] != 1 or t.shape[-1] == 1]
    if len(p.shape) != 1 or len(vectors) != 1 or vectors[0].inverse or t.shape[-1] == 1:
        return None
    vector = _on_types(build, vectors[0], m)
    return None if vector is None else (p.sign, [f for f in p.factors if f is not vectors[0]], vector)


def _on_types(build: Builder, f: Factor, m: ir.Ref) -> ir.Ref | None:
    """The value on types whose pull along `m` is the factor `f`, or `f` itself if it is shared data; else None."""
    node = build.nodes[below_reshapes(build, f.ref)]
    if isinstance(node, ir.Pull) and node.map == m:
        return shaped(build, node.x, f.shape, build.locs[f.ref])
    return viewed(build, f, build.locs[f.ref]) if value_type(build, f.ref).space == UNIT else None


def _typed(build: Builder, ref: ir.Ref) -> ir.MatMul | None:
    node = build.nodes[below_reshapes(build, ref)]
    if not isinstance(node, ir.MatMul) or node.map is None or not isinstance(build.nodes[node.map], ir.MapOf):
        return None
    return node if len(value_type(build, node.x).shape) == 1 else None


def _sum(build: Builder, ref: ir.Ref, dim: int, loc: Location) -> ir.Ref:
    return build.add(ir.Reduce(ref, Fold.sum, (dim,), False), loc)


RULES = (
    Rule("reorder", "sum_j typed(x, W, t)[j] pull(w, t)[j]", "typed(x, W w, t)", dot),
    Rule("reorder-rows", "typed(s pull(w, t), W, t)", "s pull(W w, t)", rows_gradient),
    Rule("reorder-matrices", "gram(x, s pull(w, t), t)", "outer(gram(x, s, t), w)", matrices_gradient),
    Rule("reorder-vectors", "push(s typed(x, W, t), t)", "W' gram(x, s, t)", vectors_gradient),
    Rule("reorder-sums", "typed(a + b, W, t)", "typed(a, W, t) + typed(b, W, t)", distributed),
)
