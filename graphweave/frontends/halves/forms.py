"""Choice at run time: a compiled function holds several forms of its program, and the graph at hand decides.

The form that was compiled first suits the graph of the first call. Where the statistics of another graph (its sizes,
its pairs of source and relation, whatever else was counted for a choice by cost) are such that another form may be
better, the program is led along the road once more, with these statistics. A form that comes out cheaper by the cost
model is compiled, and from then on each graph takes the form that costs it least. The decision is made once a graph,
and is remembered by the graph's index tensors. Which form a forward took is saved for its backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._dynamo import compiled_autograd

from graphweave.compiler.compile import compile
from graphweave.compiler.report import collecting, record_forms, uncollected
from graphweave.compiler.request import Request
from graphweave.core import locks
from graphweave.core.boxed import Boxed, boxed
from graphweave.core.counters import bump
from graphweave.core.interrupts import interrupt_in
from graphweave.core.log import logger, warn_once
from graphweave.core.schedule import Schedule
from graphweave.core.settings import settings
from graphweave.core.types import Space
from graphweave.execute.build import build
from graphweave.execute.executable import Executable
from graphweave.frontends.halves.autograd_function import Gradients
from graphweave.frontends.halves.call_rows import Numbers
from graphweave.frontends.halves.choices import gains_enough
from graphweave.frontends.halves.form_cost import FormCost, Rows
from graphweave.frontends.halves.form_source import FormSource, PricedForm, forms_note
from graphweave.frontends.halves.handover import Handed
from graphweave.frontends.halves.later_form import LaterForm
from graphweave.frontends.halves.verdicts import Judge
from graphweave.frontends.importing.measure import GraphAtHand
from graphweave.ir.message import nodes as ir
from graphweave.runtime.tracked import Key, TrackedCache, place, versions_of

_log = logger(__name__)

MAX_FORMS = 8
"""Upper limit on the forms of one compiled function."""
_MAX_SEARCHES = 16
"""Upper limit on how often a function's program is led along the road for other statistics."""
_MAX_SIZES = 4096
"""Upper limit on the sets of sizes for which a decision is remembered."""
_CALLS_A_COUNT = 8
"""A graph is counted in its first call if none of so many calls before has counted one, and otherwise in its second.
Counting takes about a tenth of a call, which a graph that never comes again does not pay back."""

_COUNT, _SEEN = -1, -2
"""In place of a form's number: the graph must be counted to decide; the graph came once and was not counted."""

Bucket: TypeAlias = tuple[tuple[str, int], ...]
"""Graphs of one bucket are searched for a form together."""


@dataclass(slots=True)
class _Handed:
    """The halves that were handed over: the numbers that the forward saves behind its tensors, the names of the
    backward's arguments, how many of them are tangents, and in which slots values must be saved (`LaterForm`)."""

    numbers: int = 0
    names: tuple[str, ...] = ()
    tangents: int = 0
    pinned: Mapping[ir.Ref, int] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """The tensors that the forward saves."""
        return len(self.names) - self.numbers - self.tangents


