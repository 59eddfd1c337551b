"""The operands of a typed product: rows that it gathers itself, and matrices that it reads as they lie.

A typed product is part of a kernel whose rows are the types (`is_walked`), or a call of its own. It pulls its rows
along a map and transposes its matrices on the fly, so neither result has to exist as a tensor. If a push of the product
is `fused`, the product's own rows need not exist either: the push adds up operand rows by destination and type, then
multiplies the sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from graphweave.analysis.flow import reached
from graphweave.core.types import Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel


@dataclass(frozen=True, slots=True)
class Gathered:
    """Rows of an operand: row r is row map(r) of `x`, or row r without a `map`. `x` may have another feature shape."""

    x: ir.Ref
    map: ir.Ref | None


@dataclass(frozen=True, slots=True)
class Matrices:
    """`w` of a typed product, or its transpose in the last two dims."""

    w: ir.Ref
    transposed: bool


def gathered(program: ir.Program, ref: ir.Ref) -> Gathered:
    """Where the rows of an operand of a typed product are read."""
    node = program.nodes[below(program, ref)]
    if isinstance(node, ir.Pull) and isinstance(program.nodes[node.map], ir.MapOf):
        return Gathered(node.x, node.map)
    return Gathered(ref, None)


def matrices(program: ir.Program, ref: ir.Ref) -> Matrices:
    """How the matrices of a typed MatMul are read."""
    node, t = program.nodes[ref], program.types[ref]
    assert isinstance(t, ir.Type)
    swapped = (*range(len(t.shape) - 2), len(t.shape) - 1, len(t.shape) - 2)
    if isinstance(node, ir.Permute) and node.perm == swapped:
        return Matrices(node.x, True)
    return Matrices(ref, False)


def below(program: ir.Program, ref: ir.Ref) -> ir.Ref:
    """The value of which `ref` is a reshape, or `ref` itself."""
    while isinstance(node := program.nodes[ref], ir.Reshape):
        ref = node.x
    return ref


@dataclass(frozen=True, slots=True)
class PushedProduct:
    """The rows of `product`, which is the node `ref`, times one number each (1 without `scale`), which a fused push
    computes itself."""

    ref: ir.Ref
    product: ir.MatMul
    scale: ir.Ref | None


def pushed_product(program: ir.Program, ref: ir.Ref) -> PushedProduct | None:
    """The product that the fused push `ref` computes itself: push(x W[t], m) or push(s * (x W[t]), m).

    None for any other node. The push must be a sum along a map of rows; reshapes of the product are looked through.
    """
    node = program.nodes[ref]
    if not isinstance(node, ir.Push) or not node.fused or not node.is_plain_sum:
        return None
    if not isinstance(program.nodes[node.map], ir.MapOf):
        return None
    x = below(program, node.x)
    scaled = program.nodes[x]
    candidates: list[tuple[ir.Ref, ir.Ref | None]] = [(x, None)]
    if isinstance(scaled, ir.Pointwise) and scaled.op is Op.mul:
        a, b = scaled.args
        candidates += [(b, a), (a, b)]
    for rows, scale in candidates:
        at = below(program, rows)
        product = program.nodes[at]
        if isinstance(product, ir.MatMul) and is_walked(program, at) and _numbers(program, scale, product):
            return PushedProduct(at, product, scale)
    return None


def _numbers(program: ir.Program, scale: ir.Ref | None, product: ir.MatMul) -> bool:
    """Whether `scale` is one number for each row of the product."""
    if scale is None:
        return True
    t, rows = program.types[scale], program.types[product.x]
    return isinstance(t, ir.Type) and isinstance(rows, ir.Type) and t.space == rows.space and numel(t.shape) == 1


def is_walked(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether kernels compute the typed product, type by type, each from the rows that the map sends to the type.

    They do if its elements are floats, unless it is `called`: then the vendor's library multiplies for each type.
    """
    node = program.nodes[ref]
    if not isinstance(node, ir.MatMul | ir.Gram) or node.called or node.map is None:
        return False
    matrix, t = program.types[node.w if isinstance(node, ir.MatMul) else ref], program.types[ref]
    if not isinstance(program.nodes[node.map], ir.MapOf):
        return False
    return isinstance(matrix, ir.Type) and isinstance(t, ir.Type) and t.dtype.is_float and min(matrix.shape) > 0


def blocks_of(program: ir.Program, ref: ir.Ref) -> int:
    """How many diagonal blocks the matrix of a type has, in a typed product or in its gram."""
    node = program.nodes[ref]
    t = program.types[node.w if isinstance(node, ir.MatMul) else ref]
    assert isinstance(t, ir.Type)
    return numel(t.shape[:-2])


def sources(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, ...]:
    """The values from which the node is computed: its operands, or those of the product that a fused push computes."""
    node, pushed = program.nodes[ref], pushed_product(program, ref)
    if pushed is None:
        return operands(node)
    assert isinstance(node, ir.Push)
    scale = () if pushed.scale is None else (pushed.scale,)
    return (*operands(pushed.product), *scale, node.map)


def computed_for(program: ir.Program, roots: Iterable[ir.Ref], stop: frozenset[ir.Ref] = frozenset()) -> set[ir.Ref]:
    """Every node that must be computed for `roots`, themselves included; nodes of `stop` are not followed."""
    return reached(roots, lambda ref: sources(program, ref), stop)


def call_operands(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, ...]:
    """The values that must exist for a call of the node. A typed product needs not its operands but what these are
    pulled or transposed from, since it does that on the fly."""
    node, pushed = program.nodes[ref], pushed_product(program, ref)
    others: list[ir.Ref] = []
    maps: list[ir.Ref] = []
    if pushed is not None:
        assert isinstance(node, ir.Push)
        maps = [node.map]
        others = [pushed.product.w] if pushed.scale is None else [pushed.product.w, pushed.scale]
        node = pushed.product
    match node:
        case ir.MatMul(x, w, int(m)):
            rows, others = [gathered(program, x)], others or [matrices(program, w).w]
        case ir.Gram(x, y, int(m)):
            rows = [gathered(program, x), gathered(program, y)]
        case _:
            return operands(node)
    gathers = [r.map for r in rows if r.map is not None]
    indices = [n.index for i in (*gathers, m, *maps) if isinstance(n := program.nodes[i], ir.MapOf)]
    return tuple(dict.fromkeys([*(r.x for r in rows), *others, *indices]))


def is_typed(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether the node is computed as a product that takes the matrix of each row along a map."""
    node = program.nodes[ref]
    if isinstance(node, ir.MatMul | ir.AddMatMul | ir.Gram):
        return node.map is not None
    return isinstance(node, ir.Push) and pushed_product(program, ref) is not None


def is_typed_product(node: ir.Node) -> bool:
    return isinstance(node, ir.MatMul) and node.map is not None
