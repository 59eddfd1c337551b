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
    """What makes them; None if no choice by cost depends on a graph. `first` is the form for the graph at hand."""
    cost, at_hand = FormCost.of(first), what.at_hand
    if not cost.turns and not at_hand.counts:
        return None
    names = [n.name for n in what.module.graph.find_nodes(op="placeholder") if n.name not in what.request.facts.tangents]
    rows = {UNIT: 1, **at_hand.rows, **at_hand.counted}
    source = FormSource(what.request, CallRows.of(what.imported, names, at_hand.counts), what.imported.drawn)
    if collecting():
        forms, words = source.candidates(first, rows, at_hand)
        record_forms(forms_note(what.about, forms, rows, 0, words, made=False))
    return Forms(what.about, source, cost, rows, dict(first.glossary.spaces))
