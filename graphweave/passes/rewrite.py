"""Rewriting by cost: rules are tried where they apply, and what makes the program cheaper stays.

Moves are tried in a fixed order until none gains, so equal programs give equal results. A move is one rule at one node
or, since some rules pay only together, a set of rules at every push along one map: the gather that they make needless
is needless only when all of its users are gone (the look-ahead that greedy choice lacks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from graphweave.analysis.cost import Cost, cost
from graphweave.analysis.statistics import Statistics
from graphweave.ir.message.builder import Builder, operands
from graphweave.ir.message.nodes import Input, MapOf, Program, Push, Ref
from graphweave.passes.rewritten import Rewritten, Step, unchanged
from graphweave.passes.rules import distribute, factor, feature_sum
from graphweave.passes.rules.rule import Rule
from graphweave.passes.substitute import substitute

OUT_OF_PUSH = (distribute.RULE, feature_sum.RULE, factor.RULE)
"""Rules that move work out of a push, tried in this order at each push."""

SINGLE: tuple[Rule, ...] = ()
"""Rules that are tried by themselves at every node."""

_ROUNDS = 4
_FUEL = 64  # rewrites in one move
_GAIN = 1e-3  # of the whole program's cost: smaller gains are rounding of the model


@dataclass(frozen=True, slots=True)
class Rewrite:
    """`tangents` are the inputs of the backward, by name; `keep` names no outputs but calls that must stay."""

    statistics: Statistics = field(default_factory=Statistics)
    tangents: frozenset[str] = frozenset()
    keep: tuple[Ref, ...] = ()
    name: str = "rewrite"

    def __call__(self, program: Program) -> Rewritten:
        """`program` with every rewrite that gains; the same object where none does."""
        state = _State(self, program)
        for _ in range(_ROUNDS):
            if not state.round():
                break
        return state.result(program)


@dataclass(frozen=True, slots=True)
class Move:
    """`rules` at each of `sites`, and at what they make of them."""

    rules: tuple[Rule, ...]
    sites: tuple[Ref, ...]


class _State:
    def __init__(self, settings: Rewrite, program: Program) -> None:
        self.settings = settings
        self.program = program
        self.where = unchanged(program).where
        self.keep = settings.keep
        self.steps: list[Step] = []
        self.cost = self._cost(program, self.keep)

    def round(self) -> bool:
        """Try every move once; whether any was taken."""
        taken = False
        for make in (_groups, _singles):
            position = 0
            moves = list(make(self.program, self.settings.tangents))
            while position < len(moves):
                if self._try(moves[position]):
                    taken = True
                    moves = list(make(self.program, self.settings.tangents))
                position += 1
        return taken

    def result(self, program: Program) -> Rewritten:
        if self.program is program:
            return Rewritten(program, self.where, tuple(self.steps))
        return Rewritten(self.program, self.where, tuple(self.steps))

    def _try(self, move: Move) -> bool:
        build = Builder.of(self.program)
        replaced, fired = apply(build, move)
        if not replaced:
            return False
        program = self.program
        done = substitute(build, len(program.nodes), replaced, program.outputs, self.keep, program.spaces)
        if done.program.nodes == program.nodes:
            return False
        keep = tuple(done.where[r] for r in self.keep)
        after = self._cost(done.program, keep)
        statistics = self.settings.statistics
        old, new = self.cost.seconds(statistics), after.seconds(statistics)
        gains = old - new > _GAIN * old
        loc = program.locs[move.sites[0]]
        self.steps.append(Step(fired, loc, self.cost.total(statistics), after.total(statistics), old - new, gains))
        if gains:
            self.where = {r: done.where[at] for r, at in self.where.items() if at in done.where}
            self.program, self.keep, self.cost = done.program, keep, after
        return gains

    def _cost(self, program: Program, keep: tuple[Ref, ...]) -> Cost:
        return cost(program, tangents_of(program, self.settings.tangents), keep)


def tangents_of(program: Program, names: frozenset[str]) -> list[Ref]:
    return [r for r, n in enumerate(program.nodes) if isinstance(n, Input) and n.name in names]


def apply(build: Builder, move: Move) -> tuple[dict[Ref, Ref], tuple[str, ...]]:
    """What the move replaces by what, and the rules that fired, in order. Pushes that rules make are sites too."""
    replaced: dict[Ref, Ref] = {}
    fired: list[str] = []
    todo = list(reversed(move.sites))
    while todo and len(fired) < _FUEL:
        ref = todo.pop()
        if ref in replaced:
            continue
        start = len(build.nodes)
        for rule in move.rules:
            new = rule.apply(build, ref)
            if new is not None and new != ref:
                replaced[ref] = new
                fired.append(rule.name)
                made = [r for r in range(start, len(build.nodes)) if isinstance(build.nodes[r], Push)]
                todo.extend(reversed([*made, *([new] if new >= start else [])]))
                break
            build.rollback(start)
    return replaced, tuple(fired)


def _groups(program: Program, names: frozenset[str]) -> Iterator[Move]:
    """All pushes along one map in one half of the program, then all along one map, then each alone."""
    late = _late(program, tangents_of(program, names))
    found: dict[tuple[Ref, bool], list[Ref]] = {}
    for ref, node in enumerate(program.nodes):
        if isinstance(node, Push) and isinstance(program.nodes[node.map], MapOf):
            found.setdefault((node.map, ref in late), []).append(ref)
    for sites in found.values():
        yield Move(OUT_OF_PUSH, tuple(sites))
    for sites in found.values():
        if len(sites) > 1:
            for ref in sites:
                yield Move(OUT_OF_PUSH, (ref,))


def _singles(program: Program, names: frozenset[str]) -> Iterator[Move]:
    for rule in SINGLE:
        for ref in range(len(program.nodes)):
            yield Move((rule,), (ref,))


def _late(program: Program, tangents: Iterable[Ref]) -> set[Ref]:
    found = set(tangents)
    for ref, node in enumerate(program.nodes):
        if any(r in found for r in operands(node)):
            found.add(ref)
    return found
