"""Keeps what is saved for the backward apart from memory that a user may write to before the backward runs.

Eager mode saves the values that a gradient reads; a compiled forward often saves the values from which those were
computed. If such a value is an input or result that the user is free to overwrite, the forward saves the values that
eager mode keeps instead, if they hold fewer bytes (the rows of a memory that a batch reads), and otherwise a copy.
"""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import Extract, is_structure
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.typed import computed_for
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.narrow_saved import NARROW


def made_instead(
    facts: Facts,
    saved: Iterable[ir.Ref],
    exposed: frozenset[ir.Ref],
    roots: Iterable[ir.Ref],
    tangents: tuple[ir.Ref, ...],
    statistics: Statistics,
) -> tuple[ir.Ref, ...]:
    """`saved` with each exposed value replaced by what the backward computes from it first, where that is smaller."""
    kept, roots, joint = set(saved), tuple(roots), facts.program
    late = facts.flow.depending(frozenset(tangents))
    for ref in sorted(kept & exposed):
        needed = computed_for(joint, roots, frozenset((*kept, *tangents)))
        made = _made_first(facts, ref, needed, late, exposed)
        if made is not None and _bytes(joint, made, statistics) < _bytes(joint, {ref}, statistics):
            kept = (kept - {ref}) | made
    return tuple(sorted(kept))


def with_copies(
    part: Extract, first: int, saved: tuple[ir.Ref, ...], copied: frozenset[ir.Ref], narrowed: frozenset[ir.Ref]
) -> Extract:
    """The forward program `part` with copies of the values `copied` among its outputs, of which the `narrowed` are
    rounded. Its outputs from `first` on are `saved`."""
    program = part.program
    build = Builder.of(program)
    outputs = list(program.outputs)
    for i, ref in enumerate(saved, start=first):
        if ref in narrowed:
            outputs[i] = build.add(ir.Cast(part.where[ref], NARROW))
        elif ref in copied:
            outputs[i] = build.add(ir.Kept(part.where[ref]))
    return Extract(build.program(outputs, program.spaces), part.where)


def _made_first(
    facts: Facts, ref: ir.Ref, needed: set[ir.Ref], late: frozenset[ir.Ref], exposed: frozenset[ir.Ref]
) -> set[ir.Ref] | None:
    """The first values outside exposed memory that the backward computes from `ref`; None if a gradient reads `ref`."""
    found, used_by = set[ir.Ref](), facts.flow.users
    todo = [u for u in used_by[ref] if u in needed]
    while todo:
        user = todo.pop()
        if user in late or is_structure(facts.program.nodes[user]):
            return None
        if user in exposed:
            todo += [u for u in used_by[user] if u in needed]
        else:
            found.add(user)
    return found


def _bytes(joint: ir.Program, refs: Iterable[ir.Ref], statistics: Statistics) -> float:
    """About how many bytes `refs` hold; infinity if the type of one does not say."""
    total = 0.0
    for ref in refs:
        t = joint.types[ref]
        if not isinstance(t, ir.Type):
            return float("inf")
        total += numel(t.shape) * t.dtype.itemsize * statistics.rows(t.space)
    return total
