"""Online softmax: a maximum over a row's edges and the sums relative to it, in one pass instead of two.

A sum of exp(s - m) * x, where m is the row's maximum of s, is kept relative to the maximum so far: if a tile of edges
raises that from r to m, the sum so far is multiplied by exp(r - m) (Milakov and Gimelshein, "Online normalizer
calculation for softmax", 2018). A score of -inf gives exp(-inf - m) = 0, but NaN as long as m itself is -inf; the first
raise drops such sums. So the result is NaN if all scores are -inf or if one is NaN or inf, just as with two passes.

Edges come in tiles, since the chain from a score over its exponential to the sums is long, and edges that go through it
one by one wait for each other. With one edge at a time, GATv2's forward took 1.2 to 1.4 times as long as two passes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from graphweave.analysis.cones import type_of
from graphweave.analysis.flow import reached
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.blocks import Namer, is_expensive
from graphweave.lower.draft import Draft
from graphweave.lower.expressions import load, shape_of
from graphweave.lower.feature_index import broadcast_index, flatten, refine, scaled, unflatten
from graphweave.lower.parameters import value_name
from graphweave.lower.phases import assign_phases

_VIEWS = (ir.Reshape, ir.Broadcast, ir.Permute, ir.Slice)

Passes: TypeAlias = tuple[dict[ir.Ref, int], dict[ir.Ref, tuple[ir.Ref, ...]]]
"""The pass of each member of a region, and the sums that share the pass of their maximum."""


@dataclass(frozen=True, slots=True)
class Place:
    """Element `index` of a block, and the element `of` of the maximum to which it is relative, for all `lanes`."""

    lanes: tuple[tuple[str, int], ...]
    index: loop.IndexSum
    of: loop.IndexSum


def relative_place(program: ir.Program, sum_: ir.Ref, maximum: ir.Ref, names: Namer) -> Place | None:
    """How the elements of the push `sum_` are relative to those of `maximum`; None where they are not.

    They are if the message, looking through views, is a product with exactly one factor exp(score - pull(maximum)), and
    nothing else in it depends on the maximum.
    """
    push, largest = program.nodes[sum_], program.nodes[maximum]
    assert isinstance(push, ir.Push) and isinstance(largest, ir.Push)
    dtype = type_of(program, maximum).dtype
    if not push.is_plain_sum or type_of(program, sum_).dtype is not dtype:
        return None
    path = _path(program, push.x, maximum, push.map)
    if path is None:
        return None
    shape = shape_of(program, sum_)
    views = [program.nodes[r] for r in (*path, *_views(program, largest.x))]
    shapes = [s for v in views if isinstance(v, ir.Reshape) for s in (v.shape, shape_of(program, v.x))]
    sizes = [n for n in refine(shape, shapes) if n > 1]
    lanes = tuple((names.lane(), n) for n in sizes)
    flat = flatten([loop.IndexSum(((v, 1),)) for v, _ in lanes], sizes)
    of = _followed(program, path, flat, largest.x, dict(lanes))
    return None if of is None else Place(lanes, flat, of)


def _path(program: ir.Program, top: ir.Ref, maximum: ir.Ref, m: ir.Ref) -> list[ir.Ref] | None:
    """Nodes from `top` to the pull of `maximum`; None if the path does not fit, or another operand depends on it."""
    depends = dependents(program, [top], maximum, m)
    path = [top]
    below_exp = False
    while (node := program.nodes[path[-1]]) != ir.Pull(maximum, m):
        below = [r for r in operands(node) if r in depends]
        match node:
            case ir.Pointwise(Op.exp, (x,)) if not below_exp and isinstance(s := program.nodes[x], ir.Pointwise):
                ok, below_exp = s.op is Op.sub, True
            case ir.Pointwise(Op.sub, (_, x)) if below_exp:
                ok = below == [x] and program.nodes[path[-2]] == ir.Pointwise(Op.exp, (path[-1],))
            case ir.Pointwise(Op.mul) if not below_exp:
                ok = True
            case ir.Pointwise(Op.div, (x, _)) if not below_exp:
                ok = below == [x]
            case ir.Pointwise(Op.neg) if not below_exp:
                ok = True
            case ir.Reshape() | ir.Broadcast() | ir.Permute() | ir.Slice():
                ok = True
            case _:
                ok = False
        if not ok or len(below) != 1:
            return None
        path.append(below[0])
    return path if below_exp else None


def dependents(program: ir.Program, tops: Iterable[ir.Ref], maximum: ir.Ref, m: ir.Ref) -> frozenset[ir.Ref]:
    """Nodes at or below `tops`, down to pulls and pushes, that depend on the pull of `maximum`."""
    seen = reached(tops, lambda r: () if isinstance(n := program.nodes[r], ir.Pull | ir.Push) else operands(n))
    found: set[ir.Ref] = set()
    for r in sorted(seen):
        node = program.nodes[r]
        inside = not isinstance(node, ir.Pull | ir.Push) and not found.isdisjoint(operands(node))
        if node == ir.Pull(maximum, m) or inside:
            found.add(r)
    return frozenset(found)


def _followed(
    program: ir.Program, path: Sequence[ir.Ref], flat: loop.IndexSum, score: ir.Ref, extents: Mapping[str, int]
) -> loop.IndexSum | None:
    """The maximum's element at the end of `path`, if it is subtracted from the same element of `score`; else None."""
    index = unflatten(flat, shape_of(program, path[0]), extents)
    taken_from: tuple[ir.Ref, loop.IndexSum] | None = None
    for r, below in pairwise(path):
        if index is None:
            return None
        node = program.nodes[r]
        if isinstance(node, ir.Pointwise) and node.op is Op.sub:
            left = node.args[0]
            taken_from = _origin(program, left, broadcast_index(index, shape_of(program, left)), extents)
        index = _operand_index(program, r, below, index, extents)
    if index is None or taken_from is None:
        return None
    of = flatten(index, shape_of(program, path[-1]))
    at = unflatten(of, shape_of(program, score), extents)
    if at is None or _origin(program, score, at, extents) != taken_from:
        return None
    return of


