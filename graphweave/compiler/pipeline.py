"""The rewrites that every program goes through, in order, verified between passes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from graphweave.analysis.halo import HaloCosts
from graphweave.analysis.ownership import Sharding
from graphweave.analysis.statistics import Statistics, with_unions
from graphweave.core.locality import RowOrder
from graphweave.core.log import logger
from graphweave.core.types import Space
from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.accumulate import Accumulate
from graphweave.passes.bucket_sums import BucketSums
from graphweave.passes.halo_totals import HaloTotals
from graphweave.passes.horizontal.merge import Merge
from graphweave.passes.horizontal.to_edges import ToEdges
from graphweave.passes.narrow_gathers import NarrowGathers
from graphweave.passes.relabel import ChooseOrder, Relabel
from graphweave.passes.relational import Measure, Relational
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rewritten import Rewritten, Step, unchanged
from graphweave.passes.rules.rule import AddedRules
from graphweave.passes.segment_indices import SegmentIndices
from graphweave.passes.shard import Shard
from graphweave.passes.simplify import Simplify
from graphweave.passes.sink_reshape import SinkReshape

_log, _ir_log = logger("graphweave.passes"), logger("graphweave.ir")


@dataclass(frozen=True, slots=True)
class PassInputs:
    """What passes know besides the program: estimated row counts of its spaces, and which inputs are tangents.

    `relational` is what the user decided about typed products, `measure` counts rows of the graph at hand, `joins` says
    whether kernels of the target multiply rows, and `added` are rules that users have registered. Without `rewrite` no
    choice is made by cost; without `merge` operations of one kind stay apart. `relabel` is the order that nodes get, or
    chooses it, and `steady` are names of inputs that are likely to be the same at the next call. `sharding` says how
    the program lies on several ranks.
    """

    statistics: Statistics = field(default_factory=Statistics)
    tangents: frozenset[str] = frozenset()
    relational: Relational = field(default_factory=Relational)
    measure: Measure | None = None
    joins: bool = True
    added: AddedRules = field(default_factory=AddedRules)
    rewrite: bool = True
    merge: bool = True
    relabel: RowOrder | ChooseOrder | None = None
    steady: frozenset[str] = frozenset()
    sharding: Sharding | None = None


Pass: TypeAlias = (
    Accumulate | BucketSums | HaloTotals | Merge | NarrowGathers | Relabel | Rewrite | SegmentIndices | Shard | Simplify
    | SinkReshape | ToEdges
)  # fmt: skip

PIPELINE: tuple[Callable[[PassInputs, tuple[Ref, ...]], Pass], ...] = (
    lambda given, keep: SegmentIndices(given.sharding, keep),
    lambda given, keep: Simplify(keep, given.added.always),
    lambda given, keep: Merge(keep, given.tangents, given.statistics),
    lambda given, keep: Simplify(keep, given.added.always),
    lambda given, keep: ToEdges(given.statistics, keep),
    lambda given, keep: SinkReshape(),
    lambda given, keep: NarrowGathers(),
    lambda given, keep: Rewrite(
        given.statistics,
        given.tangents,
        keep,
        given.relational,
        given.measure,
        given.joins,
        given.added.by_cost,
        given.rewrite,
        None if given.sharding is None else HaloCosts(given.sharding, given.statistics, given.steady),
    ),
    lambda given, keep: Simplify(keep, given.added.always),
    lambda given, keep: SinkReshape(),
    lambda given, keep: Accumulate(),
    lambda given, keep: Relabel(given.relabel, keep, given.steady),
    lambda given, keep: Shard(given.sharding, keep, given.steady, given.statistics, given.tangents),
    lambda given, keep: HaloTotals(given.sharding, given.statistics, keep),
    lambda given, keep: BucketSums(given.tangents, keep),
)
"""Functions that build each pass, in order, from its inputs and the calls that must stay."""


def optimise(program: Program, given: PassInputs | None = None, keep: Iterable[Ref] = ()) -> Rewritten:
    """`program` after all passes, the place to which each of its nodes went, and the choices made by cost.

    `keep` are calls that must stay even if no output needs them.
    """
    given = given or PassInputs()
    keep = tuple(keep)
    verify(program)
    _ir_log.info("a program of %d nodes on %d spaces is well-formed", len(program.nodes), len(program.spaces))
    _tell_text(program)
    where = unchanged(program).where
    steps: tuple[Step, ...] = ()
    unions: tuple[tuple[Space, tuple[Space, ...]], ...] = ()
    notes: tuple[str, ...] = ()
    for pass_maker in PIPELINE:
        pass_ = pass_maker(given, keep)
        if _left_out(pass_, given):
            continue
        done = pass_(program)
        verify(done.program)
        _tell(pass_, program, done)
        where = {old: done.where[new] for old, new in where.items() if new in done.where}
        keep = tuple(done.where[r] for r in keep)
        steps += done.steps
        unions += done.unions
        notes += done.notes
        given = replace(given, statistics=with_unions(given.statistics, done.unions))
        program = done.program
    return Rewritten(program, where, steps, unions, notes=notes)


def _left_out(pass_: Pass, given: PassInputs) -> bool:
    match pass_:
        case Merge() | ToEdges():
            return not given.merge
        case Relabel(order):
            return order is None
        case SegmentIndices() | Shard() | HaloTotals() | BucketSums():
            return given.sharding is None
    return False


def _tell(pass_: Pass, before: Program, done: Rewritten) -> None:
    """Log a line about what a pass did and, at level DEBUG, the program that it made."""
    if done.program is before:
        _log.info("%s: nothing to do", pass_.name)
        return
    choices = f", {sum(s.taken for s in done.steps)} of {len(done.steps)} choices taken" if done.steps else ""
    _log.info("%s: %d -> %d nodes%s", pass_.name, len(before.nodes), len(done.program.nodes), choices)
    _tell_text(done.program)


def _tell_text(program: Program) -> None:
    if _log.isEnabledFor(logging.DEBUG):
        _log.debug("%s", show(program))
