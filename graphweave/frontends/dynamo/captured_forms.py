"""The forms of a captured graph for graphs of other statistics than the one at hand."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.facts import Facts
from graphweave.compiler.report import collecting, record_forms
from graphweave.compiler.request import Halves, Request
from graphweave.core.types import UNIT
from graphweave.frontends.dynamo.captured_request import CapturedGraph
from graphweave.frontends.dynamo.tuned import StoredChoices
from graphweave.frontends.halves.call_rows import CallRows
from graphweave.frontends.halves.choices import gains_enough
from graphweave.frontends.halves.form_cost import FormCost
from graphweave.frontends.halves.form_source import FormSource, forms_note
from graphweave.frontends.halves.forms import Forms
from graphweave.frontends.halves.verdicts import Judge, Verdict
from graphweave.frontends.importing.measure import GraphAtHand
from graphweave.ir.message.nodes import Program
from graphweave.tuning.bucket import shape_of
from graphweave.tuning.order import OrderThatPays


def forms_of(what: CapturedGraph, first: Halves) -> Forms | None:
    """Makes them; None if no choice by cost depends on a graph, or if tangents are not the last arguments. `first`
    is the form for the graph at hand."""
    cost, at_hand, tangents = FormCost.of(first), what.at_hand, what.request.facts.tangents
    placeholders = [n.name for n in what.module.graph.find_nodes(op="placeholder")]
    names = placeholders[: len(placeholders) - len(tangents)]
    judge = _judge(what)
    if not (cost.turns or at_hand.counts or judge) or not tangents.isdisjoint(names):
        return None
    priced = {space for space, _ in cost.price}
    made = [(space, size) for space, size in first.program.spaces if space in priced]
    calls = CallRows.of(what.imported, names, at_hand.counts, made)
    known = {space: first.glossary.statistics.rows(space) for space, _ in calls.sizes}
    rows = {UNIT: 1, **known, **at_hand.rows, **at_hand.counted}
    source = FormSource(what.request, calls, what.imported.drawn)
    if collecting() and gains_enough(cost.seconds(rows)):  # a shorter call takes no other form
        forms, words = source.candidates(first, rows, at_hand)
        record_forms(forms_note(what.about, forms, rows, 0, words, made=False))
    with unset_fake_temporarily(), torch.no_grad():
        bucket = "" if judge is None else judge.bucket(at_hand)
    return Forms(what.about, source, cost, rows, dict(first.glossary.spaces), judge, bucket)


def _judge(what: CapturedGraph) -> Judge | None:
    """Measures graphs, if the user has asked for it."""
    if what.asked.choices.tunes:
        return StoredChoices(what)
    return MeasuredOrders(what.request.program) if what.request.facts.choose_order is not None else None


class MeasuredOrders:
    """`relabel="auto"`: whether an order of nodes pays is measured on the first of similar graphs."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def bucket(self, at_hand: GraphAtHand) -> str:
        return shape_of(Facts(self._program), at_hand.rows, at_hand.value).bucket()

    def verdict(self, request: Request, at_hand: GraphAtHand) -> Verdict:
        order = OrderThatPays(at_hand.value, at_hand.rows)
        return Verdict(replace(request, facts=replace(request.facts, choose_order=order)), (), "orders were measured")