def _origin(
    program: ir.Program, ref: ir.Ref, index: tuple[loop.IndexSum, ...], extents: Mapping[str, int]
) -> tuple[ir.Ref, loop.IndexSum] | None:
    """The value of which `ref` is a view, and the position there of element `index` of `ref`."""
    at: tuple[loop.IndexSum, ...] | None = index
    for r in _views(program, ref):
        assert at is not None
        ref = operands(program.nodes[r])[0]
        at = _operand_index(program, r, ref, at, extents)
        if at is None:
            return None
    form = flatten(at or (), shape_of(program, ref))
    return ref, loop.IndexSum(tuple(sorted(form.terms)), form.offset)


def _views(program: ir.Program, ref: ir.Ref) -> list[ir.Ref]:
    """The chain of views that begins at `ref`, from users to operands."""
    out: list[ir.Ref] = []
    while isinstance(program.nodes[ref], _VIEWS):
        out.append(ref)
        ref = operands(program.nodes[ref])[0]
    return out


def _operand_index(
    program: ir.Program, ref: ir.Ref, x: ir.Ref, index: tuple[loop.IndexSum, ...], extents: Mapping[str, int]
) -> tuple[loop.IndexSum, ...] | None:
    """The index of the element of operand `x` that element `index` of `ref` reads."""
    match program.nodes[ref]:
        case ir.Reshape():
            return unflatten(flatten(index, shape_of(program, ref)), shape_of(program, x), extents)
        case ir.Permute(_, perm):
            return tuple(index[perm.index(i)] for i in range(len(perm)))
        case ir.Slice(_, dim, start, _, step):
            return (*index[:dim], scaled(index[dim], step, start), *index[dim + 1 :])
    return broadcast_index(index, shape_of(program, x))


# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Relative:
    """Sums of the row that are relative to the reference `name` while the pass that finds `maximum` runs."""

    draft: Draft
    maximum: ir.Ref
    name: str
    places: Mapping[ir.Ref, Place]

    @staticmethod
    def to(draft: Draft, maximum: ir.Ref, sums: Iterable[ir.Ref]) -> Relative:
        places: dict[ir.Ref, Place] = {}
        for s in sums:
            place = relative_place(draft.program, s, maximum, draft.names)
            assert place is not None, f"%{s} is not relative to %{maximum}"
            places[s] = place
        return Relative(draft, maximum, f"{value_name(draft.program, maximum)}_reference", places)

    def start(self) -> list[loop.Stmt]:
        names = [self.draft.row.at[s][0] for s in self.places]
        note = loop.Comment(f"until the last edge {', '.join(names)} {'is' if len(names) == 1 else 'are'} relative to:")
        return [note, loop.Alloc(self.name, self._dtype(), (self._size(),), -math.inf)]

    def raised(self, tile: str) -> list[loop.Stmt]:
        """The statement after the maximum has taken in the edges of a tile and before the sums do."""
        lane, at = self.draft.names.lane(), self.draft.row.at
        sums = tuple(loop.Rescaled(p.lanes, at[s][0], (p.index,), p.of) for s, p in self.places.items())
        value = load(at[self.maximum], loop.IndexSum(((lane, 1),)))
        return [loop.Raise(tile, self.name, (lane, self._size()), value, sums)]

    def dependents(self) -> frozenset[ir.Ref]:
        """The nodes that are computed from the maximum so far."""
        pushes = [(n.x, n.map) for s in self.places if isinstance(n := self.draft.program.nodes[s], ir.Push)]
        return frozenset().union(*(dependents(self.draft.program, [x], self.maximum, m) for x, m in pushes))

    def _dtype(self) -> DType:
        return type_of(self.draft.program, self.maximum).dtype

    def _size(self) -> int:
        return numel(shape_of(self.draft.program, self.maximum))


