"""The cost model's judgement of one form of a program, for graphs of any statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.request import Halves
from graphweave.core.schedule import Schedule
from graphweave.core.types import UNIT, Space
from graphweave.frontends.halves.choices import gains_enough
from graphweave.ir.message.fingerprint import program_fingerprint

Slopes: TypeAlias = tuple[tuple[Space, float], ...]
"""A linear function of row counts: seconds for each row of each space."""
Rows: TypeAlias = Mapping[Space, int]


@dataclass(frozen=True, slots=True)
class FormCost:
    """`price` gives the seconds of a call of the form. Each of `turns` belongs to a choice by which it was made, and
    gives the seconds by which the other answer would be better. The form is for graphs in which none of `limits` is
    negative, whatever its price. `rules` are those that were taken, and `digest` is
    equal for equal programs under equal schedules."""

    digest: str
    rules: frozenset[str]
    price: Slopes
    turns: tuple[Slopes, ...]
    limits: tuple[Slopes, ...]

    @staticmethod
    def of(halves: Halves, schedules: Sequence[Schedule] = ()) -> FormCost:
        facts, program, steps = halves.request.facts, halves.program, halves.joint.steps
        keep = [halves.joint.where[r] for r in facts.keep]
        spent = cost(Facts(program), facts.tangents_of(program), keep, joins=facts.options.row_products).per_row()
        parts = dict(halves.joint.unions)
        turns = dict.fromkeys(
            _on_parts(((s, -d if step.taken else d) for s, d in step.per_row), parts) for step in steps
        )
        rules = frozenset(rule for step in steps if step.taken for rule in step.rules)
        digest, price = " ".join([program_fingerprint(program), *map(str, schedules)]), _on_parts(spent.items(), parts)
        limits = tuple(_on_parts(limit, parts) for limit in halves.joint.limits)
        return FormCost(digest, rules, price, tuple(turn for turn in turns if any(d > 0 for _, d in turn)), limits)

    def seconds(self, rows: Rows) -> float:
        return value(self.price, rows)

    def suits(self, rows: Rows) -> bool:
        """Whether the form is for graphs of these rows."""
        return all(value(limit, rows) >= 0 for limit in self.limits)

    def is_wrong(self, rows: Rows) -> bool:
        """Whether a choice would be made otherwise in a graph of these rows."""
        return any(gains_enough(value(turn, rows)) for turn in self.turns)


def _on_parts(slopes: Iterable[tuple[Space, float]], parts: Mapping[Space, tuple[Space, ...]]) -> Slopes:
    """The function with the rows of each disjoint union as the sum of the rows of its parts."""
    found: dict[Space, float] = {}
    todo = list(slopes)
    while todo:
        space, seconds = todo.pop()
        if space in parts:
            todo += [(part, seconds) for part in parts[space]]
        else:
            found[space] = found.get(space, 0.0) + seconds
    return tuple(sorted(((s, d) for s, d in found.items() if d), key=lambda item: item[0].name))


def value(slopes: Slopes, rows: Rows) -> float:
    """The function for a graph of these rows. Spaces that are not among them count as large as the largest."""
    largest = max(rows.values()) if len(rows) > (UNIT in rows) else Statistics().default
    return sum(d * (1 if s == UNIT else rows.get(s, largest)) for s, d in slopes)
