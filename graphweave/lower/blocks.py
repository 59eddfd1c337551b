"""Loops over the elements of one value of a row or edge: into an array, an output or an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from graphweave.analysis.cones import type_of
from graphweave.core.types import AnyFold, DType
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.expressions import ValueScope, element, find, shape_of, weight
from graphweave.lower.feature_index import flatten, refine, scaled, unflatten

Sink = Callable[[tuple[loop.IndexSum, ...], loop.Expr], loop.Stmt]
"""Makes the statement that consumes element `index` of a value, which the expression computes."""

TRANSPARENT = (ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice, ir.Cast)
"""Nodes that only rename or convert elements; keeping their values in arrays gains nothing."""

_MAX_REPEATED_WEIGHT = 3
"""A value that is used twice is computed once and kept if it takes more operations than this."""


@dataclass(slots=True)
class Namer:
    """Fresh names of one kernel, numbered in order of use."""

    count: int = 0

    def lane(self) -> str:
        self.count += 1
        return f"j{self.count}"

    def folded(self) -> str:
        self.count += 1
        return f"t{self.count}"


def stores_into(name: str, lead: tuple[loop.Expr, ...], shape: tuple[int, ...]) -> Sink:
    """Stores elements of a value of `shape` in the row-major block of `name` that the indices `lead` choose."""
    return lambda index, value: loop.Store(name, (*lead, flatten(index, shape)), value)


def folds_into(name: str, shape: tuple[int, ...], fold: AnyFold, lead: tuple[loop.Expr, ...] = ()) -> Sink:
    """Folds elements of a value of `shape` into the row-major block of `name` that the indices `lead` choose."""
    return lambda index, value: loop.Accum(name, (*lead, flatten(index, shape)), fold, value)


def write(scope: ValueScope, ref: ir.Ref, sink: Sink, names: Namer) -> list[loop.Stmt]:
    """Statements that hand every element of `ref` to `sink` once."""
    node = scope.program.nodes[ref]
    if find(scope, ref) is None:
        match node:
            case ir.Concat(xs, dim):
                return _write_parts(scope, xs, dim, sink, names)
            case ir.Pad(x, dim, before, after):
                return _write_padded(scope, x, dim, before, after, sink, names)
            case ir.Reduce():
                return _write_reduced(scope, node, sink, names)
    lanes, index, extents = loop_over(scope, ref, names)
    return nest(lanes, [sink(index, element(scope, ref, index, extents))])


def nest(lanes: Sequence[tuple[str, int]], body: Sequence[loop.Stmt]) -> list[loop.Stmt]:
    """`body` in a loop over `lanes`; the body itself if there are none."""
    return [loop.Lanes(tuple(lanes), tuple(body))] if lanes else list(body)


def loop_over(
    scope: ValueScope, ref: ir.Ref, names: Namer
) -> tuple[list[tuple[str, int]], tuple[loop.IndexSum, ...], dict[str, int]]:
    """Lanes over the elements of `ref`, fine enough for the reshapes below it; an element's index; the lanes' sizes."""
    shape = shape_of(scope.program, ref)
    sizes = [n for n in refine(shape, _reshapes_below(scope, ref)) if n > 1]
    lanes = [(names.lane(), n) for n in sizes]
    extents = dict(lanes)
    flat = flatten([loop.IndexSum(((v, 1),)) for v, _ in lanes], sizes)
    index = unflatten(flat, shape, extents)
    assert index is not None, f"lanes {sizes} must split over {shape}"
    return lanes, index, extents


def _write_parts(scope: ValueScope, xs: Iterable[ir.Ref], dim: int, sink: Sink, names: Namer) -> list[loop.Stmt]:
    out: list[loop.Stmt] = []
    start = 0
    for x in xs:
        out += write(scope, x, _shifted(sink, dim, start), names)
        start += shape_of(scope.program, x)[dim]
    return out


def _write_padded(
    scope: ValueScope, x: ir.Ref, dim: int, before: int, after: int, sink: Sink, names: Namer
) -> list[loop.Stmt]:
    shape, t = shape_of(scope.program, x), type_of(scope.program, x)
    zero = loop.Lit(0.0 if t.dtype.is_float else 0, t.dtype) if t.dtype is not DType.bool else loop.Lit(False, t.dtype)
    out: list[loop.Stmt] = []
    for start, width in ((0, before), (before + shape[dim], after)):
        if width:
            sizes = (*shape[:dim], width, *shape[dim + 1 :])
            lanes = [(names.lane(), n) for n in sizes]
            index = tuple(loop.IndexSum(((v, 1),)) for v, _ in lanes)
            out += nest(lanes, [_shifted(sink, dim, start)(index, zero)])
    return out + write(scope, x, _shifted(sink, dim, before), names)


def _shifted(sink: Sink, dim: int, start: int) -> Sink:
    return lambda index, value: sink((*index[:dim], scaled(index[dim], 1, start), *index[dim + 1 :]), value)


def _write_reduced(scope: ValueScope, node: ir.Reduce, sink: Sink, names: Namer) -> list[loop.Stmt]:
    shape = shape_of(scope.program, node.x)
    kept = [(names.lane(), n) for d, n in enumerate(shape) if d not in node.dims]
    folded = [(names.lane(), n) for d, n in enumerate(shape) if d in node.dims]
    kept_names, folded_names = iter(kept), iter(folded)
    index = tuple(
        loop.IndexSum(((next(folded_names if d in node.dims else kept_names)[0], 1),)) for d in range(len(shape))
    )
    value = element(scope, node.x, index, dict(kept + folded))
    name = names.folded()
    fold = loop.FoldLanes(name, type_of(scope.program, node.x).dtype, node.fold, tuple(folded), (), value)
    if node.keepdim:
        out_index = tuple(loop.IndexSum(()) if d in node.dims else index[d] for d in range(len(shape)))
    else:
        out_index = tuple(index[d] for d in range(len(shape)) if d not in node.dims)
    return nest(kept, [fold, sink(out_index, loop.Var(name))])


def _reshapes_below(scope: ValueScope, ref: ir.Ref) -> list[tuple[int, ...]]:
    """Shapes of the reshapes between `ref` and the values that it loads."""
    program = scope.program
    out: list[tuple[int, ...]] = []
    seen: set[ir.Ref] = set()
    todo = [ref]
    while todo:
        r = todo.pop()
        if r in seen or not isinstance(program.types[r], ir.Type):
            continue
        seen.add(r)
        node = program.nodes[r]
        if isinstance(node, ir.Reshape):
            out += [node.shape, shape_of(program, node.x)]
        if find(scope, r) is None and isinstance(
            node, ir.Pointwise | ir.Reshape | ir.Broadcast | ir.Permute | ir.Slice | ir.Cast | ir.Pull
        ):
            todo.extend(operands(node))
    return sorted(set(out), reverse=True)


def choose_blocks(
    program: ir.Program,
    inner: Iterable[ir.Ref],
    roots: Mapping[ir.Ref, int],
    kept: frozenset[ir.Ref],
    wider_roots: frozenset[ir.Ref],
    forced: frozenset[ir.Ref],
) -> list[ir.Ref]:
    """Which of `inner` get an array of their own, in program order.

    `roots[r]` counts the uses of r from outside; `wider_roots` are read by loops of more lanes; `kept` values are
    loaded; `forced` values get an array in any case.
    """
    inner = sorted(set(inner) - kept)
    members = set(inner)
    uses: dict[ir.Ref, int] = {r: roots.get(r, 0) for r in inner}
    wider: dict[ir.Ref, bool] = {r: r in wider_roots for r in inner}
    for r in reversed(inner):
        node = program.nodes[r]
        for x in operands(node):
            if x not in members:
                continue
            through = isinstance(node, TRANSPARENT)
            uses[x] += uses[r] if through else 1
            grows = isinstance(node, ir.Pointwise | ir.Broadcast)
            grown = grows and numel(shape_of(program, r)) > numel(shape_of(program, x))
            wider[x] = wider[x] or grown or (through and wider[r])
    chosen: list[ir.Ref] = []
    memo: dict[ir.Ref, int] = {}
    for r in inner:
        node = program.nodes[r]
        if isinstance(node, ir.Reduce | ir.Concat | ir.Pad):
            used_inside = any(r in operands(program.nodes[u]) for u in inner)
            block = used_inside or uses[r] > 1 or isinstance(node, ir.Reduce)
        elif isinstance(node, (*TRANSPARENT, ir.Pull)):
            block = False
        else:
            w = weight(program, r, kept | set(chosen), memo)
            block = (wider[r] and w > 0) or (uses[r] > 1 and w > _MAX_REPEATED_WEIGHT)
        if block or r in forced:
            chosen.append(r)
            memo[r] = 0
    return chosen


def is_expensive(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether a value is expensive enough to be kept from one pass over the edges to the next."""
    node = program.nodes[ref]
    if isinstance(node, ir.Reduce):
        return numel(shape_of(program, node.x)) >= 8 * numel(shape_of(program, ref))
    return isinstance(node, ir.Pointwise) and node.op.facts.dear
