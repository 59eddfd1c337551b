"""What every pass gives back."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.ir.message.nodes import Program, Ref


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`where[old]` is the new position of each node of the program that was rewritten."""

    program: Program
    where: dict[Ref, Ref]


def unchanged(program: Program) -> Rewritten:
    """`program` itself: what a pass gives that finds nothing to do."""
    return Rewritten(program, {r: r for r in range(len(program.nodes))})
