"""Linear operators on rows: sums and copies along maps, times numbers of a row, and sums of these.

Such an operator A makes each row of A x from rows of x, and treats all features alike. It therefore commutes with
products on features, (A x) W = A (x W), and has a transpose, gram(A x, g) = gram(x, A' g), where A' copies where A
sums, and sums where A copies. With several values x it is A1 x1 + A2 x2 + ...
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import below_reshapes, negated, shaped, value_type
from graphweave.passes.finite import finite_without_edges, keeps_zero
from graphweave.passes.rules.factor import where_edges

_MAX_NODES = 64
"""An operator is read through at most this many nodes; what is beyond them is what the operator acts on."""


class NodesAndTypes(Protocol):
    """Nodes and their types: a program, or a builder."""

    @property
    def nodes(self) -> Sequence[ir.Node]: ...
    @property
    def types(self) -> Sequence[ir.ValueType]: ...


@dataclass(frozen=True, slots=True)
class RowOperator:
    """The value `ref` is a linear operator of the values `bases`. `steps` are the operator's nodes, operands first."""

    ref: ir.Ref
    steps: tuple[ir.Ref, ...]
    bases: tuple[ir.Ref, ...]


def row_operator(program: NodesAndTypes, ref: ir.Ref, whole: Collection[ir.Ref] = ()) -> RowOperator | None:
    """`ref` as an operator that sums along a map; None if it is none. Nodes of `whole` are not looked into.

    Row-wise sums below which no row moves are bases: (x + y) W is cheaper than x W + y W.
    """
    moving: dict[ir.Ref, bool] = {}

    def moves(r: ir.Ref) -> bool:
        """Whether `r` is a step below which rows are copied or summed along a map."""
        if r not in moving:
            moving[r] = False
            if len(moving) <= _MAX_NODES and r not in whole:
                below = [moves(x) for x in linear_operands(program, r)]
                moving[r] = any(below) or (bool(below) and isinstance(program.nodes[r], ir.Push | ir.Pull))
        return moving[r]

    if not moves(ref):
        return None
    steps, bases, todo = set[ir.Ref](), set[ir.Ref](), [ref]
    while todo:
        r = todo.pop()
        inner = () if r in whole else linear_operands(program, r)
        if moves(r) or len(inner) == 1:
            if r not in steps:
                steps.add(r)
                todo.extend(inner)
        else:
            bases.add(r)
    if not any(isinstance(program.nodes[r], ir.Push) for r in steps):
        return None
    return RowOperator(ref, tuple(sorted(steps)), tuple(sorted(bases)))


def linear_operands(program: NodesAndTypes, ref: ir.Ref) -> tuple[ir.Ref, ...]:
    """The operands of which the node is a linear operator on rows; none if it is no such step."""
    node = program.nodes[ref]
    match node:
        case ir.Push(x, m, Fold.sum, 0, False) | ir.Pull(x, m) if isinstance(program.nodes[m], ir.MapOf):
            return (x,)
        case ir.Reshape(x) | ir.Pointwise(Op.neg, (x,)):
            return (x,)
        case ir.Pointwise(Op.mul | Op.div, _):
            return () if (found := _scaled(program, ref)) is None else found[:1]
        case ir.Pointwise(Op.add | Op.sub, (a, b)) if program.types[a] == program.types[b] == program.types[ref]:
            return a, b
        case _:
            return ()


def _scaled(program: NodesAndTypes, ref: ir.Ref) -> tuple[ir.Ref, ir.Ref] | None:
    """(x, s) if `ref` is x times or divided by s, one number a row or for all rows."""
    node = program.nodes[ref]
    assert isinstance(node, ir.Pointwise)
    x, s = node.args
    if node.op is Op.mul and not _is_number(program, s):
        x, s = s, x
    return (x, s) if _is_number(program, s) and program.types[x] == program.types[ref] else None


def _is_number(program: NodesAndTypes, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) and numel(t.shape) == 1


def applied(build: Builder, op: RowOperator, values: Mapping[ir.Ref, ir.Ref], loc: Location) -> ir.Ref:
    """The operator applied to other rows: `values` has one of the same space for each base, all of one shape."""
    done = dict(values)
    for ref in op.steps:
        node = build.nodes[ref]
        x, *more = (done[r] for r in linear_operands(build, ref))
        match node:
            case ir.Push(_, m):
                done[ref] = build.add(ir.Push(x, m, Fold.sum), loc)
            case ir.Pull(_, m):
                done[ref] = build.add(ir.Pull(x, m), loc)
            case ir.Pointwise(Op.sub):
                done[ref] = build.add(ir.Pointwise(Op.sub, (x, *more)), loc)
            case ir.Pointwise(Op.add):
                done[ref] = total(build, (x, *more), loc)
            case _:
                done[ref] = _in_row(build, ref, x, loc)
    return done[op.ref]


