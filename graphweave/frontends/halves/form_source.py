"""The forms of a function's program for graphs of other statistics: how they are made, and what is told of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import statistics_of
from graphweave.compiler.compile import compile
from graphweave.compiler.report import FormNote, FormsNote, uncollected
from graphweave.compiler.request import Halves, Request
from graphweave.compiler.road import ROAD, Road
from graphweave.core.types import UNIT, Space
from graphweave.frontends.halves.call_rows import CallRows
from graphweave.frontends.halves.choices import SLACK
from graphweave.frontends.halves.form_cost import FormCost, Rows, Slopes
from graphweave.ir.message import nodes as ir
from graphweave.passes.pass_facts import Measure

_FEW = 64
"""A graph that is supposed to have few pairs has one for so many edges."""
_MAX_SUPPOSED = 4
"""Upper limit on the graphs that are supposed for `explain`."""


@dataclass(slots=True)
class PricedForm:
    """A form of a function's program. `suits` has the rows of the graph for which it was made; those that could not be
    made say why (`refused`)."""

    cost: FormCost
    suits: Rows
    refused: str = ""


class FormSource:
    """All that forms of a function are made of: its `request` without what belongs to one graph, and the `rows` of a
    call. `drawn` are the calls that draw random numbers, with the values that hold them."""

    def __init__(self, request: Request, rows: CallRows, drawn: Mapping[str, ir.Ref]) -> None:
        facts = replace(request.facts, measure=None, choose_order=None, known=None)
        self._request: Request | bytes = replace(request, facts=facts)
        self.rows, self.drawn = rows, drawn
        self.num_forward, self.spaces = request.num_forward, request.program.spaces

    @property
    def request(self) -> Request:
        request = self._request
        if isinstance(request, bytes):
            read: Request = pickle.loads(request)
            request = self._request = replace(read, road=ROAD.without(read.facts.choices.left_out))
        return request

    def __getstate__(self) -> tuple[object, ...]:
        """The request as bytes, which are read once a form is made. The road follows from the user's choices."""
        content = pickle.dumps(replace(self.request, road=Road((), (), (), ())), pickle.HIGHEST_PROTOCOL)
        return content, self.rows, self.drawn, self.num_forward, self.spaces

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._request, self.rows, self.drawn, self.num_forward, self.spaces = state

    def request_for(self, rows: Rows, measure: Measure) -> Request:
        """The request for the form that the compiler chooses for a graph of these rows."""
        counted = {space: n for space, n in rows.items() if space != UNIT}
        facts = replace(self.request.facts, statistics=statistics_of(counted), measure=measure)
        return replace(self.request, facts=facts)

    def candidates(self, first: Halves, rows: Rows, measure: Measure) -> tuple[list[PricedForm], dict[Space, str]]:
        """The form of `first`, made for a graph of these rows, and those that graphs of other statistics would have;
        and words for their spaces."""
        cost = FormCost.of(first)
        found, words = [PricedForm(cost, rows)], dict(first.glossary.spaces)
        for supposed in _supposed(self.rows, cost, rows):
            with uncollected():
                halves = compile(self.request_for({**rows, **supposed}, _Supposed(measure, supposed)))
            form = PricedForm(FormCost.of(halves), supposed)
            words = {**halves.glossary.spaces, **words}
            if all(form.cost.digest != other.cost.digest for other in found):
                found.append(form)
        return found, words


@dataclass(frozen=True, slots=True)
class _Supposed:
    """Counts the graph at hand, but for spaces that are supposed to have `rows`."""

    measure: Measure
    rows: Rows

    def __call__(self, facts: Facts, ref: ir.Ref) -> int | None:
        t = facts.program.types[ref]
        known = self.rows.get(t.space) if isinstance(t, ir.Type) else None
        return self.measure(facts, ref) if known is None else known


def _supposed(counts: CallRows, cost: FormCost, rows: Rows) -> Iterator[dict[Space, int]]:
    """Rows of spaces in graphs that may prefer other forms: as many as there could be of all that is counted, few of
    one of them, and sizes at which a choice would be made otherwise."""
    most = counts.most(rows)
    found = [most] if most else []
    found += [{**most, space: max(1, n // _FEW)} for space, n in most.items()]
    given = {space for space, _ in counts.sizes}
    found += [sizes for turn in cost.turns if (sizes := _turned(turn, rows, given))]
    yield from found[:_MAX_SUPPOSED]


def _turned(turn: Slopes, rows: Rows, given: set[Space]) -> dict[Space, int]:
    """Rows of some of the spaces `given` with which the function says that the other answer is better; none if it never
    does for more rows of these spaces."""
    seconds = [(space, d * rows.get(space, 0)) for space, d in turn]
    gains = {space: s for space, s in seconds if s > 0 and space in given}
    if not gains:
        return {}
    times = (SLACK - sum(s for space, s in seconds if space not in gains)) / sum(gains.values())
    return {space: int(times * rows[space]) + 1 for space in gains}


def forms_note(
    about: str,
    forms: Sequence[PricedForm],
    rows: Rows,
    taken: int,
    words: Mapping[Space, str],
    *,
    made: bool,
    why: str = "",
) -> FormsNote:
    """The forms with their prices for a graph of these rows, in the user's words. `why` one was taken, if not for its
    price."""
    notes = []
    for at, (name, form) in enumerate(zip(_names(forms), forms, strict=True)):
        suits = [(words.get(s, s.name), n) for s, n in form.suits.items() if rows.get(s) != n and s != UNIT]
        notes.append(FormNote(name, form.cost.seconds(rows), at == taken, made, tuple(suits), form.refused))
    return FormsNote(about, tuple(notes), why)


def _names(forms: Sequence[PricedForm]) -> list[str]:
    """A name for each form: the rules that it takes and that not all others take, or those that it alone leaves out."""
    rules = [form.cost.rules for form in forms]
    common, every = frozenset.intersection(*rules), frozenset.union(*rules)
    found = [", ".join(sorted(own - common)) or f"without {', '.join(sorted(every - own))}" for own in rules]
    found = ["the compiler's choice" if name == "without " else name for name in found]
    return [name if found.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(found)]
