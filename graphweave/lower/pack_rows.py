"""Narrow rows that a kernel gathers along one map lie side by side in memory.

    f(pull(a, src), pull(b, src), pull(c, src))
->  p = concat(a, b, c);  q = pull(p, src);  f(slice(q), slice(q), slice(q))

An edge that reads rows of 4, 16 or 32 bytes from several arrays takes a cache line, and on large graphs an access to
memory, for each of them. Side by side they are one line. The backward of attention reads four such rows at the other
end of each edge (a score, the maximum, the sum of exponentials, a sum of gradients).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphweave.analysis.cones import map_type, type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.core.options import Options
from graphweave.core.types import DType
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.lower.schedule import Region, StepOrder, TorchCall, schedule
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute

_MANY_ROWS = 1 << 14
"""Fewer rows of 64 bytes stay in a core's own cache, where several lines cost little."""

_EDGES_PER_ROW = 2
"""Packing reads and writes each row once; fewer edges a row would not repay that."""


@dataclass(frozen=True, slots=True)
class _Pack:
    """Values of one space and element type, all of which a kernel pulls along `map`."""

    map: ir.Ref
    values: tuple[ir.Ref, ...]


@dataclass(frozen=True, slots=True)
class PackRows:
    name: str = "pack-rows"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with narrow rows that one kernel gathers packed into rows of at most `options.packed_bytes`; the
        same object where there are none."""
        options, statistics, own = facts.options, facts.statistics, facts.of(program)
        if not options.packed_bytes or len(list(_narrow(own, _pulls(program), options, statistics))) < 2:
            return unchanged(program)
        order = schedule(own, (*own.hoist.values, *own.hoist.checks), options, statistics)
        packs = list(_packs(own, order, options, statistics))
        if not packs:
            return unchanged(program)
        build = Builder.of(program)
        replaced: dict[ir.Ref, ir.Ref] = {}
        for pack in packs:
            replaced |= _replaced(build, program, pack)
        return substitute(build, len(program.nodes), replaced, program.outputs, facts.keep, program.spaces)


def _pulls(program: ir.Program) -> Iterator[tuple[ir.Ref, ir.Ref]]:
    return ((n.x, n.map) for n in program.nodes if isinstance(n, ir.Pull))


def _packs(facts: Facts, order: StepOrder, options: Options, statistics: Statistics) -> Iterator[_Pack]:
    """The rows that each kernel gathers along a map that it does not walk, where it is the first step to read all of
    it.

    What an earlier step reads may be needed to compute another part of the row.
    """
    read: set[tuple[ir.Ref, ir.Ref]] = set()
    for step in order.steps:
        pulls = dict.fromkeys(_read_by(facts, order, step))
        if isinstance(step, Region) and step.map is not None:
            fresh = (p for p in pulls if p[1] != step.map and p[0] not in step.members and p not in read)
            alike: dict[tuple[ir.Ref, DType], list[ir.Ref]] = {}
            for x, m in _narrow(facts, fresh, options, statistics):
                alike.setdefault((m, type_of(facts.program, x).dtype), []).append(x)
            for (m, dtype), values in alike.items():
                for chosen in _filled(facts.program, values, options.packed_bytes // dtype.itemsize):
                    yield _Pack(m, chosen)
        read.update(pulls)


def _read_by(facts: Facts, order: StepOrder, step: Region | TorchCall) -> Iterator[tuple[ir.Ref, ir.Ref]]:
    """The values that a step reads at other rows, each with the map that leads there."""
    for ref in step.members if isinstance(step, Region) else (step.ref,):
        node = facts.program.nodes[ref]
        if isinstance(node, ir.Pull):
            yield node.x, node.map
        yield from facts.cones.needs(ref, order.stored, through=facts.cones.on_edges(ref)).pulls


def _narrow(
    facts: Facts, pulls: Iterable[tuple[ir.Ref, ir.Ref]], options: Options, statistics: Statistics
) -> Iterator[tuple[ir.Ref, ir.Ref]]:
    """Those of `pulls` that read rows of at most half a pack, from many rows, for more edges than rows."""
    for x, m in pulls:
        t, ends = type_of(facts.program, x), map_type(facts.program, m)
        few = statistics.rows(ends.cod) < _MANY_ROWS or statistics.rows(ends.dom) < _EDGES_PER_ROW * statistics.rows(
            ends.cod
        )
        if t.dtype.is_float and 0 < 2 * numel(t.shape) * t.dtype.itemsize <= options.packed_bytes and not few:
            yield x, m


def _filled(program: ir.Program, values: Iterable[ir.Ref], room: int) -> Iterator[tuple[ir.Ref, ...]]:
    """`values` in groups of at least two, whose rows have at most `room` elements together."""
    group: list[ir.Ref] = []
    left = room
    for x in values:
        size = numel(type_of(program, x).shape)
        if size > left:
            if len(group) > 1:
                yield tuple(group)
            group, left = [], room
        group.append(x)
        left -= size
    if len(group) > 1:
        yield tuple(group)


def _replaced(build: Builder, program: ir.Program, pack: _Pack) -> Mapping[ir.Ref, ir.Ref]:
    """The pulls of the values of `pack`, each with the slice of the packed row that takes its place.

    Rows are padded to a power of two, so that none lies on two cache lines.
    """
    loc, shapes = build.locs[pack.values[0]], [type_of(program, x).shape for x in pack.values]
    flat = [build.add(ir.Reshape(x, (numel(s),)), loc) for x, s in zip(pack.values, shapes, strict=True)]
    row, size = build.add(ir.Concat(tuple(flat), 0), loc), sum(map(numel, shapes))
    whole = 1 << (size - 1).bit_length()
    if whole > size:
        row = build.add(ir.Pad(row, 0, 0, whole - size), loc)
    gathered = build.add(ir.Pull(row, pack.map), loc)
    replaced: dict[ir.Ref, ir.Ref] = {}
    start = 0
    for x, shape in zip(pack.values, shapes, strict=True):
        piece = build.add(ir.Slice(gathered, 0, start, start + numel(shape)), loc)
        replaced[build.add(ir.Pull(x, pack.map), loc)] = build.add(ir.Reshape(piece, shape), loc)
        start += numel(shape)
    return replaced
