"""Reverse-mode differentiation of message programs, inside the IR: forward and backward as one program.

The derivatives are PyTorch's, ties and kinks included, as far as a program of the algebra can say it: the maximum of a
row without edges counts as one of those that reach it, as `scatter_reduce` has it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from graphweave.core.formulas import evaluate
from graphweave.core.lines import Location
from graphweave.core.types import UNIT, DType, Fold, Op
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.nodes import (
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MatMul,
    Node,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Reduce,
    Ref,
    Reshape,
    Slice,
    ToUnit,
    Type,
)

TANGENT = "tangent_"


@dataclass(frozen=True, slots=True)
class Joint:
    """`program` gives the `num_forward` outputs of the forward, then the gradient of every float input, in order.

    None stands for the gradient of an input that no output depends on. `tangents` are the names of the inputs
    that arrive with the backward: `tangent_<i>` for output i, where that is a float.
    """

    program: Program
    num_forward: int
    tangents: frozenset[str]


def joint(forward: Program, constants: Container[Ref] = ()) -> Joint:
    """`forward` and its derivative together. No gradient passes through `constants`, calls and folds by product."""
    b = Builder()
    where: dict[Ref, Ref] = {}
    for ref, node in enumerate(forward.nodes):
        where[ref] = b.add(with_operands(node, where.__getitem__), forward.locs[ref])
    stop = {where[r] for r in where if r in constants}
    grads = _Gradients(b)
    tangents = []
    for i, out in enumerate(forward.outputs):
        t = None if out is None else forward.types[out]
        if out is not None and isinstance(t, Type) and t.dtype.is_float:
            tangents.append(f"{TANGENT}{i}")
            grads.add(where[out], b.add(Input(tangents[-1], t)))
    for ref in reversed(range(max(where.values(), default=-1) + 1)):
        if ref in grads.parts and ref not in stop:
            _backward(grads, ref, b.nodes[ref], grads.total(ref))
    outputs = [None if r is None else where[r] for r in forward.outputs]
    for ref, node in enumerate(forward.nodes):
        if isinstance(node, Input) and isinstance(node.type, Type) and node.type.dtype.is_float:
            outputs.append(grads.total(where[ref]) if where[ref] in grads.parts else None)
    return Joint(b.program(outputs, forward.spaces), len(forward.outputs), frozenset(tangents))


class _Gradients:
    """Collects the summands of each value's gradient, and writes the nodes that compute it."""

    def __init__(self, build: Builder) -> None:
        self.build = build
        self.parts: dict[Ref, list[Ref]] = {}

    def type(self, ref: Ref) -> Type:
        t = self.build.types[ref]
        assert isinstance(t, Type)
        return t

    def node(self, node: Node) -> Ref:
        return self.build.add(node, Location(code="backward"))

    def op(self, op: Op, *args: Ref) -> Ref:
        return self.node(Pointwise(op, args))

    def number(self, value: float, dtype: DType) -> Ref:
        return self.node(Const(value, Type(UNIT, (), dtype)))

    def add(self, ref: Ref, grad: Ref) -> None:
        """Adds `grad` to the gradient of `ref`, which may have been broadcast to the rows and features of `grad`."""
        t = self.build.types[ref]
        if isinstance(t, Type) and t.dtype.is_float:
            self.parts.setdefault(ref, []).append(self.narrowed(grad, t))

    def total(self, ref: Ref) -> Ref:
        """The gradient of `ref`, with the type of `ref`."""
        first, *rest = self.parts[ref]
        for r in rest:
            first = self.op(Op.add, first, r)
        self.parts[ref] = [first]
        return first

    def narrowed(self, grad: Ref, t: Type) -> Ref:
        """The transpose of broadcasting `t` to the type of `grad`: sums over rows and features."""
        space, shape = self.type(grad).space, self.type(grad).shape
        if t.space == UNIT and space != UNIT:
            grad = self.node(Push(grad, self.node(ToUnit(space)), Fold.sum))
        lead = len(shape) - len(t.shape)
        dims = tuple(d for d, n in enumerate(shape) if d < lead or (t.shape[d - lead] == 1 and n != 1))
        if dims:
            grad = self.node(Reduce(grad, Fold.sum, dims, True))
        return grad if self.type(grad).shape == t.shape else self.node(Reshape(grad, t.shape))

    def ones_where(self, condition: Ref, dtype: DType) -> Ref:
        return self.node(Cast(condition, dtype))


