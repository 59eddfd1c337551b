"""Tape -> the same tape with memory planned: values are freed after their last use, and values inside a native call
share memory if they are not alive at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphweave.ir.message.types import Ref
from graphweave.ir.tape import nodes as tape_ir
from graphweave.ir.tape.walk import lives_inside, makes_of, reads_of


def plan_memory(tape: tape_ir.Tape) -> tape_ir.Tape:
    """`tape`, freeing each value after the last step that has to do with it, and the tapes inside it likewise."""
    steps = [_planned(step) for step in tape.steps if not isinstance(step, tape_ir.Free)]
    kept = {*tape.constants, *(out.value for out in tape.outputs)}
    last: dict[Ref, int] = dict.fromkeys(tape.inputs, -1)
    first_parts: dict[int, tape_ir.FirstPart] = {}
    for at, step in enumerate(steps):
        last.update(dict.fromkeys((*makes_of(step), *reads_of(step)), at))
        if isinstance(step, tape_ir.FirstPart):
            first_parts[step.kernel] = step
        elif isinstance(step, tape_ir.SecondPart):
            first = first_parts[step.kernel]
            last.update(dict.fromkeys((*first.writes, *first.reads), at))
    ends: dict[int, list[Ref]] = {}
    for r, at in last.items():
        if r not in kept:
            ends.setdefault(at, []).append(r)
    return replace(tape, steps=tuple(_with_frees(steps, ends)))


def _with_frees(steps: list[tape_ir.Step], ends: dict[int, list[Ref]]) -> Iterator[tape_ir.Step]:
    """The steps, each with a step after it that frees the values whose last use it is. Kernels in one native call free
    what only they read themselves."""
    if -1 in ends:
        yield tape_ir.Free(tuple(ends[-1]))
    for at, step in enumerate(steps):
        dead = tuple(ends.get(at, ()))
        if isinstance(step, tape_ir.RunKernels):
            within = tuple(r for r in step.reads if r in dead and r not in step.indices)
            step, dead = replace(step, frees=within), tuple(r for r in dead if r not in within)
        yield step
        if dead:
            yield tape_ir.Free(dead)


def _planned(step: tape_ir.Step) -> tape_ir.Step:
    if isinstance(step, tape_ir.OnceAGraph | tape_ir.InChunks):
        return replace(step, tape=plan_memory(step.tape))
    return replace(step, inside=tuple(_share_slots(step)), frees=()) if isinstance(step, tape_ir.RunKernels) else step


def _share_slots(step: tape_ir.RunKernels) -> Iterator[tape_ir.Inside]:
    """The values inside, each in the slot of one that is dead before it is made and whose rows are as many and nearest
    to its own in size. The number of rows is not known, so values of different spaces share none."""
    lives = lives_inside(step)
    slots: list[tape_ir.Inside] = []  # the value that each slot has at the moment, and the largest row of its values
    for one in sorted(step.inside, key=lambda one: lives[one.value]):
        begin, _ = lives[one.value]
        free = [s for s in slots if s.space == one.space and lives[s.value][1] < begin]
        if free:
            taken = min(free, key=lambda s: abs(s.nbytes - one.nbytes)).slot
            slots[taken] = replace(one, slot=taken, nbytes=max(one.nbytes, slots[taken].nbytes))
        else:
            taken = len(slots)
            slots.append(replace(one, slot=taken))
        yield replace(one, slot=taken)