class Forms:
    """The forms of one compiled function, and the decisions of its graphs. `about` names the function in messages."""

    def __init__(
        self, about: str, source: FormSource, first: FormCost, rows: Rows, words: Mapping[Space, str],
        judge: Judge | None = None, bucket: str = "",
    ) -> None:  # fmt: skip
        """`first` is the cost of the form that is handed over, and `rows` and the judge's `bucket` are those of the
        graph for which it was made. `words` are the user's for spaces."""
        self._about, self._source, self._judge = about, source, judge
        self._first = PricedForm(first, dict(rows))
        self._words: Mapping[Space, str] = words
        self._begin()
        self._verdicts[bucket] = 0, ""

    def _begin(self) -> None:
        self._forms = [self._first]
        self._runs: list[LaterForm | None] = [None]
        """The halves of each form; None for the one that was handed over, and for those that could not be made."""
        self._half = _Handed()
        self._searched = dict.fromkeys(self._buckets(self._first.suits), 0)
        """The form that the compiler chose for the graphs of a bucket."""
        suits = self._first.suits
        self._sought = {self._sizes({**suits, **self._source.rows.most(suits)})}
        """The buckets of sizes for which a graph was counted in its first call, as the sizes said so."""
        self._verdicts: dict[str, tuple[int, str] | None] = {}
        """The form and the reason for each bucket of the judge's; None where nothing was measured."""
        self._known_rows = self._source.rows.known_of()
        self._read = self._source.rows.read(indices=self._judge is not None)
        self._by_sizes: dict[Numbers, int] = {}
        self._by_graph: TrackedCache[int] = TrackedCache(lambda: settings().format_bytes)
        self._lock = locks.reentrant_lock()
        self._last = 0
        self._calls = _CALLS_A_COUNT
        """Calls since a graph was counted."""

    def __getstate__(self) -> tuple[object, ...]:
        return self._about, self._source, self._first, self._words

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._about, self._source, self._first, self._words = state
        self._judge = None  # what asks for measurements is not kept on disk
        self._begin()

    # -------------------------------------------------------- the halves

    def inference(self, executable: Executable) -> Boxed:
        """The executable of an inference as a function that AOTAutograd may call."""

        def run(args: list[object]) -> list[object]:
            form = self._runs[self._taken(args)]
            return executable(args) if form is None else form.infer(args)

        return boxed(run)

    def forward(self, half: Handed, numbers: int) -> Boxed:
        """The forward as AOTAutograd calls it; `numbers` are those among its last results."""
        assert half.names == self._source.rows.names, "the arguments are those of the captured graph"
        self._half.numbers = numbers
        own, count = half.boxed(), self._source.num_forward
        gives = half.gives[:count]
        given = half.gives[len(half.gives) - numbers :]

        def run(args: list[object]) -> list[object]:
            # a compiled engine of autograd runs the backward that was handed over
            at = 0 if compiled_autograd.compiled_autograd_enabled else self._taken(args)
            form = self._runs[at]
            if form is None:
                return own(args)
            passed = [None if made else args[i] for made, i in gives]
            symbols = [0 if made else args[i] for made, i in given]
            results, saved = form.forward(args, at)
            results.append(None)
            out = [results[i] if made else p for (made, i), p in zip(gives, passed, strict=True)]
            return [*out, *saved, *symbols]

        return boxed(run)

    def backward(self, half: Handed, gradients: Gradients) -> Boxed:
        """The backward as AOTAutograd calls it. `gradients` are told that its arguments may be more."""
        first, tangents = self._half.numbers, gradients.num_tangents
        self._half.names, self._half.tangents = half.names, tangents
        self._half.pinned = {self._source.drawn[call]: at - first for call, at in gradients.drawn.items()}
        gradients.allow_more_saved(self._half.slots)
        own, count = half.boxed(), len(half.names)

        def run(args: list[object]) -> list[object]:
            if len(args) == count:
                return own(args)
            end = len(args) - tangents
            told = args[end - 1]
            assert isinstance(told, Tensor)
            name, *saved = told.tolist()
            form = self._runs[int(name)]
            assert form is not None, "the form that was handed over saves as many values as there are slots"
            results = form.backward(args, first, end, saved)
            results.append(None)
            return [results[at] for _, at in half.gives]

        return boxed(run)

    # -------------------------------------------------------- the decision

    def _taken(self, args: Sequence[object]) -> int:
        """The number of the form for the graph of these arguments."""
        numbers = self._source.rows.numbers(args)
        at = self._by_sizes.get(numbers)
        if at is None:
            at = self._of_sizes(args, numbers)
        if at == _COUNT:
            at = self._of_graph(args, numbers)
        if at != self._last:
            self._last = at
            bump("form_switches")
        return at

    def _of_sizes(self, args: Sequence[object], numbers: Numbers) -> int:
        """The form for graphs of these sizes; _COUNT if sizes alone do not decide.

        They decide where nothing is counted, and where no graph of these sizes takes so long that another form could
        gain enough."""
        at = _COUNT
        if self._judge is None and not self._source.rows.counts:
            at = self._decided(args, numbers)
        elif self._judge is None:
            known = self._known_rows(numbers)
            rows = {**known, **self._source.rows.most(known)}
            if not any(gains_enough(form.cost.seconds(rows)) for form in self._forms):
                at = self._unless_chosen(self._cheapest(rows), rows)
        if len(self._by_sizes) >= _MAX_SIZES:
            self._by_sizes.clear()
        self._by_sizes[numbers] = at
        return at

    def _of_graph(self, args: Sequence[object], numbers: Numbers) -> int:
        """The form for the graph whose index tensors are among the arguments."""
        tensors = tuple(t for at in self._read if isinstance(t := args[at], Tensor))
        key: Key = (numbers, *map(place, tensors))
        found = self._by_graph.get(key, tensors)
        self._calls += 1
        if found is not None and found != _SEEN:
            return found
        versions = versions_of(tensors)
        if versions is None:  # an edit of an inference tensor could not be noticed
            return self._last
        if found is None and self._calls <= _CALLS_A_COUNT and (at := self._uncounted(numbers)) is not None:
            self._by_graph.put(key, tensors, versions, _SEEN, ())
            return at
        self._calls = 0
        at = self._decided(args, numbers)
        self._by_graph.put(key, tensors, versions, at, ())
        return at

    def _uncounted(self, numbers: Numbers) -> int | None:
        """The form for a graph that is not counted, by its sizes alone: that of the call before, unless another is
        better by enough with as many rows as there could be. None if sizes say for the first time that a choice would
        be made otherwise."""
        known = self._known_rows(numbers)
        rows = {**known, **self._source.rows.most(known)}
        at = self._cheapest(rows)
        if self._forms[at].cost.is_wrong(rows) and (bucket := self._sizes(rows)) not in self._sought:
            self._sought.add(bucket)
            return None
        last, best = (self._forms[i].cost.seconds(rows) for i in (self._last, at))
        return at if gains_enough(last - best) else self._last

    def _decided(self, args: Sequence[object], numbers: Numbers) -> int:
        """The form for a graph, which is made if there is none yet that suits it."""
        with self._lock, torch._C.DisableTorchFunction(), torch.no_grad():
            rows = self._source.rows.counted(args, self._known_rows(numbers))
            at_hand, why = self._at_hand(args, rows), ""
            measured = None if self._judge is None else self._verdict(self._judge, at_hand, rows)
            if measured is not None:
                at, why = measured
            else:
                at = self._cheapest(rows)
                if self._may_gain(at, rows):
                    at = self._searched_for(at_hand, rows, at)
                    self._searched.update(dict.fromkeys(self._buckets(rows), at))
                at = self._unless_chosen(at, rows)
            if collecting() and (why or gains_enough(self._forms[at].cost.seconds(rows))):
                record_forms(forms_note(self._about, self._forms, rows, at, self._words, made=True, why=why))
        return at

    def _at_hand(self, args: Sequence[object], rows: Rows) -> GraphAtHand:
        at_hand = GraphAtHand(dict(zip(self._source.rows.names, args, strict=True)))
        at_hand.rows = {space: rows[space] for space, _ in self._source.spaces if space in rows}
        return at_hand

    def _verdict(self, judge: Judge, at_hand: GraphAtHand, rows: Rows) -> tuple[int, str] | None:
        """The form that was measured to be the best for such graphs, and the reason; None if nothing was measured."""
        bucket = judge.bucket(at_hand)
        if bucket not in self._verdicts:
            found = judge.verdict(self._source.request_for(rows, at_hand), at_hand)
            at = None if found is None else self._made(found.request, rows, found.schedules)
            self._verdicts[bucket] = None if found is None or at is None else (at, found.why)
        return self._verdicts[bucket]

    def _cheapest(self, rows: Rows) -> int:
        """The form of the lowest price among those that are for such graphs; if there is none, among all."""
        usable = [at for at, form in enumerate(self._forms) if not form.refused]
        suiting = [at for at in usable if self._forms[at].cost.suits(rows)]
        return min(suiting or usable, key=lambda at: self._forms[at].cost.seconds(rows))

    def _may_gain(self, at: int, rows: Rows) -> bool:
        """Whether the program may have a form that suits a graph of these rows better than form `at`: a choice of that
        form would be made otherwise, or what was counted differs from that of all graphs before."""
        if len(self._forms) >= MAX_FORMS or len(self._searched) >= _MAX_SEARCHES:
            return False
        cost = self._forms[at].cost
        if not gains_enough(cost.seconds(rows)):
            return False
        counted = bool(self._source.rows.counts) and self._shares(rows) not in self._searched
        wrong = cost.is_wrong(rows) or not cost.suits(rows)
        return counted or (wrong and self._sizes(rows) not in self._searched)

    def _unless_chosen(self, at: int, rows: Rows) -> int:
        """The form that the compiler chose for graphs of this bucket, unless form `at` is better by enough. Prices of
        forms that differ by less say nothing."""
        chosen = next((self._searched[one] for one in self._buckets(rows) if one in self._searched), at)
        own, best = (self._forms[i].cost.seconds(rows) for i in (chosen, at))
        unfit = self._forms[chosen].refused or not self._forms[chosen].cost.suits(rows)
        return at if unfit or gains_enough(own - best) else chosen

    def _buckets(self, rows: Rows) -> tuple[Bucket, ...]:
        return (self._shares(rows), self._sizes(rows)) if self._source.rows.counts else (self._sizes(rows),)

    def _shares(self, rows: Rows) -> Bucket:
        """The rows that are counted, for each row that there could be, to a factor of two."""
        most = self._source.rows.most(rows)
        return tuple((s.name, round(math.log2((1 + rows.get(s, n)) / (1 + n)))) for s, n in most.items())

    def _sizes(self, rows: Rows) -> Bucket:
        """All rows to a factor of two."""
        return tuple((s.name, round(math.log2(1 + n))) for s, n in sorted(rows.items(), key=lambda item: item[0].name))

    # -------------------------------------------------------- another form

    def _searched_for(self, at_hand: GraphAtHand, rows: Rows, best: int) -> int:
        """The form that the compiler chooses for a graph of these rows, if it is better than form `best`."""
        cost = self._forms[best].cost
        than = cost.seconds(rows) if cost.suits(rows) else math.inf
        made = self._made(self._source.request_for(rows, at_hand), rows, than=than)
        return self._cheapest(rows) if made is not None else best

    def _made(
        self, request: Request, rows: Rows, schedules: tuple[Schedule, ...] = (), than: float = math.inf
    ) -> int | None:
        """The form that a request leads to, if it is enough better than one of `than` seconds; None if it is not, or
        cannot be made."""
        form: PricedForm | None = None
        try:
            with uncollected():
                halves = compile(request)
                form = PricedForm(FormCost.of(halves, schedules), rows)
                known = next((i for i, one in enumerate(self._forms) if one.cost.digest == form.cost.digest), None)
                if known is not None:
                    return None if self._forms[known].refused else known
                if not gains_enough(than - form.cost.seconds(rows)) or len(self._forms) >= MAX_FORMS:
                    return None
                made = build(halves, schedules)
                run = LaterForm(halves, made, len(self._source.rows.names), self._half.pinned, self._half.slots)
        except Exception as error:
            if interrupt_in(error) is not None:
                raise
            self._refuse(form, error)
            return None
        bump("forms_made")
        _log.info("%s: form %d of it is compiled for another graph", self._about, len(self._forms))
        self._words = {**halves.glossary.spaces, **self._words}
        self._add(form, run)
        return len(self._forms) - 1

    def _add(self, form: PricedForm, run: LaterForm | None) -> None:
        self._runs.append(run)
        self._forms.append(form)
        self._by_sizes.clear()
        self._by_graph.clear()

    def _refuse(self, form: PricedForm | None, error: Exception) -> None:
        """Count and report a form that could not be made."""
        bump("forms_refused")
        why = " ".join(f"{type(error).__name__}: {error}".split())
        _log.debug("a form of %s could not be made", self._about, exc_info=error)
        warn_once(
            f"graphweave: {self._about} keeps the form that it has, since another one, which the cost model prefers for"
            f" this graph, could not be made: {why}. The results are right; please report it, with"
            " GRAPHWEAVE_LOGS=+frontends for the traceback."
        )
        if form is not None:
            form.refused = why
            self._add(form, None)
