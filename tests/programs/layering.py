"""Values of a random program as it grows: rows, layers and folds over edges, each with a bound on its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.nodes import Const, Input, MapOf, MatMul, Pull, Push, Reduce, Ref, Reshape, Type
from tests.programs.random_programs import E, Growing, V, W

G, M, R = Space("G"), Space("M"), Space("R")
WIDTHS = (1, 2, 4, 6)


@dataclass(slots=True)
class Layering(Growing):
    constants: set[Ref] = field(default_factory=set)
    """Values through which no gradient passes."""
    batch: Ref = -1
    etype: Ref = -1

    def __post_init__(self) -> None:
        self.dst_space = self.choose((V, V, V, W))
        index_type = Type(E, (), self.choose((DType.i64, DType.i64, DType.i32)))
        for name, cod in (("src", V), ("dst", self.dst_space)):
            index = self.add(Input(name, index_type))
            self.maps.append(self.add(MapOf(index, cod, self.choose((False, False, False, True)))))
        self.batch = self.add(MapOf(self.add(Input("batch", Type(V, (), DType.i64))), G))
        self.etype = self.add(MapOf(self.add(Input("etype", index_type)), R, self.choose((False, False, True))))
        for space in dict.fromkeys((V, self.dst_space, G, R)):
            self.input(Type(space, (self.choose(WIDTHS),), self.dtype))

    # ------------------------------------------------------------ values

    def cod(self, m: Ref) -> Space:
        return V if m == self.maps[0] else self.dst_space

    def fresh(self, space: Space, *shape: int) -> Ref:
        """A new input that later moves do not choose."""
        ref = self.add(Input(f"{space}_{len(self.builder.nodes)}", Type(space, shape, self.dtype)))
        self.bound[ref] = 5.0
        return ref

    def row(self, space: Space) -> Ref:
        """A value of rank 1 on `space`."""
        found = self.some(lambda t: t.space == space and len(t.shape) == 1)
        return found if found is not None else self.input(Type(space, (self.choose(WIDTHS),), self.dtype))

    def bounded(self, ref: Ref, bound: float) -> Ref:
        """Records the bound of `ref`, or of `ref` scaled down where that is large."""
        if bound > 100.0:
            ref, bound = self.op(Op.mul, ref, self.number(2.0**-6 if bound < 512 else 8.0 / bound)), 8.0
        self.bound[ref] = min(bound, self.bound.get(ref, bound))
        return ref

    def offer(self, ref: Ref, bound: float) -> Ref:
        ref = self.bounded(ref, bound)
        self.pool.append(ref)
        return ref

    def of(self, op: Op, *args: Ref) -> Ref:
        """A sum, difference or product, with its bound."""
        bounds = [self.bound[a] for a in args]
        return self.bounded(self.op(op, *args), bounds[0] * bounds[1] if op is Op.mul else sum(bounds))

    def pulled(self, ref: Ref, m: Ref) -> Ref:
        return self.bounded(self.add(Pull(ref, m)), self.bound[ref])

    def reshaped(self, ref: Ref, *shape: int) -> Ref:
        if self.type(ref).shape == shape:
            return ref
        return self.bounded(self.add(Reshape(ref, shape)), self.bound[ref])

    def linear(self, ref: Ref, width: int) -> Ref:
        """ref W, with or without a bias."""
        (k,) = self.type(ref).shape
        w = self.fresh(UNIT, k, width)
        out = self.bounded(self.add(MatMul(ref, w)), 3.0 * self.bound[ref] * k)
        return self.of(Op.add, out, self.fresh(UNIT, width)) if self.choose((False, True)) else out

    def activated(self, ref: Ref) -> Ref:
        """Leaky ReLU, ELU or ReLU of `ref` plus an offset, or a smooth activation."""
        t = self.type(ref)
        kind = self.choose(("leaky", "elu", "relu", "tanh", "sigmoid", "exp", "none"))
        if kind == "none":
            return ref
        if kind in ("tanh", "sigmoid"):
            return self.bounded(self.op(Op(kind), ref), 1.0)
        if kind == "exp":
            return self.bounded(self.op(Op.exp, self.op(Op.tanh, ref)), 2.72)
        bias = self.fresh(UNIT, *t.shape[-1:])
        x = self.of(Op.add, ref, bias)
        if kind == "relu":
            return self.bounded(self.op(Op.relu, x), self.bound[x])
        positive = self.op(Op.gt, x, self.number(0.0))
        low = self.op(Op.mul, x, self.number(0.2)) if kind == "leaky" else self.op(Op.expm1, self.of_modest(x))
        return self.bounded(self.op(Op.where, positive, x, low), max(self.bound[x], 8.0))

    def of_modest(self, x: Ref) -> Ref:
        """`x` limited to values below 1, for elements at which the result of expm1 is not used."""
        return self.op(Op.minimum, x, self.number(0.984375))

    def reduced(self, ref: Ref, dim: int, keepdim: bool) -> Ref:
        n = self.type(ref).shape[dim]
        return self.bounded(self.add(Reduce(ref, Fold.sum, (dim,), keepdim)), n * self.bound[ref])

    def degree(self, m: Ref) -> Ref:
        """The number of edges of each row, or the sum of their weights. It is positive for rows with edges."""
        if self.choose((True, True, False)):
            return self.add(Push(self.add(Const(1.0, Type(E, (), self.dtype))), m, Fold.sum))
        weight = self.op(Op.add, self.op(Op.sigmoid, self.fresh(E)), self.number(0.5))
        return self.add(Push(weight, m, Fold.sum))

    def pushed(self, ref: Ref, m: Ref, fold: str = "") -> Ref:
        """A sum, mean or extreme along a map of edges."""
        fold = fold or self.choose(("sum", "sum", "sum", "mean", "max", "min"))
        rank = len(self.type(ref).shape)
        if fold == "sum":
            return self.bounded(self.add(Push(ref, m, Fold.sum)), self.bound[ref] * 12)
        if fold == "mean":
            total = self.add(Push(ref, m, Fold.sum))
            count = self.op(Op.maximum, self.add(Push(self.add(Const(1.0, Type(E, (), self.dtype))), m, Fold.sum)),
                            self.number(1.0))  # fmt: skip
            return self.bounded(self.op(Op.div, total, self.add(Reshape(count, (1,) * rank))), self.bound[ref])
        apart = self.of(Op.add, ref, self.fresh(E, *self.type(ref).shape))
        empty = self.choose((0.0, 0.0, -1.5))
        return self.bounded(self.add(Push(apart, m, Fold(fold), empty)), self.bound[apart] + 1.5)

    def softmax(self, score: Ref, m: Ref) -> Ref:
        """The softmax over the edges of each row of `m`, with the maximum subtracted as a constant."""
        score = self.bounded(self.op(Op.mul, score, self.number(0.25)), self.bound[score] / 4)
        if self.choose((True, True, False)):
            top = self.add(Pull(self.add(Push(score, m, Fold.max)), m))
            self.constants.add(top)
            weight = self.op(Op.exp, self.op(Op.sub, score, top))
        else:
            weight = self.op(Op.exp, self.op(Op.tanh, score))
        whole = self.add(Push(weight, m, Fold.sum))
        if self.choose((False, True)):
            whole = self.op(Op.add, whole, self.number(1e-16))
        return self.bounded(self.op(Op.div, weight, self.add(Pull(whole, m))), 1.0)
