"""Halves -> executables; kernels compile in parallel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

from graphweave.compiler.describe import describe
from graphweave.compiler.describe_values import origins
from graphweave.compiler.plan import Plan, check_schedule
from graphweave.compiler.report import collecting, record_graph
from graphweave.compiler.request import Half, Halves
from graphweave.core.options import Options, by_schedule
from graphweave.core.schedule import Schedule
from graphweave.execute.begun import Begun
from graphweave.execute.dump import dump_plan
from graphweave.execute.executable import Executable, Steps
from graphweave.execute.gains import NothingGained, gains
from graphweave.execute.row_needs import UNLIMITED, RowNeeds, needs_of_halves, row_needs
from graphweave.execute.step_memory import handed_over, memory_of
from graphweave.ir.tape.nodes import Tape
from graphweave.ir.tape.show import show


def build(
    halves: Halves, schedules: Sequence[Schedule] = (), *, must_gain: bool = False, backward_later: bool = False
) -> tuple[Executable, ...]:
    """One executable for each half; all their kernels are ready. With `must_gain`, raises NothingGained before a kernel
    is compiled if no half gains by it.

    With `backward_later`, the kernels of a backward are only begun, and its first call waits for them. The backward
    uses the graph that the forward has seen, and does not look for edits. With `schedules`, those that tuning found for
    each half, kernels may leave fields of a schedule out; those of a user's schedule they may not.
    """
    options = halves.request.facts.options
    plans, steps, begun = list[Plan](), list[Steps](), list[Begun]()
    try:
        for half, schedule in zip_longest(halves.parts, schedules):
            plans.append(half.plan(by_schedule(options, schedule)))
            steps.append(Steps.of(plans[-1]))
            if not must_gain or any(map(gains, plans)):
                for plan, own in zip(plans[len(begun) :], steps[len(begun) :], strict=True):
                    begun.append(Begun())
                    begun[-1].add(str(plan.name), own.all, later=len(begun) > 1)
        if not begun:
            raise NothingGained
        if not schedules or options.schedules is not None:
            check_schedule(plans)
        needs = _needs(halves, plans, steps)
        made = tuple(
            Executable(plan, half.contract, own, need)
            for plan, half, own, need in zip(plans, halves.parts, steps, needs, strict=True)
        )
        for half, one in zip(halves.parts, made, strict=True):
            dump_plan(one.plan, one.text, show(one.tape))
            _record(halves, half, one, made[0].tape)
        for at, (one, kernels) in enumerate(zip(made, begun, strict=True)):
            # A backward whose kernels fail calls PyTorch for all rows, so the forward must have computed all.
            if at and backward_later and not needs[0].steps:
                one.begun = kernels
            else:
                kernels.wait()
    except BaseException:
        for kernels in begun:
            kernels.stop()
        raise
    return made


def executable_of(half: Half, options: Options) -> Executable:
    """A half by itself, under any options of its kernels, which are not compiled yet."""
    return Executable(half.plan(options), half.contract)


def _record(halves: Halves, half: Half, made: Executable, ahead: Tape) -> None:
    """Add a note about a half to every report that is being collected. The first half follows the tape `ahead`."""
    if not collecting():
        return
    refused = halves.moved(halves.request.refused)
    why_not = {half.where[r]: why for r, why in refused.items() if r in half.where}
    policy = "" if halves.split is None else halves.request.facts.choices.recompute
    note = describe(made.plan, made.text, why_not, halves.glossary, half.saved, policy)
    first = halves.parts[0]
    held = () if half is first else handed_over(first, ahead, made.tape, halves.glossary)
    memory = memory_of(made.tape, made.plan, halves.glossary, held)
    here = origins({old: half.where[r] for old, r in halves.joint.where.items() if r in half.where})
    values = tuple(replace(value, made_from=here.get(r, ())) for r, value in enumerate(note.values))
    record_graph(replace(note, values=values, memory=memory))


def _needs(halves: Halves, plans: Sequence[Plan], steps: Sequence[Steps]) -> tuple[RowNeeds, ...]:
    """The rows that the halves compute. What is also a result of the forward is needed whole."""
    cut, count = halves.split, halves.request.num_forward
    if any(plan.schedule.chains for plan in plans):  # a chunk of rows computes all of its own
        return tuple(UNLIMITED for _ in plans)
    if cut is None:
        return (row_needs(plans[0], steps[0].kernels, {}),)
    ahead, back = cut.forward.where, cut.backward.where
    same = {there: ahead[ref] for ref, there in back.items() if ref in ahead}
    whole = {r for r in cut.forward.program.outputs[:count] if r is not None}
    saved = (r for r in cut.saved if r in back and r not in cut.copied and ahead[r] not in whole)
    read = {back[ref]: ahead[ref] for ref in saved}
    return needs_of_halves(plans[0], steps[0].kernels, plans[1], steps[1].kernels, read, same)
