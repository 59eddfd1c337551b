"""Steps in an order in which other work is done while rows travel between ranks.

A step that sends rows comes as early as it can, and steps that need what is on its way come as late as they can. Steps
that send keep their order, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from graphweave.analysis.flow import BETWEEN_RANKS, has_effects
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref, Reshape

S = TypeVar("S")


def overlapped(program: Program, steps: Sequence[tuple[S, tuple[Ref, ...]]]) -> list[S]:
    """`steps`, each with the nodes that it computes, in another order that respects their dependencies.

    The order stays where nothing travels: of the steps that may come next, one that sends is taken first, then the
    first one that waits for nothing on its way, then the first one.
    """
    if not any(isinstance(program.nodes[r], BETWEEN_RANKS) for _, made in steps for r in made):
        return [step for step, _ in steps]
    before = dependencies(program, [made for _, made in steps])
    sends = [any(isinstance(program.nodes[r], BETWEEN_RANKS) for r in made) for _, made in steps]
    waits_for = [{b for b in needed if sends[b]} for needed in before]
    left, order, arrived = list(range(len(steps))), list[int](), set[int]()
    while left:
        done = set(order)
        ready = [i for i in left if before[i] <= done]
        free = [i for i in ready if waits_for[i] <= arrived]
        chosen = next((i for i in free if sends[i]), None)
        if chosen is None:
            chosen = free[0] if free else ready[0]
        arrived |= waits_for[chosen]
        left.remove(chosen)
        order.append(chosen)
    return [steps[i][0] for i in order]


def dependencies(program: Program, made_by: Sequence[tuple[Ref, ...]]) -> list[set[int]]:
    """For each step, the steps that must run before it. Steps with effects keep their order."""
    step_of = {r: i for i, made in enumerate(made_by) for r in made}
    out: list[set[int]] = []
    last: int | None = None
    for i, made in enumerate(made_by):
        needed = {step_of[r] for r in _read(program, made, step_of)} - {i}
        if any(has_effects(program, r) for r in made):
            needed |= {last} if last is not None else set()
            last = i
        out.append(needed)
    return out


def _read(program: Program, made: Iterable[Ref], step_of: dict[Ref, int]) -> set[Ref]:
    """The nodes of other steps that a step reads, also through nodes that belong to no step."""
    own, found, seen = set(made), set[Ref](), set[Ref]()
    todo = [r for m in own for r in operands(program.nodes[m])]
    while todo:
        ref = todo.pop()
        if ref in seen or ref in own:
            continue
        seen.add(ref)
        if ref in step_of:
            if not _is_view_of(program, ref, own):
                found.add(ref)
        else:
            todo.extend(operands(program.nodes[ref]))
    return found


def _is_view_of(program: Program, ref: Ref, own: set[Ref]) -> bool:
    """Whether `ref` is `own` values in another shape. A kernel that makes these reads them without the view, which may
    be a step of its own for other readers."""
    while isinstance(node := program.nodes[ref], Reshape):
        ref = node.x
        if ref in own:
            return True
    return False
