"""The forms of a captured graph for graphs of other statistics than the one at hand."""

from __future__ import annotations

from graphweave.compiler.report import collecting, record_forms
from graphweave.compiler.request import Halves
from graphweave.core.types import UNIT
from graphweave.frontends.dynamo.captured_request import CapturedGraph
from graphweave.frontends.halves.call_rows import CallRows
from graphweave.frontends.halves.form_cost import FormCost
from graphweave.frontends.halves.form_source import FormSource, forms_note
from graphweave.frontends.halves.forms import Forms


def forms_of(what: CapturedGraph, first: Halves) -> Forms | None:
    """What makes them; None if no choice by cost depends on a graph, or if tangents are not the last arguments. `first`
    is the form for the graph at hand."""
    cost, at_hand, tangents = FormCost.of(first), what.at_hand, what.request.facts.tangents
    placeholders = [n.name for n in what.module.graph.find_nodes(op="placeholder")]
    names = placeholders[: len(placeholders) - len(tangents)]
    if not (cost.turns or at_hand.counts) or not tangents.isdisjoint(names):
        return None
    rows = {UNIT: 1, **at_hand.rows, **at_hand.counted}
    source = FormSource(what.request, CallRows.of(what.imported, names, at_hand.counts), what.imported.drawn)
    if collecting():
        forms, words = source.candidates(first, rows, at_hand)
        record_forms(forms_note(what.about, forms, rows, 0, words, made=False))
    return Forms(what.about, source, cost, rows, dict(first.glossary.spaces))
