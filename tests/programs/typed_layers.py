"""Moves of random programs with types of edges: products with a matrix for each type, in every spelling."""

from __future__ import annotations

from collections.abc import Callable

from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.ir.message.nodes import (
    Const,
    Gram,
    Input,
    MatMul,
    Permute,
    Pull,
    Push,
    Reduce,
    Ref,
    Reshape,
    Type,
)
from tests.programs.layering import WIDTHS, Layering, R
from tests.programs.random_programs import E, V

_SPELLED = ((8, 8), (9, 8), (8, 9))
"""Matrices large enough for sums of products to be read as products."""

KINDS = 3
"""Numbers of the input `kind`."""


def rows_of_edges(s: Layering, width: int) -> Ref:
    """Rows of that width, pulled along either map or given on edges. They may be scaled or negated."""
    kind = s.choose(("src", "src", "src", "dst", "edge", "type"))
    if kind == "edge":
        x = s.fresh(E, width)
    elif kind == "type":
        x = s.pulled(s.fresh(R, width), s.etype)
    else:
        m = s.maps[kind == "dst"]
        x = s.pulled(s.fresh(s.cod(m), width), m)
    match s.choose(("plain", "plain", "scaled", "divided", "neg")):
        case "scaled":
            return s.of(Op.mul, x, s.fresh(E, *s.choose(((), (1,)))))
        case "divided":
            size = s.op(Op.mul, number := s.fresh(s.choose((E, UNIT)), 1), number)
            return s.bounded(s.op(Op.div, x, s.op(Op.add, size, s.number(1.0))), s.bound[x])
        case "neg":
            return s.bounded(s.op(Op.neg, x), s.bound[x])
    return x


def typed_linear(s: Layering, x: Ref, width: int) -> Ref:
    """x W[t], as a node or as the sum of products; x: [K] or [B, K]."""
    *blocks, k = s.type(x).shape
    turned = s.choose((False, False, True))
    w = s.fresh(R, *blocks, *((width, k) if turned else (k, width)))
    swap = (*range(len(blocks)), len(blocks) + 1, len(blocks))
    bound = 3.0 * k * s.bound[x]
    if s.choose((True, True, False)):
        w = s.add(Permute(w, swap)) if turned else w
        return s.bounded(s.add(MatMul(x, w, s.etype)), bound)
    matrices = s.add(Pull(w, s.etype))
    d = len(blocks)
    if turned and s.choose((True, False)):
        both = s.op(Op.mul, matrices, s.add(Reshape(x, (*blocks, 1, k))))
        return s.bounded(s.add(Reduce(both, Fold.sum, (d + 1,), False)), bound)
    matrices = s.add(Permute(matrices, swap)) if turned else matrices
    both = s.op(Op.mul, s.add(Reshape(x, (*blocks, k, 1))), matrices)
    return s.bounded(s.add(Reduce(both, Fold.sum, (d,), False)), bound)


def sizes(s: Layering) -> tuple[int, int]:
    return s.choose((*_SPELLED, (s.choose(WIDTHS), s.choose(WIDTHS))))


