"""Sums (maxima, minima) across relations become one push: from the union of relations' rows to that of types' rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.lines import Location
from graphweave.core.numbers import neutral
from graphweave.core.types import UNIT, Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.passes.horizontal.emit import Emitter
from graphweave.passes.horizontal.node_graph import Tree
from graphweave.passes.horizontal.unions import Segments

_FOLD = {fold.op: fold for fold in Fold}


@dataclass(frozen=True, slots=True)
class _Leaves:
    """Leaves of one kind, and for each the position of its tree in the pack."""

    refs: tuple[ir.Ref, ...]
    tree: tuple[int, ...]


Key: TypeAlias = Hashable


def merged_trees(emit: Emitter, trees: Sequence[ir.Ref]) -> ir.Ref:
    """The values of the pack `trees` on the union of their spaces. Leaves that are in one pack are folded at once."""
    graph, loc = emit.graph, emit.loc(trees[0])
    node = graph.nodes[trees[0]]
    assert isinstance(node, Tree)
    on = emit.segments(trees)
    parts = [_fold_leaves(emit, leaves, on, node.op, loc) for leaves in _kinds(emit, trees)]
    out = parts[0]
    for part in parts[1:]:
        out = emit.build.add(ir.Pointwise(node.op, (out, part)), loc)
    return _whole(emit, out, trees, loc)


def _whole(emit: Emitter, out: ir.Ref, trees: Sequence[ir.Ref], loc: Location) -> ir.Ref:
    """`out` on the union of the trees' spaces: if all leaves were shared data, it is pulled to every row."""
    on = emit.segments(trees)
    if on[0] != UNIT and emit.build.types[out].space == UNIT:  # type: ignore[union-attr]
        return emit.build.add(ir.Pull(out, emit.unions.types(on, (0,) * len(on), 1, loc)), loc)
    return out


def _kinds(emit: Emitter, trees: Sequence[ir.Ref]) -> list[_Leaves]:
    """Leaves by kind: of one pack, in the order of its lanes; shared data of one shape; else the k-th of each tree."""
    graph, packs = emit.graph, emit.packs
    kinds: dict[Key, list[tuple[int, ir.Ref, int]]] = defaultdict(list)
    for n, tree in enumerate(trees):
        met: dict[Key, int] = defaultdict(int)
        for leaf in graph.ops[tree]:
            t = graph.value(leaf)
            if leaf in packs.of:
                p, lane = packs.of[leaf]
                kinds["pack", p].append((lane, leaf, n))
            elif t.space == UNIT:
                kinds["shared", t.shape].append((len(kinds["shared", t.shape]), leaf, n))
            else:
                k = met[t.shape]
                met[t.shape] += 1
                kinds["loose", t.shape, k].append((n, leaf, n))
    out = []
    for found in kinds.values():
        if len({lane for lane, _, _ in found}) == len(found):
            found.sort()
        out.append(_Leaves(tuple(leaf for _, leaf, _ in found), tuple(n for _, _, n in found)))
    return out


def _fold_leaves(emit: Emitter, leaves: _Leaves, on: Segments, op: Op, loc: Location) -> ir.Ref:
    """For each tree the fold of its leaves of one kind: on the union of the trees' spaces, or one shared value."""
    refs, tree = leaves.refs, leaves.tree
    if sorted(tree) == list(range(len(on))):
        return emit.operand([refs[tree.index(n)] for n in range(len(on))], on, loc)
    kind = emit.graph.nodes[refs[0]] if refs[0] in emit.packs.of else None
    shared = emit.graph.is_unit(refs[0])
    if op is Op.add and isinstance(kind, ir.MatMul) and kind.map is None:
        product = _one_product(emit, leaves, on, loc)
        if product is not None:
            return product
    if shared and len(refs) == 1:
        out = _beside_nothing(emit, refs[0], tree[0], len(on), op, loc)
    elif op is Op.add and isinstance(kind, ir.Push) and kind.is_plain_sum:
        out = _one_push(emit, leaves, on if not shared else (UNIT,) * len(on), loc)
    elif op is Op.add and isinstance(kind, ir.Gram) and shared:
        out = _one_gram(emit, leaves, len(on), loc)
    else:
        to = (UNIT,) * len(on) if shared else on
        m = emit.unions.fold(emit.segments(refs), to, tree, loc)
        nothing = neutral(_FOLD[op], emit.graph.value(refs[0]).dtype)
        out = emit.build.add(ir.Push(emit.many(refs, loc), m, _FOLD[op], nothing), loc)
    if not shared or on[0] == UNIT or len(on) == 1:
        return out
    return emit.build.add(ir.Pull(out, emit.unions.types(on, range(len(on)), len(on), loc)), loc)


def _beside_nothing(emit: Emitter, leaf: ir.Ref, tree: int, count: int, op: Op, loc: Location) -> ir.Ref:
    """A row for each tree: the shared leaf for the one tree that has it, the neutral value for the others."""
    t = emit.graph.value(leaf)
    nothing = emit.build.add(ir.Const(neutral(_FOLD[op], t.dtype), t), loc)
    rows = tuple(emit.one(leaf) if n == tree else nothing for n in range(count))
    return emit.build.add(ir.Join(rows, emit.unions.space((UNIT,) * count)), loc)


def _one_push(emit: Emitter, leaves: _Leaves, to: Segments, loc: Location) -> ir.Ref:
    """push(push(x, m), fold) -> push(x, fold . m), so that no row for each relation and node is stored."""
    xs, maps = zip(*(emit.graph.ops[r] for r in leaves.refs), strict=True)
    x = emit.many(xs, loc)
    if isinstance(emit.graph.nodes[maps[0]], ir.MapOf):
        return emit.build.add(ir.Push(x, emit.unions.joined(maps, to, leaves.tree, loc), Fold.sum), loc)
    return emit.build.add(ir.Push(x, emit.unions.types(emit.segments(xs), leaves.tree, len(to), loc), Fold.sum), loc)


def _one_gram(emit: Emitter, leaves: _Leaves, count: int, loc: Location) -> ir.Ref:
    """A sum of grams is the gram of all their rows."""
    xs, ys = zip(*(emit.graph.ops[r] for r in leaves.refs), strict=True)
    x, y = emit.many(xs, loc), emit.many(ys, loc)
    return emit.build.add(ir.Gram(x, y, emit.types(emit.segments(xs), leaves.tree, count, loc)), loc)


def _one_product(emit: Emitter, leaves: _Leaves, on: Segments, loc: Location) -> ir.Ref | None:
    """x V + x W -> x (V + W), if every tree has leaves and all of a tree's multiply the same rows; None otherwise."""
    x_of: dict[int, ir.Ref] = {}
    for r, n in zip(leaves.refs, leaves.tree, strict=True):
        if x_of.setdefault(n, emit.graph.ops[r][0]) != emit.graph.ops[r][0]:
            return None
    if len(x_of) < len(on):
        return None
    ws = [emit.graph.ops[r][1] for r in leaves.refs]
    segments = (UNIT,) * len(ws)
    m = emit.unions.fold(segments, (UNIT,) * len(on), leaves.tree, loc)
    w = emit.build.add(ir.Push(emit.many(ws, loc), m, Fold.sum), loc)
    x = emit.many([x_of[n] for n in range(len(on))], loc)
    return emit.build.add(ir.MatMul(x, w, emit.types(on, range(len(on)), len(on), loc)), loc)
