"""Verdicts by measuring, which go before the cost model's when a graph chooses among the forms of a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from graphweave.compiler.request import Request
from graphweave.core.schedule import Schedule
from graphweave.frontends.importing.measure import GraphAtHand


@dataclass(frozen=True, slots=True)
class Verdict:
    """The form that suits a graph as was measured: the `request` that makes it, and a schedule for each half (none: the
    compiler's choice). `why` says in words what was measured."""

    request: Request
    schedules: tuple[Schedule, ...]
    why: str


class Judge(Protocol):
    """Measures graphs, or knows what was measured. Graphs of one `bucket` have one verdict."""

    def bucket(self, at_hand: GraphAtHand) -> str: ...

    def verdict(self, request: Request, at_hand: GraphAtHand) -> Verdict | None:
        """The form for a graph, whose statistics `request` has; None if nothing was measured."""
