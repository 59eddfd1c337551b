"""`options={"memory": ...}`: of the forms of a captured graph, the fastest one of which a step fits into a budget."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import statistics_of, with_unions
from graphweave.compiler.compile import compile
from graphweave.compiler.report import MemoryBudgetNote, record_memory_budget, uncollected
from graphweave.compiler.request import Halves, Request
from graphweave.core.errors import MemoryBudgetError
from graphweave.core.log import logger
from graphweave.core.types import Space
from graphweave.execute.build import executable_of
from graphweave.execute.executable import Executable
from graphweave.execute.step_peak import step_peak
from graphweave.frontends.calls.captured_sizes import Size, unbacked
from graphweave.frontends.dynamo.captured_request import CapturedGraph
from graphweave.frontends.dynamo.explain_summary import size

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _Form:
    """A request under choices that differ from the compiler's by `changed`; its `peak` in bytes, and its `seconds` by
    the cost model."""

    changed: Mapping[str, object]
    request: Request
    halves: Halves
    made: tuple[Executable, ...]
    peak: int
    seconds: float

    def peak_for(self, rows: Mapping[Space, int]) -> int:
        """The peak for other row counts of the captured graph's spaces."""
        return step_peak(self.halves, self.made, with_unions(statistics_of(rows), self.halves.joint.unions))

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.changed.items()) or "the compiler's choice"


def fit_memory(what: CapturedGraph) -> Request:
    """The request of a graph in the fastest form whose step fits into the budget.

    The compiler's own form is taken if it fits. Otherwise what the user left open is tried: to compute values again in
    the backward instead of keeping them, chunks of rows, relations one by one, pairs of source and relation or single
    edges and, if the user lets it (`saved="auto"`), to keep rounded rows for the backward. Raises MemoryBudgetError if
    none fits, which says the least that one takes.
    """
    budget = what.asked.choices.memory_bytes
    assert budget is not None
    own = _formed(what.request, {})
    if own.peak <= budget:
        return _taken(what, budget, own, own)
    forms = [own, *_others(what, own)]
    fitting = [form for form in forms if form.peak <= budget]
    if not fitting:
        least = min(forms, key=lambda form: form.peak)
        raise MemoryBudgetError(
            f"{what.about}: a step must fit into {size(budget)} besides its arguments, and takes {size(least.peak)} at"
            f" least ({least}). Pass a larger 'memory', or call it on smaller batches."
        )
    best = min(fitting, key=lambda form: form.seconds)
    return _taken(what, budget, best, own)


def _others(what: CapturedGraph, own: _Form) -> list[_Form]:
    """The forms under changes of choices that save memory in some programs, one by one and together. A change that
    alone changes nothing here is tried with no other."""
    single: list[_Form] = []
    by_name: dict[str, list[dict[str, object]]] = {}
    for name, value in _changes(what):
        form = _formed(what.request, {name: value})
        single.append(form)
        if (form.peak, form.seconds) != (own.peak, own.seconds):
            by_name.setdefault(name, [{}]).append({name: value})
    together = (dict(ChainMap(*several)) for several in product(*by_name.values()))
    return single + [_formed(what.request, changed) for changed in together if len(changed) > 1]


def _changes(what: CapturedGraph) -> Iterator[tuple[str, object]]:
    """Choices that may save memory, with a value that they do not have. Those that the user made stay."""
    choices, asked = what.request.facts.choices, what.asked.options
    trains = what.request.num_forward is not None
    if trains and "recompute" not in asked:
        yield from (("recompute", "sums"), ("recompute", "always"))
    if trains and choices.saved == "auto":
        yield "saved", "bfloat16"
    if "chunks" not in asked:
        yield "chunks", True
    if "merge" not in asked:
        yield "merge", False
    if choices.compact is None:
        yield from (("compact", True), ("compact", False))


def _formed(request: Request, changed: Mapping[str, Any]) -> _Form:
    choices = replace(request.facts.choices, **changed)
    options = replace(request.facts.options, chunks=choices.chunks)
    request = replace(request, facts=replace(request.facts, choices=choices, options=options))
    with uncollected():
        halves = compile(request)
        made = tuple(executable_of(half, request.facts.options) for half in halves.parts)
    statistics, joins = halves.glossary.statistics, request.facts.options.row_products
    spent = sum(cost(Facts(half.facts.program), joins=joins).seconds(statistics) for half in halves.parts)
    return _Form(changed, request, halves, made, step_peak(halves, made, statistics), spent)


def _taken(what: CapturedGraph, budget: int, form: _Form, own: _Form) -> Request:
    note = MemoryBudgetNote(budget, form.peak, own.peak, str(form), form.seconds - own.seconds)
    _log.info("%s: %s", what.about, note)
    record_memory_budget(note)
    _guard(form, budget, what.imported.space_rows)
    return form.request


def _guard(form: _Form, budget: int, rows: Mapping[Space, Size]) -> None:
    """Have a call compiled anew if its step would not fit.

    Peaks are the largest of linear functions of the row counts, but for the few MiB of a chunk of rows, of parts of
    totals, and of kernels that share one call. The guard is a linear function, too: exact for the sizes of this call,
    and but for these MiB above the peak while one row count grows to twice its own. Sizes that data decides cannot be
    guarded.
    """
    counted = dict(form.request.facts.statistics.counted)
    total: Size = form.peak
    for space, count in counted.items():
        if count and space in rows and not unbacked(rows[space]):
            per_row = -(-(form.peak_for({**counted, space: 2 * count}) - form.peak) // count)
            total = total + per_row * (rows[space] - count)
    bool(total <= budget)
