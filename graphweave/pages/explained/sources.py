"""The source of an explained function, with what became of each line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from graphweave.pages.elements import Html, fold, join, tag
from graphweave.pages.explained.data import Became, ExplainedData, ShownCalls, ShownFate, ShownKernel, ShownSource
from graphweave.pages.explained.links import kernel_link, kernels_by_key, line_key

_ORDER = get_args(Became)

_WORDS = {"pytorch": "left to PyTorch", "break": "graph break", "eager": "runs eagerly", "again": "compiled again"}
"""Fates that a user may want to mend, as words before the reason."""


def sources(data: ExplainedData) -> Html:
    """The user's functions, and folded below them those of libraries."""
    if not data.sources:
        return tag("p", "No source file is known.")
    fates: dict[str, list[ShownFate]] = {}
    for fate in data.fates:
        fates.setdefault(fate.place, []).append(fate)
    calls = {c.place: c for c in data.eager}
    kernels = kernels_by_key(data)
    own = [_block(s, fates, calls, kernels) for s in data.sources if s.own]
    inner = [fold(_title(s), _block(s, fates, calls, kernels, titled=False)) for s in data.sources if not s.own]
    if not own:
        own = [tag("p", "No line of your own was captured: the function that is compiled is a library's.")]
    below = [tag("h3", "Inside libraries"), *inner] if inner else []
    return join([*own, *below])


def _title(source: ShownSource) -> str:
    return f"{source.name}, {source.file}:{source.first}" if source.name else f"{source.file}:{source.first}"


def _block(
    source: ShownSource, fates: Mapping[str, Sequence[ShownFate]], calls: Mapping[str, ShownCalls],
    kernels: Mapping[str, ShownKernel], *, titled: bool = True,
) -> Html:  # fmt: skip
    rows = []
    for number, text in enumerate(source.lines, source.first):
        place = f"{source.file}:{number}"
        became = _became(fates.get(place, ()), calls.get(place), kernels)
        first = tag(
            "button", str(number), type="button", data_place=place, title=f"Mark the values of {place} in the graph"
        )
        shown = first if became else str(number)
        rows.append(
            tag("tr", tag("th", Html(shown), scope="row"), tag("td", tag("code", text)), tag("td", became),
                id=line_key(place), class_="told" if became else None)
        )  # fmt: skip
    head = tag("tr", *(tag("th", words, scope="col") for words in ("line", "source", "what became of it")))
    caption = tag("caption", _title(source), class_=None if titled else "unseen")
    inner = tag("table", caption, tag("thead", head, class_="unseen"), tag("tbody", *rows), class_="source")
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=_title(source))


def _became(fates: Sequence[ShownFate], calls: ShownCalls | None, kernels: Mapping[str, ShownKernel]) -> Html:
    parts = []
    for fate in sorted(fates, key=lambda fate: _ORDER.index(fate.became)):
        named = sorted((kernels[key] for key in fate.kernels if key in kernels), key=lambda k: k.number)
        links = join(map(kernel_link, named), " ")
        word = tag("strong", f"{_WORDS[fate.became]}: ", class_="warn") if fate.became in _WORDS else Html("")
        parts.append(tag("li", word, fate.text, " by " if links and fate.became == "once" else " ", links))
    if calls is not None:
        moved = f", {_megabytes(calls.moved)}" if calls.moved else ""
        words = f"eager mode: {calls.calls:,} call{'s' * (calls.calls != 1)}{moved}"
        parts.append(tag("li", words, class_="soft"))
    return tag("ul", *parts, class_="became") if parts else Html("")


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e5 else f"{count / 1e3:.3g} kB"
