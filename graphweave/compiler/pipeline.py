"""The rewrites that every program goes through, in order, verified between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from graphweave.analysis.statistics import Statistics
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.verify import verify
from graphweave.passes.accumulate import Accumulate
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rewritten import Rewritten, Step, unchanged
from graphweave.passes.simplify import Simplify
from graphweave.passes.sink_reshape import SinkReshape


@dataclass(frozen=True, slots=True)
class Facts:
    """What passes know beside the program: about how many rows its spaces have, and which inputs are tangents."""

    statistics: Statistics = field(default_factory=Statistics)
    tangents: frozenset[str] = frozenset()


Pass: TypeAlias = Accumulate | Rewrite | Simplify | SinkReshape

PIPELINE: tuple[Callable[[Facts, tuple[Ref, ...]], Pass], ...] = (
    lambda facts, keep: Simplify(keep),
    lambda facts, keep: SinkReshape(),
    lambda facts, keep: Rewrite(facts.statistics, facts.tangents, keep),
    lambda facts, keep: Simplify(keep),
    lambda facts, keep: SinkReshape(),
    lambda facts, keep: Accumulate(),
)
"""Each makes its pass for the facts and the calls that must stay."""


def optimise(program: Program, facts: Facts | None = None, keep: Iterable[Ref] = ()) -> Rewritten:
    """`program` after every pass, where each of its nodes went, and the choices made by cost.

    `keep` are calls that must stay though no output needs them.
    """
    facts = facts or Facts()
    keep = tuple(keep)
    verify(program)
    where = unchanged(program).where
    steps: tuple[Step, ...] = ()
    for make in PIPELINE:
        done = make(facts, keep)(program)
        verify(done.program)
        where = {old: done.where[new] for old, new in where.items() if new in done.where}
        keep = tuple(done.where[r] for r in keep)
        steps += done.steps
        program = done.program
    return Rewritten(program, where, steps)
