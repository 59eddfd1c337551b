"""Scalar expressions for the elements of message values, at a row or at an edge of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphweave.analysis.cones import type_of
from graphweave.core.types import UNIT
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.lower.feature_index import broadcast_index, flatten, scaled, unflatten


class NeedsLocal(Exception):
    """Raised if `ref` cannot be indexed lane by lane where it is used, and so must be computed into an array first."""

    def __init__(self, ref: ir.Ref) -> None:
        super().__init__(f"%{ref} must be a block of its own")
        self.ref = ref


_ROW = loop.Var("v")


@dataclass(slots=True)
class ValueScope:
    """Where values can be read at one level of the kernel: the row, or an edge of it.

    `at[ref]` is the buffer that holds the value, and the indices that come before the position of an element. `outer`
    is the scope of the row around an edge, which pulls along `map` read; `gathered[(value, map)]` are values of other
    rows. `position` is the row, or the edge in the user's order.
    """

    program: ir.Program
    at: dict[ir.Ref, tuple[str, tuple[loop.Expr, ...]]] = field(default_factory=dict)
    gathered: dict[tuple[ir.Ref, ir.Ref], tuple[str, tuple[loop.Expr, ...]]] = field(default_factory=dict)
    map: ir.Ref | None = None
    outer: ValueScope | None = None
    position: loop.Var = _ROW


def shape_of(program: ir.Program, ref: ir.Ref) -> tuple[int, ...]:
    return type_of(program, ref).shape


def element(scope: ValueScope, ref: ir.Ref, index: tuple[loop.IndexSum, ...], extents: Mapping[str, int]) -> loop.Expr:
    """Element `index` of value `ref` for the current row or edge."""
    program = scope.program
    node, t = program.nodes[ref], type_of(program, ref)
    place = find(scope, ref)
    if place is not None:
        return load(place, flatten(index, t.shape))
    match node:
        case ir.Const(value, _):
            return loop.Lit(value, t.dtype)
        case ir.Random(seed, _):
            at = flatten(index, t.shape)
            return loop.Uniform(element(scope, seed, (), extents), scope.position, numel(t.shape), at, t.dtype)
        case ir.Pointwise(op, args):
            return loop.Call(
                op, tuple(element(scope, a, broadcast_index(index, shape_of(program, a)), extents) for a in args)
            )
        case ir.Cast(x, dtype):
            return loop.CastTo(element(scope, x, index, extents), dtype)
        case ir.Broadcast(x, _):
            return element(scope, x, broadcast_index(index, shape_of(program, x)), extents)
        case ir.Permute(x, perm):
            inverse = [perm.index(i) for i in range(len(perm))]
            return element(scope, x, tuple(index[i] for i in inverse), extents)
        case ir.Slice(x, dim, start, _, step):
            moved = scaled(index[dim], step, start)
            return element(scope, x, (*index[:dim], moved, *index[dim + 1 :]), extents)
        case ir.Reshape(x, _):
            return flat_element(scope, x, flatten(index, t.shape), extents)
        case ir.Pull(x, m):
            return _pulled(scope, ref, x, m, index, extents)
        case _:
            raise NeedsLocal(ref)


def flat_element(scope: ValueScope, ref: ir.Ref, flat: loop.IndexSum, extents: Mapping[str, int]) -> loop.Expr:
    """Element at row-major position `flat` of value `ref`."""
    place = find(scope, ref)
    if place is not None:
        return load(place, flat)
    node = scope.program.nodes[ref]
    if isinstance(node, ir.Reshape):
        return flat_element(scope, node.x, flat, extents)
    if isinstance(node, ir.Pull) and isinstance(scope.program.nodes[node.map], ir.MapOf):
        if (node.x, node.map) in scope.gathered:
            return load(scope.gathered[(node.x, node.map)], flat)
        if scope.outer is not None and node.map == scope.map:
            return flat_element(scope.outer, node.x, flat, extents)
    index = unflatten(flat, shape_of(scope.program, ref), extents)
    if index is None:
        raise NeedsLocal(ref)
    return element(scope, ref, index, extents)


def find(scope: ValueScope, ref: ir.Ref) -> tuple[str, tuple[loop.Expr, ...]] | None:
    """Where `ref` can be loaded: at this level, or for shared data at any level around it; None if nowhere."""
    if ref in scope.at:
        return scope.at[ref]
    t = scope.program.types[ref]
    if scope.outer is not None and isinstance(t, ir.Type) and t.space == UNIT:
        return find(scope.outer, ref)
    return None


def load(place: tuple[str, tuple[loop.Expr, ...]], flat: loop.IndexSum) -> loop.Expr:
    name, leading = place
    return loop.Load(name, (*leading, flat))


def _pulled(
    scope: ValueScope, ref: ir.Ref, x: ir.Ref, m: ir.Ref, index: tuple[loop.IndexSum, ...], extents: Mapping[str, int]
) -> loop.Expr:
    program = scope.program
    if not isinstance(program.nodes[m], ir.MapOf):
        return element(scope, x, index, extents)
    if (x, m) in scope.gathered:
        return load(scope.gathered[(x, m)], flatten(index, shape_of(program, x)))
    assert scope.outer is not None and m == scope.map, f"%{ref} reads %{x} along a map that the kernel does not have"
    return element(scope.outer, x, index, extents)


def weight(program: ir.Program, ref: ir.Ref, kept: frozenset[ir.Ref], memo: dict[ir.Ref, int]) -> int:
    """The number of operations that evaluate one element of `ref` inline, with loads of `kept` values."""
    if ref in memo:
        return memo[ref]
    node = program.nodes[ref]
    if ref in kept or isinstance(node, ir.Const):
        out = 0
    elif isinstance(node, ir.Random):
        out = 16
    elif isinstance(node, ir.Pointwise):
        own = 16 if node.op.facts.dear else 1
        out = own + sum(weight(program, a, kept, memo) for a in node.args)
    elif isinstance(node, ir.Cast | ir.Broadcast | ir.Permute | ir.Slice | ir.Reshape):
        out = weight(program, node.x, kept, memo)
    else:
        out = 0
    memo[ref] = out
    return out
