"""What every pass gives back."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.types import Space
from graphweave.ir.message.nodes import Program, Ref


@dataclass(frozen=True, slots=True)
class Step:
    """A rewrite that was tried: which rules, at which of the user's lines, what the program costs without and with it.

    Costs are (bytes, vector operations, flops of matrix products); `seconds` is what is gained, negative for a loss.
    `per_row` is the gain for each row of a space: the choice holds for every graph at which their sum has its sign.
    """

    rules: tuple[str, ...]
    loc: str
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    seconds: float
    per_row: tuple[tuple[Space, float], ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`where[old]` is the new position of each node of the program that was rewritten; dead nodes have none.

    `steps` are the choices that were made by cost, in order. `unions` are spaces that the pass made, each with the
    spaces of which it is the disjoint union (the unit space stands for one row).
    """

    program: Program
    where: dict[Ref, Ref]
    steps: tuple[Step, ...] = ()
    unions: tuple[tuple[Space, tuple[Space, ...]], ...] = ()


def unchanged(program: Program) -> Rewritten:
    """`program` itself: what a pass gives that finds nothing to do."""
    return Rewritten(program, {r: r for r in range(len(program.nodes))})