def relational(s: Layering) -> None:
    """A layer of R-GCN: messages by the matrix of their type, pushed along either map."""
    k, j = sizes(s)
    x = rows_of_edges(s, k)
    if s.choose((False, False, True)) and k % 2 == 0:
        out = typed_linear(s, s.reshaped(x, 2, k // 2), j)
        out = s.reshaped(out, 2 * j) if s.choose((True, False)) else out
    else:
        out = typed_linear(s, x, j)
    if s.choose((False, False, True)):
        out = s.activated(out)
    elif s.choose((False, True)):
        out = s.of(Op.mul, out, s.fresh(E, 1))
    s.offer(p := s.pushed(out, s.choose((*s.maps, s.etype)), s.choose(("sum", "sum", "mean", ""))), s.bound[p])


def typed_scores(s: Layering) -> None:
    """Attention as in R-GAT, with a vector for each type or one for all, on typed rows of one or both ends."""
    h, c = s.choose(((1, 4), (2, 3), (2, 2), (1, 1)))
    k = s.choose(WIDTHS)
    src, dst = s.maps
    z = typed_linear(s, s.pulled(s.fresh(V, k), src), h * c)
    score = scored(s, z, h, c)
    if s.choose((True, False)):
        other = typed_linear(s, s.pulled(s.fresh(s.dst_space, k), dst), h * c)
        score = s.of(s.choose((Op.add, Op.sub)), score, scored(s, other, h, c))
    score = s.activated(score) if h > 1 else score
    alpha = s.softmax(s.bounded(s.op(Op.tanh, score), 1.0) if s.bound[score] > 30 else score, dst)
    message = s.of(Op.mul, s.reshaped(z, h, c), s.reshaped(alpha, h, 1))
    s.offer(p := s.pushed(message, dst, "sum"), s.bound[p])


def scored(s: Layering, z: Ref, h: int, c: int) -> Ref:
    """One number for each head, [h]: by a vector for each type, a shared vector, or a few shared columns."""
    kind = s.choose(("types", "types", "shared", "columns", "one for all heads"))
    if kind == "columns":
        columns = s.fresh(UNIT, h * c, h)
        return s.bounded(s.add(MatMul(z, columns)), 3.0 * h * c * s.bound[z])
    rows = s.reshaped(z, h, c)
    if kind == "shared":
        vector = s.fresh(UNIT, h, c)
    else:
        vector = s.pulled(s.fresh(R, *((h, c) if kind == "types" else (c,))), s.etype)
    return s.reduced(s.of(Op.mul, rows, s.bounded(s.op(Op.mul, vector, s.number(0.25)), 1.25)), 1, False)


def typed_totals(s: Layering) -> None:
    """Outer products of rows summed by type, as in the gradient of matrices."""
    k, j = sizes(s)
    x, y = rows_of_edges(s, k), rows_of_edges(s, j)
    out = s.bounded(s.add(Gram(x, y, s.etype)), 64 * s.bound[x] * s.bound[y])
    flat = s.reshaped(out, k * j)
    s.offer(flat, s.bound[flat])
    if s.choose((True, False)):
        s.offer(p := s.pulled(flat, s.etype), s.bound[p])


def composed_weights(s: Layering) -> None:
    """The matrix of each type as a sum of a few that all share (Schlichtkrull et al., 2.2)."""
    bases, k, j = s.choose((1, 2, 3)), *s.choose(((8, 8), (9, 8)))
    flat = s.bounded(s.add(MatMul(s.fresh(R, bases), s.fresh(UNIT, bases, k * j))), 25.0 * bases)
    w = s.bounded(s.add(Reshape(flat, (k, j))), s.bound[flat])
    x = rows_of_edges(s, k)
    out = s.bounded(s.add(MatMul(x, w, s.etype)), k * s.bound[x] * s.bound[w])
    s.offer(p := s.bounded(s.add(Push(out, s.choose(s.maps), Fold.sum)), s.bound[out] * 12), s.bound[p])


def mean_by_kind(s: Layering) -> None:
    """Messages over the number of edges of their kind into the same row (R-GCN's 1 / c_{i,r}), in one-hot columns."""
    m = s.choose(s.maps)
    columns = s.add(Input(f"arange_0_{KINDS}", Type(UNIT, (KINDS,), DType.i64)))
    kind = s.add(Input("kind", Type(E, (), DType.i64)))
    here = s.op(Op.eq, columns, s.add(Reshape(kind, (1,))))
    one = s.add(Const(1.0, Type(s.choose((E, UNIT)), s.choose(((), (KINDS,))), s.dtype)))
    counts = s.add(Pull(s.add(Push(s.op(Op.where, here, one, s.number(0.0)), m, Fold.sum)), m))
    own = s.add(Reduce(s.op(Op.where, here, counts, s.number(0.0)), Fold.sum, (0,), s.choose((False, True))))
    x = s.pulled(s.row(V), s.maps[0])
    out = s.bounded(s.op(Op.div, x, s.reshaped(s.bounded(own, 64.0), 1)), s.bound[x])
    s.offer(p := s.pushed(out, m, "sum"), s.bound[p])


TYPED_MOVES: tuple[Callable[[Layering], None], ...] = (
    relational, relational, typed_scores, typed_totals, composed_weights, mean_by_kind,
)  # fmt: skip
