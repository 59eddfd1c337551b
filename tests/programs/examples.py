"""Small programs, written by hand, that several tests use."""

from __future__ import annotations

from typing import TypeAlias

from graphweave.core.lines import NOWHERE, Location
from graphweave.core.sizes import Size, read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import (
    AnyType,
    Const,
    Input,
    MapOf,
    Node,
    Pointwise,
    Program,
    Pull,
    Push,
    Reshape,
    ToUnit,
    Type,
    ValueType,
)

V, W, E = Space("V"), Space("W"), Space("E")
Spaces: TypeAlias = "tuple[tuple[Space, Size | None], ...]"
SPACES: Spaces = ((V, read("s0")), (W, read("s1")), (E, read("s2")))


def one_node(node: Node, *given: Type | AnyType, spaces: Spaces = SPACES) -> Program:
    """A program of inputs %0, %1, ... of the given types, and `node`."""
    types: list[ValueType] = list(given)
    inputs = tuple(Input(f"in{i}", t) for i, t in enumerate(given))
    return Program((*inputs, node), (*given, infer(node, types)), (NOWHERE,) * (len(given) + 1), (len(given),), spaces)


def gat() -> Program:
    """One attention layer with four heads of eight features and PyG's softmax."""
    b = Builder()
    heads = Type(V, (4, 8), DType.f32)
    z = b.add(Input("z", heads), Location("gat.py", 20, "def forward(self, z, edge_index):"))
    score = b.add(Input("score", Type(E, (4,), DType.f32)))
    src = b.add(MapOf(b.add(Input("src", Type(E, (), DType.i64))), V))
    dst = b.add(MapOf(b.add(Input("dst", Type(E, (), DType.i64))), V))
    top = b.add(Pull(b.add(Push(score, dst, Fold.max)), dst), Location("gat.py", 23, "alpha = softmax(alpha, index)"))
    weight = b.add(Pointwise(Op.exp, (b.add(Pointwise(Op.sub, (score, top))),)))
    eps = b.add(Const(1e-16, Type(UNIT, (), DType.f32)))
    whole = b.add(Pointwise(Op.add, (b.add(Push(weight, dst, Fold.sum)), eps)))
    alpha = b.add(Pointwise(Op.div, (weight, b.add(Pull(whole, dst)))))
    message = b.add(
        Pointwise(Op.mul, (b.add(Pull(z, src)), b.add(Reshape(alpha, (4, 1))))), Location("gat.py", 25, "x_j * alpha")
    )
    out = b.add(Push(message, dst, Fold.sum))
    return b.program([out, None, alpha], [(V, read("s0")), (E, read("s1"))])


def moving(shape: tuple[int, ...], index_dtype: DType, fold: Fold, empty: float) -> Program:
    """Pulls x along src: E -> V, and folds that along dst: E -> W and over all edges. Inputs are x, src, dst."""
    b = Builder()
    x = b.add(Input("x", Type(V, shape, DType.f64)))
    src = b.add(MapOf(b.add(Input("src", Type(E, (), index_dtype))), V))
    dst = b.add(MapOf(b.add(Input("dst", Type(E, (), index_dtype))), W))
    message = b.add(Pull(x, src))
    total = b.add(Push(message, b.add(ToUnit(E)), fold, empty))
    return b.program([message, b.add(Push(message, dst, fold, empty)), total], SPACES)
