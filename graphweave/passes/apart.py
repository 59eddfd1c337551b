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
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Kept, Program, Ref, Type


def made_instead(
    facts: Facts, saved: Iterable[Ref], exposed: frozenset[Ref], roots: Iterable[Ref], tangents: tuple[Ref, ...],
    statistics: Statistics,
) -> tuple[Ref, ...]:  # fmt: skip
    """`saved` with each exposed value replaced by what the backward computes from it first, where that is smaller."""
    kept, roots, joint = set(saved), tuple(roots), facts.program
    late = facts.flow.depending(frozenset(tangents))
    for ref in sorted(kept & exposed):
        needed = computed_for(joint, roots, frozenset((*kept, *tangents)))
        made = _made_first(facts, ref, needed, late, exposed)
        if made is not None and _bytes(joint, made, statistics) < _bytes(joint, {ref}, statistics):
            kept = (kept - {ref}) | made
    return tuple(sorted(kept))


def with_copies(part: Extract, first: int, saved: tuple[Ref, ...], copied: frozenset[Ref]) -> Extract:
    """The forward program `part` with copies of the values `copied` among its outputs. Its outputs from `first` on are
    `saved`."""
    program = part.program
    build = Builder.of(program)
    outputs = list(program.outputs)
    for i, ref in enumerate(saved, start=first):
        if ref in copied:
            outputs[i] = build.add(Kept(part.where[ref]))
    return Extract(build.program(outputs, program.spaces), part.where)


def _made_first(
    facts: Facts, ref: Ref, needed: set[Ref], late: frozenset[Ref], exposed: frozenset[Ref]
) -> set[Ref] | None:
    """The first values outside exposed memory that the backward computes from `ref`; None if a gradient reads `ref`."""
    found, used_by = set[Ref](), facts.flow.users
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


def _bytes(joint: Program, refs: Iterable[Ref], statistics: Statistics) -> float:
    """About how many bytes `refs` hold; infinity if the type of one does not say."""
    total = 0.0
    for ref in refs:
        t = joint.types[ref]
        if not isinstance(t, Type):
            return float("inf")
        total += numel(t.shape) * t.dtype.itemsize * statistics.rows(t.space)
    return total
