"""What a typed product reads: rows that it gathers itself, and matrices that it reads as they lie.

A typed product is part of a kernel whose rows are the types (`is_walked`), or a call of its own. The pull of its rows
along a map and the transposition of its matrices are done on the fly, so neither has to exist as a tensor. Nor have its
rows where a push of them is `fused`: they are added up by destination and type before they are multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.analysis.flow import reached
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import (
    AddMatMul,
    Gram,
    MapOf,
    MatMul,
    Node,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Ref,
    Reshape,
    Type,
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


@dataclass(frozen=True, slots=True)
class PushedProduct:
    """The rows of `product`, which is the node `ref`, times one number each (1 without `scale`), multiplied as they are
    pushed."""

    ref: Ref
    product: MatMul
    scale: Ref | None


def pushed_product(program: Program, ref: Ref) -> PushedProduct | None:
    """What the push `ref` multiplies itself: push(x W[t], m) or push(s * (x W[t]), m) that the schedule has fused.

    None for any other node. Sums of f32 or f64 along a map of rows; the product may be seen through reshapes.
    """
    node = program.nodes[ref]
    if not isinstance(node, Push) or not node.fused or node.fold is not Fold.sum or node.empty != 0:
        return None
    if not isinstance(program.nodes[node.map], MapOf):
        return None
    x = below(program, node.x)
    scaled = program.nodes[x]
    candidates: list[tuple[Ref, Ref | None]] = [(x, None)]
    if isinstance(scaled, Pointwise) and scaled.op is Op.mul:
        a, b = scaled.args
        candidates += [(b, a), (a, b)]
    for rows, scale in candidates:
        at = below(program, rows)
        product = program.nodes[at]
        if isinstance(product, MatMul) and is_walked(program, at) and _numbers(program, scale, product):
            return PushedProduct(at, product, scale)
    return None


_MULTIPLIED = (DType.f32, DType.f64)

WIDEST = 512
"""Rows and columns up to which C++ kernels multiply by a matrix for each type."""


def _numbers(program: Program, scale: Ref | None, product: MatMul) -> bool:
    """Whether `scale` is one number for each row of the product."""
    if scale is None:
        return True
    t, rows = program.types[scale], program.types[product.x]
    return isinstance(t, Type) and isinstance(rows, Type) and t.space == rows.space and numel(t.shape) == 1


def is_walked(program: Program, ref: Ref) -> bool:
    """Whether kernels compute the typed product: type by type, from the rows that the map sends there.

    Of floats, unless it is called: then the vendor's library computes one product for each type.
    """
    node = program.nodes[ref]
    if not isinstance(node, MatMul | Gram) or node.called or node.map is None:
        return False
    matrix, t = program.types[node.w if isinstance(node, MatMul) else ref], program.types[ref]
    if not isinstance(program.nodes[node.map], MapOf):
        return False
    return isinstance(matrix, Type) and isinstance(t, Type) and t.dtype.is_float and min(matrix.shape) > 0


def blocks_of(program: Program, ref: Ref) -> int:
    """How many matrices a type has in a typed product, or in its gram: blocks on a diagonal."""
    node = program.nodes[ref]
    t = program.types[node.w if isinstance(node, MatMul) else ref]
    assert isinstance(t, Type)
    return numel(t.shape[:-2])


def sources(program: Program, ref: Ref) -> tuple[Ref, ...]:
    """What the node is computed from: its operands, or those of the product that a push multiplies itself."""
    node, pushed = program.nodes[ref], pushed_product(program, ref)
    if pushed is None:
        return operands(node)
    assert isinstance(node, Push)
    scale = () if pushed.scale is None else (pushed.scale,)
    return (*operands(pushed.product), *scale, node.map)


def computed_for(program: Program, roots: Iterable[Ref], stop: frozenset[Ref] = frozenset()) -> set[Ref]:
    """Every node that must be computed for `roots`, themselves included, and nothing behind `stop`."""
    return reached(roots, lambda ref: sources(program, ref), stop)


def call_operands(program: Program, ref: Ref) -> tuple[Ref, ...]:
    """The values that must exist for a call of the node: its operands, but for what a typed product does on the fly."""
    node, pushed = program.nodes[ref], pushed_product(program, ref)
    others: list[Ref] = []
    maps: list[Ref] = []
    if pushed is not None:
        assert isinstance(node, Push)
        maps = [node.map]
        others = [pushed.product.w] if pushed.scale is None else [pushed.product.w, pushed.scale]
        node = pushed.product
    match node:
        case MatMul(x, w, int(m)):
            rows, others = [gathered(program, x)], others or [matrices(program, w).w]
        case Gram(x, y, int(m)):
            rows = [gathered(program, x), gathered(program, y)]
        case _:
            return operands(node)
    gathers = [r.map for r in rows if r.map is not None]
    indices = [n.index for i in (*gathers, m, *maps) if isinstance(n := program.nodes[i], MapOf)]
    return tuple(dict.fromkeys([*(r.x for r in rows), *others, *indices]))


def is_typed(program: Program, ref: Ref) -> bool:
    """Whether the node is computed as a product whose matrices are chosen along a map."""
    node = program.nodes[ref]
    if isinstance(node, MatMul | AddMatMul | Gram):
        return node.map is not None
    return isinstance(node, Push) and pushed_product(program, ref) is not None


def is_typed_product(node: Node) -> bool:
    return isinstance(node, MatMul) and node.map is not None
