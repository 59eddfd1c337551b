"""What is saved for the backward, kept apart from memory that a user may write to in between.

Eager mode saves what a gradient reads, a compiled forward often what that was made of. Where this is an input or result
that the user is free to overwrite, the backward gets values of its own: those that eager mode keeps, if they are fewer
numbers (the rows of a memory that a batch reads), a copy otherwise.
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
    """`saved` with each exposed value replaced by what the backward makes of it first, where that is smaller."""
    kept, roots, joint = set(saved), tuple(roots), facts.program
    late = facts.flow.depending(frozenset(tangents))
    for ref in sorted(kept & exposed):
        needed = computed_for(joint, roots, frozenset((*kept, *tangents)))
        made = _made_first(facts, ref, needed, late, exposed)
        if made is not None and _bytes(joint, made, statistics) < _bytes(joint, {ref}, statistics):
            kept = (kept - {ref}) | made
    return tuple(sorted(kept))


def with_copies(part: Extract, first: int, saved: tuple[Ref, ...], copied: frozenset[Ref]) -> Extract:
    """`part`, a forward program whose outputs from `first` on are the values `saved`, with copies of those `copied`."""
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
    """The first values of other memory that the backward makes of `ref`; None where it reads `ref` for a gradient."""
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
    """About how many bytes `refs` hold; infinitely many where a type does not tell."""
    total = 0.0
    for ref in refs:
        t = joint.types[ref]
        if not isinstance(t, Type):
            return float("inf")
        total += numel(t.shape) * t.dtype.itemsize * statistics.rows(t.space)
    return total