# ---------------------------------------------------------------- which pass


def passes_of(draft: Draft) -> Passes:
    """The pass of each member (`phases.py`), and the sums that share the pass of their maximum: maximum -> sums.

    They share it where that saves a pass over the edges and the option `online` allows it.
    """
    members = draft.region.members
    local = {r: draft.local(r) for r in members}
    gathers = {r: draft.wide_gathers(r) for r in draft.on_edges}

    def phases(chosen: Mapping[ir.Ref, tuple[ir.Ref, ...]]) -> dict[ir.Ref, int]:
        return assign_phases(members, local, draft.on_edges, gathers, _followers(chosen))

    def count(chosen: Mapping[ir.Ref, tuple[ir.Ref, ...]]) -> int:
        return max(phases(chosen).values(), default=0)

    chosen = _candidates(draft)
    fewest = count(chosen)
    if fewest == count({}):
        chosen = {}
    for m in list(chosen):
        without = {other: sums for other, sums in chosen.items() if other != m}
        if count(without) == fewest:
            chosen = without
    phase = phases(chosen)
    together = {m: tuple(s for s in sums if phase[s] == phase[m]) for m, sums in chosen.items()}
    return phase, together


def _followers(chosen: Mapping[ir.Ref, tuple[ir.Ref, ...]]) -> dict[ir.Ref, frozenset[ir.Ref]]:
    out: dict[ir.Ref, frozenset[ir.Ref]] = {}
    for m, sums in chosen.items():
        for s in sums:
            out[s] = out.get(s, frozenset()) | {m}
    return out


def _candidates(draft: Draft) -> dict[ir.Ref, tuple[ir.Ref, ...]]:
    program, option = draft.program, draft.options.online
    out: dict[ir.Ref, tuple[ir.Ref, ...]] = {}
    for m in draft.region.members if option != "never" else ():
        node = program.nodes[m]
        if not isinstance(node, ir.Push) or node.fold is not Fold.max or node.map != draft.region.map:
            continue
        sums = tuple(s for s in draft.region.members if _may_follow(draft, s, m))
        if type_of(program, m).dtype.is_float and sums and (option == "always" or _gathers_again(draft, m, sums)):
            out[m] = sums
    return out


def _gathers_again(draft: Draft, maximum: ir.Ref, sums: Iterable[ir.Ref]) -> bool:
    """Whether a pass of the sums alone would gather wide rows again that the maximum's pass has gathered.

    One pass saves these gathers, as a tile's rows are in cache. GATv2's forward takes 0.94 to 1.0 of the time of two
    passes at 14 edges a row, 0.61 at 20,000. Where two passes gather different wide rows, as in GAT (1.01 to 1.09) and
    dot products of keys and values (0.98 to 1.08), little is gained (4 x 16, Xeon, AVX-512, 1 thread, 2026-11).
    """
    program, options = draft.program, draft.options
    dear = (
        r for r in draft.needs[maximum].inner if is_expensive(program, r) or isinstance(program.nodes[r], ir.MatMul)
    )
    kept = draft.stored | {r for r in dear if numel(shape_of(program, r)) <= options.stash_width}
    gathered = draft.wide_gathers(maximum)
    return any(y in gathered for s in sums for y, _ in draft.cones.needs(s, kept, through=True).pulls)


def _may_follow(draft: Draft, sum_: ir.Ref, maximum: ir.Ref) -> bool:
    """Whether `sum_` may share the pass of `maximum`. It may not need matrix products that the score does not need."""
    program, node = draft.program, draft.program.nodes[sum_]
    if not isinstance(node, ir.Push) or node.map != draft.region.map or sum_ not in draft.on_edges:
        return False
    if maximum not in draft.local(sum_):
        return False
    products = {r for r in draft.needs[sum_].inner if isinstance(program.nodes[r], ir.MatMul)}
    return products <= set(draft.needs[maximum].inner) and relative_place(program, sum_, maximum, Namer()) is not None
