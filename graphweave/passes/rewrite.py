"""Rewriting by cost: rules are tried where they apply, and a change stays if it makes the program cheaper.

Moves (`moves.py`) are tried in a fixed order until none gains, so equal programs give equal results. A move is one rule
at one node or, since some rules pay only together, a set of rules at a set of nodes: a gather is needless only when all
of its users are gone. Such sets give the greedy choice the look-ahead that it lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from graphweave.analysis.cost import Cost, cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.halo import HaloCosts, seconds_on_the_wire
from graphweave.analysis.typed import is_typed_product
from graphweave.analysis.work import BANDWIDTH
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.spans import count
from graphweave.core.types import UNIT, Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Program, Push, Ref
from graphweave.passes.alike import Answers, Edit
from graphweave.passes.moves import ORDER, RULES, Move, Moves, added, forward_compactions, joined, reorderings
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.relational import Relational, Start, with_pairs
from graphweave.passes.rewritten import Rewritten, Step, unchanged
from graphweave.passes.rules.rule import Rule
from graphweave.passes.substitute import substitute

_MAX_ROUNDS = 4
"""All moves are tried at most this many times over."""
_MAX_REWRITES = 256
"""One move rewrites at most this many nodes."""
_MAX_WEIGHED_NODES = 1_000_000
"""The search stops when the programs whose cost it has asked for have this many nodes together, which takes half a
minute. Programs of a few layers need a fiftieth of it."""
_MIN_GAIN = 1e-3
"""Part of the program's cost that a move must save; smaller gains are below the precision of the cost model."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Without the user's choice `rewrite` nothing is done but what `compact` and `reorder` ask for. Over ranks, choices
    between forms that move work across an exchange count its bytes."""

    name: str = "rewrite"
    rules: tuple[Rule, ...] = RULES

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with every rewrite that gains; the same object where none does."""
        choices, own = facts.choices, facts.of(program)
        more = facts.added.by_cost
        order = () if not choices.rewrite else (*ORDER, added(more)) if more else ORDER
        if not any(is_typed_product(n) for n in program.nodes):
            return _run(own, facts, Start(False, False), order).rewritten()
        facts = replace(facts, statistics=with_pairs(program, facts.statistics, facts.measure))
        relational = Relational(choices.compact, choices.reorder)
        relational = relational if choices.rewrite else relational.decided()
        moves = (*relational.moves(), *order) if choices.rewrite else ()
        found = [_run(own, facts, start, moves) for start in relational.starts()]
        best = min(found, key=lambda state: state.cost.seconds(facts.statistics))
        best.steps += [_refused(best, state) for state in found if state is not best]
        done = best.rewritten()
        known = {space for space, _ in program.spaces}
        made = {space for space, _ in done.program.spaces} - known
        return replace(done, counted=tuple((s, rows) for s, rows in facts.statistics.counted if s in made))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A rewrite that did not gain; without a `step` it changed nothing."""

    step: Step | None


@dataclass(frozen=True, slots=True)
class _After:
    """The program after a rewrite, the calls in it that must stay, and what it costs."""

    done: Rewritten
    facts: Facts
    keep: tuple[Ref, ...]
    cost: Cost
    step: Step


class _Rewriting:
    def __init__(self, facts: Facts, given: PassFacts, start: Start) -> None:
        self.given, self.start = given, start
        sharding = given.sharding
        self.wire = None if sharding is None else HaloCosts(sharding, given.statistics, given.steady)
        self.where = unchanged(facts.program).where
        self.steps: list[Step] = []
        self.weighed = 0  # nodes of the programs whose cost was asked for
        self._become(facts, given.keep, self._cost(facts, given.keep))

    def _become(self, facts: Facts, keep: tuple[Ref, ...], spent: Cost) -> None:
        self.facts, self.keep, self.cost = facts, keep, spent
        self.late = facts.flow.depending(self.given.tangents_of(facts.program))
        self.futile = set[Move]()  # moves that do not gain in this program, so that no round tries them twice
        ends = frozenset(r for r in (*facts.program.outputs, *keep) if r is not None)
        self.refused = Answers[_Trial](facts, self.given.statistics, self.late, ends)
        self.build = Builder.of(facts.program)

    def _cost(self, facts: Facts, keep: tuple[Ref, ...]) -> Cost:
        given = self.given
        spent = cost(facts, given.tangents_of(facts.program), keep, joins=given.options.row_products)
        if self.wire is not None:
            spent.add(UNIT, bytes=seconds_on_the_wire(facts.program, self.wire) * BANDWIDTH)
        return spent

    def begin(self) -> None:
        """Do what the start says, whether or not it gains by itself."""
        if self.start.reorder:
            for move in reorderings(self.facts, self.late):
                self._try(move, forced=True)
                break
        if self.start.compact:
            for _ in range(_MAX_ROUNDS * 4):
                moves = list(forward_compactions(self.facts, self.late))
                if not any(self._try(move, forced=True) for move in moves):
                    break

    def rewritten(self) -> Rewritten:
        return Rewritten(self.facts.program, self.where, tuple(self.steps))

    def round(self, makers: tuple[Moves, ...]) -> bool:
        """Try every move once; whether any was taken."""
        taken = False
        for make in makers:
            moves, position = list(make(self.facts, self.late)), 0
            while position < len(moves):
                if self.weighed > _MAX_WEIGHED_NODES:
                    count("search stopped at its bound")
                    return False
                if self._try(moves[position], islice(moves, position + 1, None)):
                    taken = True
                    moves = list(make(self.facts, self.late))
                else:
                    position += 1
        return taken

    def _try(self, move: Move, others: Iterable[Move] = (), forced: bool = False) -> bool:
        """Make the move if it gains, with those of `others` that are alike, or if it is `forced`; whether it was
        made."""
        if move in self.futile and not forced:
            return False
        made = self._try_move(move, others, forced)
        if not made:
            self.futile.add(move)
        return made

    def _try_move(self, move: Move, others: Iterable[Move], forced: bool) -> bool:
        edit = self._edit(move)
        if edit is None:
            return False
        if not forced and (like := self.refused.get(edit)) is not None:
            count("answered by an equal layer")
            self._note(None if like.step is None else replace(like.step, loc=self._line(edit)))
            return False
        after, steps = self._after(move, forced), list[Step]()
        if after is not None and after.step.seconds > 0 and not forced:
            after, steps = self._with_alike(move, edit, after, others)
        if after is not None and after.step.taken:
            self.steps += steps or [after.step]
            self.where = {r: after.done.where[at] for r, at in self.where.items() if at in after.done.where}
            self._become(after.facts, after.keep, after.cost)
            return True
        step = None if after is None else after.step
        self._note(step)
        if not forced:
            self.refused.add(edit, _Trial(step))
        return False

    def _edit(self, move: Move) -> Edit | None:
        """The edit that the move makes to the program; None if it does nothing."""
        size = len(self.facts.program.nodes)
        replaced, fired = apply(self.build, move.without(self.given.choices.left_out))
        edit = Edit.of(self.build, size, replaced, fired) if replaced else None
        self.build.rollback(size)
        return edit

    def _line(self, edit: Edit) -> Location:
        return self.facts.program.locs[edit.replaced[0][0]]

    def _after(self, move: Move, forced: bool = False) -> _After | None:
        """The program after the move, and whether it gains; None if the program stays the same."""
        program, size = self.facts.program, len(self.facts.program.nodes)
        replaced, fired = apply(self.build, move.without(self.given.choices.left_out))
        done = substitute(self.build, size, replaced, program.outputs, self.keep, program.spaces)
        self.build.rollback(size)
        if done.program.nodes == program.nodes:
            return None
        count("programs weighed")
        self.weighed += len(done.program.nodes)
        statistics, facts = self.given.statistics, Facts(done.program, done.operands)
        keep = tuple(done.where[r] for r in self.keep)
        after = self._cost(facts, keep)
        old, new = self.cost.seconds(statistics), after.seconds(statistics)
        gains = forced or old - new > _MIN_GAIN * old
        gained = tuple(sorted(difference(self.cost.per_row(), after.per_row()).items(), key=lambda item: item[0].name))
        totals = self.cost.total(statistics), after.total(statistics)
        step = Step(fired, program.locs[next(iter(replaced))], *totals, old - new, gained, gains)
        return _After(done, facts, keep, after, step)

    def _with_alike(self, move: Move, edit: Edit, after: _After, others: Iterable[Move]) -> tuple[_After, list[Step]]:
        """The program after a move that saves something and all of `others` that look alike, with a step for each. The
        move alone if they do not save as much together as one does times their number.

        So a gain that is small in a program of many layers counts as much as in one of few.
        """
        step, names = after.step, [rule.name for rule in move.rules]
        moves, steps = [move], [replace(step, taken=True)]
        for other in others:
            if len(moves) * len(step.rules) >= _MAX_REWRITES:
                break
            if [rule.name for rule in other.rules] != names or (same := self._edit(other)) is None:
                continue
            if self.refused.look_alike(edit, same):
                moves.append(other)
                steps.append(_following(steps[-1], self._line(same)))
        together = self._after(joined(moves)) if len(moves) > 1 else None
        if together is None or not together.step.taken or together.step.seconds < (len(moves) - 0.5) * step.seconds:
            return after, [step]
        count("taken with an equal layer", len(moves) - 1)
        return together, steps

    def _note(self, step: Step | None) -> None:
        """Keep a choice that was not taken."""
        if step is not None and step not in self.steps:
            self.steps.append(step)


def _run(facts: Facts, given: PassFacts, start: Start, moves: tuple[Moves, ...]) -> _Rewriting:
    state = _Rewriting(facts, given, start)
    state.begin()
    for _ in range(_MAX_ROUNDS):
        if not state.round(moves):
            break
    return state


def apply(build: Builder, move: Move) -> tuple[dict[Ref, Ref], tuple[str, ...]]:
    """The nodes that the move replaces, each with its replacement, and the rules that fired, in order.

    Nodes that rules build are sites too.
    """
    replaced: dict[Ref, Ref] = {}
    fired: list[str] = []
    todo = list(reversed(move.sites))
    while todo and len(fired) < _MAX_REWRITES:
        ref = todo.pop()
        if ref in replaced or (isinstance(n := build.nodes[ref], Push) and n.fused):
            continue  # a fused push stays as it is
        start = len(build.nodes)
        for rule in move.rules:
            new = rule.apply(build, ref)
            if new is not None and _last(replaced, new) != ref:
                replaced[ref] = new
                fired.append(rule.name)
                todo.extend(reversed(range(start, len(build.nodes))))
                break
            build.rollback(start)
    return replaced, tuple(fired)


def difference(before: Mapping[Space, float], after: Mapping[Space, float]) -> dict[Space, float]:
    return {s: d for s in {*before, *after} if (d := before.get(s, 0.0) - after.get(s, 0.0))}


def _last(replaced: Mapping[Ref, Ref], ref: Ref) -> Ref:
    """The node that replaces `ref` in the end. Rules that undo each other must not replace two nodes by one another."""
    while ref in replaced:
        ref = replaced[ref]
    return ref


def _following(step: Step, loc: Location) -> Step:
    """The same rewrite once more, at another line of the user's."""
    (b0, b1, b2), (a0, a1, a2) = step.before, step.after
    return replace(step, loc=loc, before=step.after, after=(2 * a0 - b0, 2 * a1 - b1, 2 * a2 - b2))


def _refused(best: _Rewriting, other: _Rewriting) -> Step:
    """The other start, reported as a choice that was not taken."""
    statistics = best.given.statistics
    seconds = best.cost.seconds(statistics) - other.cost.seconds(statistics)
    gained = sorted(difference(best.cost.per_row(), other.cost.per_row()).items(), key=lambda item: item[0].name)
    totals = best.cost.total(statistics), other.cost.total(statistics)
    return Step((other.start.name,), NOWHERE, *totals, seconds, tuple(gained), False)