def transposed(build: Builder, op: RowOperator, g: ir.Ref, loc: Location) -> dict[ir.Ref, ir.Ref]:
    """The rows, one value for each base, that the transpose of the operator makes of the rows `g`."""
    parts: dict[ir.Ref, list[ir.Ref]] = {op.ref: [g]}
    for ref in reversed(op.steps):
        node, rows = build.nodes[ref], total(build, parts[ref], loc)
        first, *second = linear_operands(build, ref)
        match node:
            case ir.Push(_, m):
                rows = build.add(ir.Pull(rows, m), loc)
            case ir.Pull(_, m):
                rows = build.add(ir.Push(rows, m, Fold.sum), loc)
            case ir.Pointwise(Op.add | Op.sub):
                pass
            case _:
                rows = _in_row(build, ref, rows, loc)
        parts.setdefault(first, []).append(rows)
        for r in second:
            sign = -1 if isinstance(node, ir.Pointwise) and node.op is Op.sub else 1
            parts.setdefault(r, []).append(negated(build, rows, sign, loc))
    return {base: total(build, parts[base], loc) for base in op.bases}


def total(build: Builder, values: Iterable[ir.Ref], loc: Location) -> ir.Ref:
    """The sum of `values`; the same values in another order give the same node."""
    first, *others = sorted(values)
    for r in others:
        first = build.add(ir.Pointwise(Op.add, (first, r)), loc)
    return first


def _in_row(build: Builder, ref: ir.Ref, x: ir.Ref, loc: Location) -> ir.Ref:
    """The reshape, minus or number of step `ref` applied to `x`; a reshape leaves it as it is."""
    match build.nodes[ref]:
        case ir.Pointwise(Op.neg):
            return negated(build, x, -1, loc)
        case ir.Pointwise(op):
            found = _scaled(build, ref)
            assert found is not None
            s, rank = found[1], len(value_type(build, x).shape)
            s = s if len(value_type(build, s).shape) <= rank else shaped(build, below_reshapes(build, s), (), loc)
            return build.add(ir.Pointwise(op, (x, s)), loc)
        case _:
            return x


# ---------------------------------------------------------------- rows that the operator does not read


def with_transpose(build: Builder, ref: ir.Ref) -> tuple[RowOperator, dict[ir.Ref, ir.Ref | None]] | None:
    """`ref` as an operator whose transpose is finite where it is, and the map outside of which each base is not read.

    A row that no edge pulls may hold anything, such as 1 / degree for degree 0, and adds nothing to A x. In
    gram(x, A' g) it meets a 0 instead. So what has a number that may not be finite there is a base, and a base that may
    not be finite has a map: its rows without edges along that map must become 0. None where neither helps.
    """
    op = row_operator(build, ref)
    if op is None:
        return None
    pulls = _pulled_along(build, op)
    unsafe = {r for r in op.steps if any(m is not None and not _keeps_zero(build, r, m) for m in pulls[r])}
    if unsafe:
        op = row_operator(build, ref, unsafe)
        if op is None:
            return None
        pulls = _pulled_along(build, op)
    read: dict[ir.Ref, ir.Ref | None] = {}
    for base in op.bases:
        maps = pulls[base]
        everywhere = None in maps or any(finite_without_edges(build, base, m) for m in maps if m is not None)
        if not everywhere and len(maps) > 1:
            return None
        read[base] = None if everywhere else next(iter(maps))
    if any(isinstance(build.nodes[r], ir.Pull) and pulls[r] != {None} for r in op.steps):
        return None  # of what a pull reads, another one reads only a part
    return op, read


def _pulled_along(build: Builder, op: RowOperator) -> dict[ir.Ref, set[ir.Ref | None]]:
    """For each node the maps along which the operator pulls it, itself or what is computed from it in a row; None
    among them if all its rows are read."""
    found: dict[ir.Ref, set[ir.Ref | None]] = {op.ref: {None}}
    for ref in reversed(op.steps):
        node = build.nodes[ref]
        maps = {node.map} if isinstance(node, ir.Pull) else {None} if isinstance(node, ir.Push) else found[ref]
        for r in linear_operands(build, ref):
            found.setdefault(r, set()).update(maps)
    return found


def _keeps_zero(build: Builder, ref: ir.Ref, m: ir.Ref) -> bool:
    """Whether the step `ref` is known to keep 0 at 0 in rows to which `m` sends no edge."""
    node = build.nodes[ref]
    if not isinstance(node, ir.Pointwise) or node.op not in (Op.mul, Op.div):
        return True
    found = _scaled(build, ref)
    assert found is not None
    s = found[1]
    return value_type(build, s).space == UNIT or keeps_zero(build, s, m, divides=node.op is Op.div)


def guarded(build: Builder, base: ir.Ref, m: ir.Ref | None, loc: Location) -> ir.Ref:
    """`base`, with 0 in rows to which `m` sends no edge."""
    return base if m is None else where_edges(build, base, m, value_type(build, base).dtype, loc)
