"""The rewrites that every program goes through, in order, verified between passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from graphweave.analysis.statistics import Statistics, with_unions
from graphweave.core.types import Space
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.verify import verify
from graphweave.passes.accumulate import Accumulate
from graphweave.passes.horizontal.edges import ToEdges
from graphweave.passes.horizontal.merge import Merge
from graphweave.passes.relational import Measure, Relational
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rewritten import Rewritten, Step, unchanged
from graphweave.passes.simplify import Simplify
from graphweave.passes.sink_reshape import SinkReshape


@dataclass(frozen=True, slots=True)
class Facts:
    """What passes know beside the program: about how many rows its spaces have, and which inputs are tangents.

    `relational` says what the user has decided about typed products, `measure` counts rows of the graph at hand.
    """

    statistics: Statistics = field(default_factory=Statistics)
    tangents: frozenset[str] = frozenset()
    relational: Relational = field(default_factory=Relational)
    measure: Measure | None = None


Pass: TypeAlias = Accumulate | Merge | Rewrite | Simplify | SinkReshape | ToEdges

PIPELINE: tuple[Callable[[Facts, tuple[Ref, ...]], Pass], ...] = (
    lambda facts, keep: Simplify(keep),
    lambda facts, keep: Merge(keep, facts.tangents, facts.statistics),
    lambda facts, keep: Simplify(keep),
    lambda facts, keep: ToEdges(facts.statistics, keep),
    lambda facts, keep: SinkReshape(),
    lambda facts, keep: Rewrite(facts.statistics, facts.tangents, keep, facts.relational, facts.measure),
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
    unions: tuple[tuple[Space, tuple[Space, ...]], ...] = ()
    for make in PIPELINE:
        done = make(facts, keep)(program)
        verify(done.program)
        where = {old: done.where[new] for old, new in where.items() if new in done.where}
        keep = tuple(done.where[r] for r in keep)
        steps += done.steps
        unions += done.unions
        facts = replace(facts, statistics=with_unions(facts.statistics, done.unions))
        program = done.program
    return Rewritten(program, where, steps, unions)
