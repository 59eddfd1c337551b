"""Where the time of a measured step goes."""

from __future__ import annotations

from graphweave.pages.elements import Content, Html, facts, join, table, tag
from graphweave.pages.explained.data import ExplainedData, ShownMeasured, ShownWork
from graphweave.pages.explained.links import kernel_link, kernels_by_key

_BAR = 120
"""Pixels of the bar of a whole step."""


def step(data: ExplainedData, measured: ShownMeasured) -> Html:
    """The few numbers of the step, and a table of its work."""
    of_kind = {kind: sum(w.seconds for w in measured.work if w.kind == kind) for kind in ("kernel", "call", "other")}
    numbers: dict[str, Content] = {
        "step": _ms(measured.seconds),
        "in kernels": _ms(of_kind["kernel"]),
        "in calls of PyTorch's": _ms(of_kind["call"]),
        "all else": _ms(of_kind["other"]),
    }
    if measured.peak is not None and measured.above is not None:
        numbers["memory in use at most"] = f"{measured.peak / 1e6:,.0f} MB"
        numbers["taken in the step"] = f"{measured.above / 1e6:,.1f} MB"
    kernels = kernels_by_key(data)
    rows = list[list[Content]]()
    for w in measured.work:
        name = kernel_link(kernels[w.key]) if w.key in kernels else w.name
        share = w.seconds / measured.seconds if measured.seconds else 0.0
        rows.append([name, 1e3 * w.seconds, f"{100 * share:.0f} %", _bar(share), _runs(w), w.does])
    header = ["what", "ms", "of the step", "", "runs", "what it computes"]
    return join([facts(numbers), table(header, rows, f"Work of a step: {measured.about}")])


def _runs(work: ShownWork) -> Content:
    return None if work.kind == "other" else work.runs


def _bar(share: float) -> Html:
    rect = tag("rect", width=f"{_BAR * min(1.0, share):.1f}", height=10, fill="currentColor")
    return tag("svg", rect, width=_BAR, height=10, aria_hidden="true")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
