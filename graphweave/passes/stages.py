"""Delays each value that a backward computes again until the gradient has reached the place where it is read.

Legal since every value stays what it is: rows from which something is computed again pass through `After`, which gives
its first operand back once the others exist. It saves memory: without it, one layer's messages would be summed again
together with a later layer's along the same map, and the results of both would lie in memory at once. Wide rows are
computed again for each stage of the backward that reads them, so that none is kept from one stage to the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import Extract, is_structure
from graphweave.analysis.typed import computed_for, sources
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import numel

_START = -1
"""The stage before the first gradient that begins a stage."""
_WIDE_BYTES = 64
"""Rows of at least this many bytes are computed again in each stage that reads them instead of being kept."""


def staged(part: Extract, tangents: Iterable[ir.Ref]) -> Extract:
    """The backward `part` with values computed again stage by stage; `tangents` are positions in its program."""
    program, facts = part.program, Facts(part.program)
    late = facts.flow.depending(frozenset(tangents))
    computed = computed_for(program, [r for r in program.outputs if r is not None])
    made_late = (r for r in sorted(late & computed) if not isinstance(program.nodes[r], ir.Input))
    calls = [r for r in made_late if not facts.cones.is_light(r)]
    starts = _starts(facts, calls, late)
    stages = _stages(facts, late, starts)
    wrapped = {(r, s) for ref, ss in stages.items() for s in ss for r in operands(program.nodes[ref])}
    copies = [(r, s) for r in range(len(program.nodes)) for s in stages.get(r, (_stage_of(starts, r, late),))]
    build = Builder()
    where: dict[tuple[ir.Ref, ir.Ref], ir.Ref] = {}

    def take_once(r: ir.Ref) -> ir.Ref:
        """A value that is computed once; it belongs to the last stage begun before it if it depends on a tangent."""
        return take(r, _stage_of(starts, r, late))

    def read(r: ir.Ref, stage: ir.Ref) -> ir.Ref:
        if r in stages:
            return take(r, max(s for s in stages[r] if s <= stage))
        if stage == _START or not _is_rows(program, r) or (r, stage) not in wrapped:
            return take_once(r)
        return build.add(ir.After(take_once(r), tuple(take_once(f) for f in _finished(starts, calls, stage))))

    def take(ref: ir.Ref, stage: ir.Ref) -> ir.Ref:
        if (ref, stage) not in where:
            at = {r: read(r, stage) for r in operands(program.nodes[ref])}
            where[ref, stage] = build.add(with_operands(program.nodes[ref], at.__getitem__), program.locs[ref])
        return where[ref, stage]

    for ref, stage in sorted(copies, key=lambda c: _place(c, stages)):
        take(ref, stage)
    first = {r: new for (r, _), new in reversed(where.items())}
    outputs = [None if r is None else first[r] for r in program.outputs]
    return Extract(build.program(outputs, program.spaces), {old: first[new] for old, new in part.where.items()})


def _starts(facts: Facts, calls: list[ir.Ref], late: frozenset[ir.Ref]) -> list[ir.Ref]:
    """Gradients of nodes that products and calls read or make, and that therefore are stored: each begins a stage."""
    program, edges = facts.program, facts.flow.edge_spaces
    around = {r for c in calls for r in (c, *sources(program, c)) if r in late}
    return sorted(r for r in around if isinstance(t := program.types[r], ir.Type) and t.space not in edges | {UNIT})


def _finished(starts: list[ir.Ref], calls: list[ir.Ref], stage: ir.Ref) -> list[ir.Ref]:
    """The values for which a stage waits: the gradient that begins it, and the calls of the stage before, which free
    rows once they are done."""
    at = starts.index(stage)
    return [stage, *(c for c in calls if at and starts[at - 1] < c < stage)]


def _stage_of(starts: list[ir.Ref], ref: ir.Ref, late: frozenset[ir.Ref]) -> ir.Ref:
    """The last stage begun before `ref` in program order, the order of the gradient; `_START` without a tangent."""
    at = bisect_left(starts, ref)
    return starts[at - 1] if at and ref in late else _START


def _stages(facts: Facts, late: frozenset[ir.Ref], starts: list[ir.Ref]) -> dict[ir.Ref, tuple[ir.Ref, ...]]:
    """For each value computed again the stages that do so: all that read a wide or edge value, else the first."""
    program, edges = facts.program, facts.flow.edge_spaces
    found: dict[ir.Ref, set[ir.Ref]] = {}
    for ref in reversed(range(len(program.nodes))):
        if ref in late:
            reading = {_stage_of(starts, ref, late)}
        elif ref in found:
            reading = found[ref] = found[ref] if _repeats(program, ref, edges) else {min(found[ref])}
        else:
            continue
        for r in operands(program.nodes[ref]):
            node = program.nodes[r]
            if r not in late and not isinstance(node, ir.Input) and not is_structure(node):
                found.setdefault(r, set()).update({_START} if isinstance(node, ir.Opaque) else reading)
    return {r: tuple(sorted(stages)) for r, stages in found.items()}


def _repeats(program: ir.Program, ref: ir.Ref, edges: frozenset[Space]) -> bool:
    t = program.types[ref]
    if not isinstance(t, ir.Type) or isinstance(program.nodes[ref], ir.Opaque):
        return False
    return t.space in edges or (t.space != UNIT and numel(t.shape) * t.dtype.itemsize >= _WIDE_BYTES)


def _place(copy: tuple[ir.Ref, ir.Ref], stages: Mapping[ir.Ref, tuple[ir.Ref, ...]]) -> tuple[int, bool, int]:
    """Sort key: values computed again come right behind the gradient that begins their stage; others stay in place."""
    ref, stage = copy
    again = ref in stages and stage != _START
    return (stage if again else ref, again, ref)


def _is_rows(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether `ref` is a saved tensor of rows of floats."""
    t = program.types[ref]
    return isinstance(program.nodes[ref], ir.Input) and isinstance(t, ir.Type) and t.space != UNIT and t.dtype.is_float
