"""Steps in an order in which other work is done while rows travel between ranks.

A step that sends rows comes as early as it can, and steps that need what is on its way come as late as they can. Steps
that send keep their order, which is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from graphweave.analysis.flow import BETWEEN_RANKS
from graphweave.ir.message.nodes import Program
from graphweave.lower.dependencies import StepNodes, dependencies

S = TypeVar("S")


def overlapped(program: Program, steps: Sequence[tuple[S, StepNodes]]) -> list[S]:
    """`steps` in another order that respects their dependencies.

    The order stays where nothing travels: of the steps that may come next, one that sends is taken first, then the
    first one that waits for nothing on its way, then the first one.
    """
    if not any(isinstance(program.nodes[r], BETWEEN_RANKS) for _, made in steps for r in made.nodes):
        return [step for step, _ in steps]
    before = dependencies(program, [made for _, made in steps])
    sends = [any(isinstance(program.nodes[r], BETWEEN_RANKS) for r in made.nodes) for _, made in steps]
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
