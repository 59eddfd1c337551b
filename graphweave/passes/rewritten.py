"""The result of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from graphweave.core.lines import Location
from graphweave.core.types import Space
from graphweave.ir.message.nodes import Program, Ref


@dataclass(frozen=True, slots=True)
class Step:
    """A rewrite that was tried: its rules, the user's line, and the cost of the program without and with it.

    Costs are (bytes, vector operations, flops of matrix products). `seconds` is the gain, negative for a loss.
    `per_row` is the gain for each row of a space; its sum over a graph's rows says if the choice suits that graph.
    """

    rules: tuple[str, ...]
    loc: Location
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    seconds: float
    per_row: tuple[tuple[Space, float], ...]
    taken: bool


@dataclass(frozen=True, slots=True)
class Rewritten:
    """`where[old]` is the position in `program` of each node of the rewritten program; dead nodes have none.

    `steps` are the choices that were made by cost, in order. `unions` are spaces that the pass made, each with the
    spaces of which it is the disjoint union (the unit space stands for one row). `operands` are those of the nodes of
    `program`, as `Flow.operands` gives them, where the pass knows them. `notes` say what was chosen by measuring.
    `limits` are linear functions of the rows of spaces: the result is for graphs in which none is negative. `counted`
    are the rows, in the graph at hand, of spaces that the pass made and that are no unions of others.
    """

    program: Program
    where: dict[Ref, Ref]
    steps: tuple[Step, ...] = ()
    unions: tuple[tuple[Space, tuple[Space, ...]], ...] = ()
    operands: tuple[tuple[Ref, ...], ...] | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = ()
    limits: tuple[tuple[tuple[Space, float], ...], ...] = ()
    counted: tuple[tuple[Space, int], ...] = ()


def unchanged(program: Program) -> Rewritten:
    """The result of a pass that finds nothing to do: `program` itself."""
    return Rewritten(program, {r: r for r in range(len(program.nodes))})