def _backward(s: _Gradients, ref: Ref, node: Node, g: Ref) -> None:
    """Gradients of the operands of `node`, where `g` is the gradient of `ref`."""
    match node:
        case Pull(x, m):
            s.add(x, s.node(Push(g, m, Fold.sum)))
        case Push(x, m, Fold.sum):
            s.add(x, s.node(Pull(g, m)))
        case Push(x, m, Fold.max | Fold.min):
            _extreme_of_rows(s, ref, node, g)
        case Reduce(_, fold) if fold is not Fold.mul:
            _reduced(s, ref, node, g)
        case Cast(x):
            if s.type(x).dtype.is_float:
                s.add(x, s.node(Cast(g, s.type(x).dtype)))
        case MatMul(x, w, m):
            s.add(x, s.node(MatMul(g, _turned(s, w), m)))
            s.add(w, s.node(Gram(x, g, m)))
        case Gram(x, y, m):
            s.add(x, s.node(MatMul(y, _turned(s, g), m)))
            s.add(y, s.node(MatMul(x, g, m)))
        case Concat(xs, dim):
            start = 0
            for x in xs:
                stop = start + s.type(x).shape[dim]
                s.add(x, s.node(Slice(g, dim, start, stop)))
                start = stop
        case Pointwise(op, args) if s.type(ref).dtype.is_float:
            _pointwise(s, ref, op, args, g)
        case Reshape(x) | Broadcast(x) | Permute(x) | Slice(x) | Pad(x):
            _moved(s, x, node, g)
        case _:
            return


def _turned(s: _Gradients, w: Ref) -> Ref:
    """The transposes of matrices."""
    rank = len(s.type(w).shape)
    return s.node(Permute(w, (*range(rank - 2), rank - 1, rank - 2)))


def _extreme_of_rows(s: _Gradients, ref: Ref, node: Push, g: Ref) -> None:
    """Shares `g` evenly among all that equal the extreme, the value of rows without edges included (scatter_reduce)."""
    dtype = s.type(ref).dtype
    reached = s.ones_where(s.op(Op.eq, node.x, s.node(Pull(ref, node.map))), dtype)
    start = s.ones_where(s.op(Op.eq, ref, s.number(node.empty, dtype)), dtype)
    count = s.op(Op.add, start, s.node(Push(reached, node.map, Fold.sum)))
    share = s.op(Op.div, g, count)
    s.add(node.x, s.op(Op.mul, reached, s.node(Pull(share, node.map))))


def _reduced(s: _Gradients, ref: Ref, node: Reduce, g: Ref) -> None:
    t = s.type(node.x)
    kept = tuple(1 if d in node.dims else n for d, n in enumerate(t.shape))
    g, out = (r if s.type(r).shape == kept else s.node(Reshape(r, kept)) for r in (g, ref))
    if node.fold is not Fold.sum:
        reached = s.ones_where(s.op(Op.eq, node.x, out), t.dtype)
        count = s.node(Reduce(reached, Fold.sum, node.dims, True))
        s.add(node.x, s.op(Op.div, s.op(Op.mul, g, reached), count))
    else:
        s.add(node.x, g if kept == t.shape else s.node(Broadcast(g, t.shape)))


def _moved(s: _Gradients, x: Ref, node: Node, g: Ref) -> None:
    shape = s.type(x).shape
    match node:
        case Reshape():
            s.add(x, s.node(Reshape(g, shape)))
        case Permute(_, perm):
            s.add(x, s.node(Permute(g, tuple(perm.index(d) for d in range(len(perm))))))
        case Pad(_, dim, before):
            s.add(x, s.node(Slice(g, dim, before, before + shape[dim])))
        case Slice(_, dim, start, _, step):
            if step > 1:
                g = _spaced(s, g, dim, step, shape[dim] - start)
            after = shape[dim] - start - s.type(g).shape[dim]
            s.add(x, s.node(Pad(g, dim, start, after)) if start or after else g)
        case _:
            s.add(x, g)  # the gradient of a broadcast is summed by `add`


def _spaced(s: _Gradients, g: Ref, dim: int, step: int, room: int) -> Ref:
    """`g` with step - 1 zeros after each element along `dim`, cut where there is no room."""
    shape = s.type(g).shape
    apart = s.node(Pad(s.node(Reshape(g, (*shape[: dim + 1], 1, *shape[dim + 1 :]))), dim + 1, 0, step - 1))
    count = shape[dim] * step
    row = s.node(Reshape(apart, (*shape[:dim], count, *shape[dim + 1 :])))
    return row if count <= room else s.node(Slice(row, dim, 0, room))


def _pointwise(s: _Gradients, ref: Ref, op: Op, args: tuple[Ref, ...], g: Ref) -> None:
    names = dict(zip("xyz", args, strict=False)) | {"out": ref, "g": g}
    dtype = s.type(ref).dtype
    for x, formula in zip(args, op.facts.derivative or (), strict=False):
        if formula:
            s.add(x, evaluate(formula, names, lambda o, given: s.op(o, *given), lambda v: s.number(v, dtype)))
