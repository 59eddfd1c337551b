"""What a typed product reads: rows that it gathers itself, and matrices that it reads as they lie.

A typed product is a call of its own between kernels (`compiler/typed.py`). The pull of its rows along a map and the
transposition of its matrices are done on the fly, so neither has to exist as a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import (
    AddMatMul,
    Const,
    Gram,
    MapOf,
    MatMul,
    Node,
    Permute,
    Program,
    Pull,
    Ref,
    Reshape,
    Type,
    TypedPush,
)


@dataclass(frozen=True, slots=True)
class Gathered:
    """Row r is `x`'s row r, or where there is a `map` its row map(r). `x` may be shaped otherwise."""

    x: Ref
    map: Ref | None


@dataclass(frozen=True, slots=True)
class Matrices:
    """`w` of a typed product, or its transpose in the last two dims."""

    w: Ref
    transposed: bool


def gathered(program: Program, ref: Ref) -> Gathered:
    """Where the rows of an operand of a typed product are read."""
    node = program.nodes[below(program, ref)]
    if isinstance(node, Pull) and isinstance(program.nodes[node.map], MapOf):
        return Gathered(node.x, node.map)
    return Gathered(ref, None)


def matrices(program: Program, ref: Ref) -> Matrices:
    """How the matrices of a typed MatMul are read."""
    node, t = program.nodes[ref], program.types[ref]
    assert isinstance(t, Type)
    swapped = (*range(len(t.shape) - 2), len(t.shape) - 1, len(t.shape) - 2)
    if isinstance(node, Permute) and node.perm == swapped:
        return Matrices(node.x, True)
    return Matrices(ref, False)


def below(program: Program, ref: Ref) -> Ref:
    """What `ref` is a reshape of."""
    while isinstance(node := program.nodes[ref], Reshape):
        ref = node.x
    return ref


def call_operands(program: Program, ref: Ref) -> tuple[Ref, ...]:
    """The values that must exist for a call of the node: its operands, but for what a typed product does on the fly."""
    node = program.nodes[ref]
    types: list[Ref] = []
    match node:
        case MatMul(x, w, int()):
            rows, others = [gathered(program, x)], [matrices(program, w).w]
        case Gram(x, y, int()):
            rows, others = [gathered(program, x), gathered(program, y)], []
        case TypedPush(x, w, scale, t):
            rows, others, types = [gathered(program, x)], [matrices(program, w).w], [t]
            others += [] if isinstance(program.nodes[scale], Const) else [scale]
        case _:
            return operands(node)
    maps = [r.map for r in rows if r.map is not None]
    assert node.map is not None
    indices = [n.index for m in (*maps, *types, node.map) if isinstance(n := program.nodes[m], MapOf)]
    return tuple(dict.fromkeys([*(r.x for r in rows), *others, *indices]))


def is_typed(node: Node) -> bool:
    """Whether `node` is a product whose matrices are chosen along a map."""
    return isinstance(node, TypedPush) or (isinstance(node, MatMul | AddMatMul | Gram) and node.map is not None)


def is_typed_product(node: Node) -> bool:
    return isinstance(node, MatMul) and node.map is not None
