"""A captured graph for the tuner: its forms as programs, the values of the call at hand, and the key of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.cost import cost
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import with_unions
from graphweave.analysis.typed import is_typed
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.pipeline import PassInputs, optimise
from graphweave.compiler.report import record_tuning
from graphweave.core.counters import bump
from graphweave.core.errors import SettingsError
from graphweave.core.locality import RowOrder
from graphweave.core.log import logger
from graphweave.execute.build import inference_half, training_halves
from graphweave.frontends.calls.captured_sizes import hint
from graphweave.frontends.dynamo.progress import told
from graphweave.frontends.halves.exposed import Exposed, exposed_values
from graphweave.frontends.importing.importer import Imported
from graphweave.frontends.importing.measure import GraphAtHand
from graphweave.ir.message.fingerprint import program_fingerprint, with_symbols_in_order
from graphweave.ir.message.nodes import Input
from graphweave.ir.message.show import show
from graphweave.lower.options import Options
from graphweave.passes.recompute import Recompute
from graphweave.passes.relational import Relational
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


@dataclass(frozen=True, slots=True)
class ToTune:
    """A captured graph, `about` which messages speak, and the options that the user gave as text: they are not tuned.

    `tangents` are the names of inputs that are gradients of the `num_forward` results; both are empty for inference.
    """

    about: str
    imported: Imported
    given: PassInputs
    options: Options
    asked: Mapping[str, Any]
    budget: float
    recompute: Recompute
    watches: bool
    at_hand: GraphAtHand
    module: fx.GraphModule
    num_forward: int | None
    exposed: Exposed | None


def tuned(what: ToTune) -> Choice:
    """The choice for a graph: out of the store if a similar graph was tuned, else by measuring."""
    if what.options.target != "cpp":
        return _told(what, Outcome(Choice(_own(what)), why="kernels of a GPU have no candidates"), 0.0, stored=False)
    with unset_fake_temporarily(), torch.no_grad():
        return _found(what, shared_deadline.get() or Deadline(what.budget))


def _found(what: ToTune, deadline: Deadline) -> Choice:
    rows = what.at_hand.rows
    shape = shape_of(Facts(what.imported.program), rows, what.at_hand.value)
    key = _key(what, shape)
    found = _stored(key)
    if found is not None and (found.finished or found.budget >= deadline.seconds):
        bump("tuning_hits")
        return _told(what, found, 0.0, stored=True)
    bump("tunings")
    begun = deadline.passed
    prepare = _prepare(what)
    values = {**what.at_hand.values, **dict(_tangents(what))}
    subject = GraphToTune(prepare, _own(what), _forms(what, shape, prepare), shape.is_local, told)
    outcome = search(subject, Workshop(what.options, values, deadline))
    if outcome.measured is not None:
        store.save(key, outcome.to_dict())
    return _told(what, outcome, deadline.passed - begun, stored=False)


def _told(what: ToTune, outcome: Outcome, seconds: float, *, stored: bool) -> Choice:
    note = outcome.note(seconds, stored)
    if note.why:
        _log.warning("%s runs untuned: %s", what.about, note.why)
    else:
        _log.info("%s: %s", what.about, note)
    record_tuning(note)
    return outcome.choice


def _own(what: ToTune) -> ProgramForm:
    relational = what.given.relational
    order = what.given.relabel
    return ProgramForm(relational.compact, relational.reorder, order if isinstance(order, str) else None)


def _forms(what: ToTune, shape: GraphShape, prepare: Callable[[ProgramForm], PreparedForm]) -> tuple[ProgramForm, ...]:
    """Forms besides the compiler's own: relational ones if there are typed products, orders of nodes if neighbours do
    not have near numbers already."""
    own = _own(what)
    found: list[ProgramForm] = []
    program = prepare(own).halves[0].facts.program
    if any(is_typed(program, r) for r in range(len(program.nodes))):
        either = [(value,) if value is not None else (False, True) for value in (own.compact, own.reorder)]
        found += [ProgramForm(c, r, own.relabel) for c, r in product(*either)]
    if what.asked.get("relabel", "auto") == "auto" and shape.near and not shape.is_local:
        found += [replace(own, relabel=order) for order in _ORDERS]
    return tuple(form for form in found if form != own)


def _prepare(what: ToTune) -> Callable[[ProgramForm], PreparedForm]:
    """A function that makes each form once."""
    made: dict[ProgramForm, PreparedForm] = {}

    def prepare(form: ProgramForm) -> PreparedForm:
        if form not in made:
            made[form] = _prepared(what, form)
        return made[form]

    return prepare


def _prepared(what: ToTune, form: ProgramForm) -> PreparedForm:
    imported, given = what.imported, what.given
    asked = replace(given, relational=Relational(form.compact, form.reorder), relabel=form.relabel)
    done = optimise(imported.program, asked, imported.effects)
    where, statistics = done.where, with_unions(given.statistics, done.unions)
    effects = [where[r] for r in imported.effects]
    constants = {where[r]: value for r, value in imported.attributes.items() if r in where}
    glossary = Glossary(statistics=statistics)
    inputs = tuple(where[r] for r in imported.inputs)
    tangents = [r for r in inputs if isinstance(n := done.program.nodes[r], Input) and n.name in given.tangents]
    text, divided = show(done.program), None
    seconds = cost(Facts(done.program), tangents, effects, joins=given.joins).seconds(statistics)
    if what.num_forward is None:
        half, _ = inference_half(
            done.program, effects, what.options, constants, watches=what.watches, promises=imported.promises,
            glossary=glossary,
        )  # fmt: skip
        return PreparedForm(form, text, (half,), None, 0, statistics, seconds)
    moved = replace(imported, program=done.program, inputs=inputs)
    found = frozenset() if what.exposed is None else exposed_values(what.exposed, moved)
    forward, backward, divided = training_halves(
        done.program, what.num_forward, tangents, effects, what.options, constants, recompute=what.recompute,
        watches=what.watches, exposed=found, promises=imported.promises, glossary=glossary,
    )  # fmt: skip
    return PreparedForm(form, text, (forward, backward), divided, what.num_forward, statistics, seconds)


def _tangents(what: ToTune) -> Iterator[tuple[str, Tensor]]:
    """A tensor of ones for each gradient that the backward takes, where its sizes are known."""
    for node in what.module.graph.find_nodes(op="placeholder"):
        fake = node.meta.get("val")
        if node.name in what.given.tangents and isinstance(fake, Tensor):
            sizes = [hint(size) for size in fake.shape]
            if all(size is not None for size in sizes):
                yield node.name, torch.ones(sizes, dtype=fake.dtype, device=fake.device)  # type: ignore[arg-type]


def _key(what: ToTune, shape: GraphShape) -> dict[str, str]:
    """All on which the choice depends: the program with its feature sizes, the user's options, the statistics of the
    graph, and the machine with this version."""
    asked = {name: value for name, value in what.asked.items() if name not in ("schedule", "budget", "verify")}
    program = program_fingerprint(what.imported.program, with_symbols_in_order())
    return {
        "program": program, "results": str(what.num_forward), "options": repr(sorted(asked.items())),
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
