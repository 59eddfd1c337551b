"""Sums over ranks that nothing else waits for -> one sum of all of them.

    a' = all_reduce(a), b' = all_reduce(b)
->  s = all_reduce([a ; b]), a' = s[:n], b' = s[n:]

These are the gradients of shared weights, stacks with a matrix for each type among them: the ranks then talk to each
other once for all of them, at the end of the backward. Legal always, since a sum is taken element by element; sums that
another exchange needs stay by themselves, as do those on spaces whose rows are counted at each call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from graphweave.analysis.flow import BETWEEN_RANKS
from graphweave.core.calls import named
from graphweave.core.lines import Location
from graphweave.core.sizes import Size
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class BucketSums:
    name: str = "bucket-sums"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with sums over all ranks joined; the same object on one rank, which has none."""
        buckets = [refs for refs in _buckets(program, facts) if len(refs) > 1]
        if not buckets:
            return unchanged(program)
        build = Builder.of(program)
        replaced: dict[ir.Ref, ir.Ref] = {}
        for refs in buckets:
            _join(build, refs, dict(program.spaces), replaced)
        return substitute(build, len(build.nodes), replaced, program.outputs, facts.keep, program.spaces)


def _buckets(program: ir.Program, given: PassFacts) -> list[list[ir.Ref]]:
    """Sums of the backward by element type and ranks, each needed by no other exchange."""
    facts = given.of(program)
    late = facts.flow.depending(given.tangents_of(program))
    needed: set[ir.Ref] = set()  # by a node in which ranks take part
    for ref in reversed(range(len(program.nodes))):
        if ref in needed or isinstance(program.nodes[ref], BETWEEN_RANKS):
            needed.update(facts.flow.operands[ref])
    found: dict[tuple[str, DType], list[ir.Ref]] = defaultdict(list)
    rows = dict(program.spaces)
    for ref, node in enumerate(program.nodes):
        t = program.types[ref]
        if not isinstance(node, ir.AllReduce) or node.fold is not Fold.sum or ref not in late or ref in needed:
            continue
        if isinstance(t, ir.Type) and (t.space == UNIT or isinstance(rows.get(t.space), int)):
            found[(node.group, t.dtype)].append(ref)
    return list(found.values())


def _join(
    build: Builder, refs: list[ir.Ref], rows: Mapping[Space, Size | None], replaced: dict[ir.Ref, ir.Ref]
) -> None:
    first = build.nodes[refs[0]]
    assert isinstance(first, ir.AllReduce)
    loc, flat, shapes = build.locs[refs[0]], list[ir.Ref](), list[tuple[int, ...]]()
    for ref in refs:
        node, t = build.nodes[ref], build.types[ref]
        assert isinstance(node, ir.AllReduce)
        assert isinstance(t, ir.Type)
        count = rows.get(t.space)
        shapes.append((count, *t.shape) if isinstance(count, int) else t.shape)
        flat.append(_reshaped(build, node.x, replace(t, space=UNIT, shape=(numel(shapes[-1]),)), build.locs[ref]))
    total = build.add(ir.AllReduce(build.add(ir.Concat(tuple(flat), 0), loc), first.fold, first.group), loc)
    start = 0
    for ref, shape in zip(refs, shapes, strict=True):
        t = build.types[ref]
        assert isinstance(t, ir.Type)
        stop = start + numel(shape)
        part = build.add(ir.Slice(total, 0, start, stop), build.locs[ref])
        replaced[ref] = _reshaped(build, part, t, build.locs[ref], shape)
        start = stop


def _reshaped(build: Builder, ref: ir.Ref, to: ir.Type, loc: Location, shape: tuple[int, ...] | None = None) -> ir.Ref:
    """The elements of `ref`, in order, as a value of type `to`. Rows become numbers of shared data and come back by a
    view of PyTorch's, with the whole `shape`."""
    t = build.types[ref]
    assert isinstance(t, ir.Type)
    if t.space == to.space:
        return build.add(ir.Reshape(ref, to.shape), loc)
    return build.add(ir.Aten(named.RESHAPE, (ir.Operand(ref), shape or to.shape), (), to), loc)
