"""A captured graph for the tuner: its forms as programs, the values of the call at hand, and the key of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.typed import is_typed
from graphweave.compiler.compile import compile
from graphweave.compiler.report import record_tuning, uncollected
from graphweave.compiler.request import Request
from graphweave.core.counters import bump
from graphweave.core.errors import SettingsError
from graphweave.core.kernel_schedules import KernelSchedules
from graphweave.core.locality import RowOrder
from graphweave.core.log import logger
from graphweave.core.schedule import Schedule
from graphweave.frontends.calls.captured_sizes import hint
from graphweave.frontends.dynamo.captured_request import CapturedGraph
from graphweave.frontends.dynamo.progress import told
from graphweave.frontends.halves.verdicts import Verdict
from graphweave.frontends.importing.measure import GraphAtHand
from graphweave.ir.message.fingerprint import program_fingerprint
from graphweave.ir.message.show import show
from graphweave.tuning import store
from graphweave.tuning.bucket import GraphShape, shape_of
from graphweave.tuning.choice import Choice, ProgramForm
from graphweave.tuning.deadline import Deadline, shared_deadline
from graphweave.tuning.machine import identity
from graphweave.tuning.note import Outcome
from graphweave.tuning.search import GraphToTune, search
from graphweave.tuning.trial import PreparedForm, Workshop

_log = logger(__name__)

_ORDERS: tuple[RowOrder, ...] = ("locality", "degree")


Tuned: TypeAlias = tuple[Request, tuple[Schedule, ...]]
"""A request in the form that was chosen, and a schedule for each half."""


def tuned(what: CapturedGraph) -> Tuned:
    """The request of a graph by the best choice: out of the store if a similar graph was tuned, else by measuring."""
    if what.request.facts.options.target != "cpp":
        outcome = Outcome(Choice(_own(what)), why="kernels of a GPU have no candidates")
        choice = _told(what, outcome, 0.0, stored=False)
    else:
        with unset_fake_temporarily(), torch.no_grad():
            choice = _found(what, shared_deadline.get() or Deadline(what.asked.choices.budget))
    halves = 1 if what.request.num_forward is None else 2
    return _in_form(what.request, choice.form), (choice.forward, choice.backward)[:halves]


def _found(what: CapturedGraph, deadline: Deadline) -> Choice:
    at_hand, facts = what.at_hand, what.request.facts
    shape = shape_of(Facts(what.request.program), at_hand.rows, at_hand.value)
    key = _key(what.request, what.asked.options, shape)
    found = _stored(key)
    if found is not None and (found.finished or found.budget >= deadline.seconds):
        bump("tuning_hits")
        return _told(what, found, 0.0, stored=True)
    bump("tunings")
    begun = deadline.passed
    prepare = _prepare(what)
    values = {**at_hand.values, **dict(_tangents(what))}
    subject = GraphToTune(prepare, _own(what), _forms(what, shape, prepare), shape.is_local, told)
    outcome = search(subject, Workshop(facts.options, values, deadline))
    if outcome.measured is not None:
        store.save(key, outcome.to_dict())
    return _told(what, outcome, deadline.passed - begun, stored=False)


def _told(what: CapturedGraph, outcome: Outcome, seconds: float, *, stored: bool) -> Choice:
    note = outcome.note(seconds, stored)
    if note.why:
        _log.warning("%s runs untuned: %s", what.about, note.why)
    else:
        _log.info("%s: %s", what.about, note)
    record_tuning(note)
    return outcome.choice


def _own(what: CapturedGraph) -> ProgramForm:
    choices = what.asked.choices
    return ProgramForm(choices.compact, choices.reorder, choices.relabel if choices.relabel in _ORDERS else None)


class StoredChoices:
    """Verdicts of the tuner, for graphs other than the one that was tuned: what a search has found and kept for graphs
    like them. Nothing is measured."""

    def __init__(self, what: CapturedGraph) -> None:
        self._program, self._options = what.request.program, what.asked.options
        self._halves = 1 if what.request.num_forward is None else 2

    def bucket(self, at_hand: GraphAtHand) -> str:
        return self._shape(at_hand).bucket()

    def verdict(self, request: Request, at_hand: GraphAtHand) -> Verdict | None:
        found = _stored(_key(request, self._options, self._shape(at_hand)))
        if found is None:
            return None
        bump("tuning_hits")
        choice = found.choice
        schedules = (choice.forward, choice.backward)[: self._halves]
        return Verdict(_in_form(request, choice.form), schedules, "the tuner has measured such a graph")

    def _shape(self, at_hand: GraphAtHand) -> GraphShape:
        return shape_of(Facts(self._program), at_hand.rows, at_hand.value)


def _in_form(request: Request, form: ProgramForm) -> Request:
    """The request for a form of the program."""
    facts = request.facts
    choices = replace(facts.choices, compact=form.compact, reorder=form.reorder, relabel=form.relabel or False)
    return replace(request, facts=replace(facts, choices=choices))


def _forms(
    what: CapturedGraph, shape: GraphShape, prepare: Callable[[ProgramForm], PreparedForm]
) -> tuple[ProgramForm, ...]:
    """Forms besides the compiler's own: relational ones if there are typed products, orders of nodes if neighbours do
    not have near numbers already."""
    own = _own(what)
    if isinstance(what.asked.choices.schedule, KernelSchedules):
        return ()  # another form has other kernels
    found: list[ProgramForm] = []
    program = prepare(own).halves.parts[0].facts.program
    if any(is_typed(program, r) for r in range(len(program.nodes))):
        either = [(value,) if value is not None else (False, True) for value in (own.compact, own.reorder)]
        found += [ProgramForm(c, r, own.relabel) for c, r in product(*either)]
    if what.asked.options.get("relabel", "auto") == "auto" and shape.near and not shape.is_local:
        found += [replace(own, relabel=order) for order in _ORDERS]
    return tuple(form for form in found if form != own)


def _prepare(what: CapturedGraph) -> Callable[[ProgramForm], PreparedForm]:
    """A function that makes each form once."""
    made: dict[ProgramForm, PreparedForm] = {}

    def prepare(form: ProgramForm) -> PreparedForm:
        if form not in made:
            made[form] = _prepared(what, form)
        return made[form]

    return prepare


def _prepared(what: CapturedGraph, form: ProgramForm) -> PreparedForm:
    request = _in_form(what.request, form)
    facts = replace(request.facts, choices=replace(request.facts.choices, verify=False, cuda_graphs=False))
    with uncollected():
        halves = compile(replace(request, facts=facts))
    where = halves.joint.where
    keep, tangents = [where[r] for r in facts.keep], facts.tangents_of(halves.program)
    spent = cost(Facts(halves.program), tangents, keep, joins=facts.options.row_products)
    return PreparedForm(form, show(halves.program), halves, spent.seconds(halves.glossary.statistics))


def _tangents(what: CapturedGraph) -> Iterator[tuple[str, Tensor]]:
    """A tensor of ones for each gradient that the backward takes, where its sizes are known."""
    for node in what.module.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        if node.name in what.request.facts.tangents and isinstance(fake, Tensor):
            sizes = [hint(size) for size in fake.shape]
            if all(size is not None for size in sizes):
                yield node.name, torch.ones(sizes, dtype=fake.dtype, device=fake.device)  # type: ignore[arg-type]


def _key(request: Request, options: Mapping[str, object], shape: GraphShape) -> dict[str, str]:
    """All on which the choice depends: the program with its feature sizes, the user's options, the statistics of the
    graph, and the machine with this version."""
    asked = {name: value for name, value in options.items() if name not in ("schedule", "budget", "verify")}
    program, by_name = program_fingerprint(request.program), request.facts.options.schedules
    if by_name is not None:
        asked["schedule"] = by_name
    return {
        "program": program, "results": str(request.num_forward), "options": repr(sorted(asked.items())),
        "graph": shape.bucket(), "machine": identity(),
    }  # fmt: skip


def _stored(key: Mapping[str, str]) -> Outcome | None:
    held = store.load(key)
    if held is None:
        return None
    try:
        return Outcome.from_dict(held)
    except (SettingsError, KeyError, TypeError, AttributeError) as error:
        _log.warning("what was found for a graph is ignored: %s", error)
        return None
