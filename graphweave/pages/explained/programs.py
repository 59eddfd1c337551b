"""The programs of an explanation, as graphs that `explained.js` draws and lets a reader follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from graphweave.pages.elements import Html, tag
from graphweave.pages.explained.data import ExplainedData, ShownProgram, ShownValue
from graphweave.pages.explained.layers import draw

_MAX_LABEL = 22
"""Characters of a node's label; of longer words the end is shown."""

_CHARACTER, _PADDING = 7, 14
"""Pixels of a character of a label, and around it."""


def graphs(data: ExplainedData) -> Html:
    """The element in which the script draws, and what it draws."""
    if not data.programs:
        return tag("p", "Nothing was compiled, so there is no program to show.")
    places = _Table()
    keys = [kernel.key for kernel in data.kernels]
    content = {
        "programs": [_graph(program, places, keys) for program in data.programs],
        "kernels": [[k.key, k.name, k.half] for k in data.kernels],
        "places": places.items,
    }
    # "<" in the text would be read as markup: in JSON it may be written as an escape.
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return Html(
        tag("div", tag("p", "This part needs JavaScript; the listings below hold the same as text."), id="programs")
        + tag("script", Html(text), type="application/json", id="programs-data")
    )


def listing(program: ShownProgram) -> str:
    """The program as text, a line for each value."""
    lines = [f"space {name}: {words}, {rows:,} rows" for name, words, rows in program.spaces]
    for i, v in enumerate(program.values):
        place = f"  # {v.place.text}" if v.place.text else ""
        lines.append(f"%{i}: {v.type} = {v.operation}{place}")
    return "\n".join(lines)


class _Table:
    """Texts by number, each once."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self._known: dict[str, int] = {}

    def number(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = len(self.items)
            self.items.append(text)
        return self._known[text]


def _graph(program: ShownProgram, places: _Table, keys: Sequence[str]) -> dict[str, object]:
    drawn = [i for i, v in enumerate(program.values) if is_drawn(v)]
    at = {i: k for k, i in enumerate(drawn)}
    labels = [label(program.values[i]) for i in drawn]
    widths = [_CHARACTER * len(text) + _PADDING for text in labels]
    drawing = draw([[at[a] for a in program.values[i].operands if a in at] for i in drawn], widths)
    kernels = {key: n for n, key in enumerate(keys)}
    number: Callable[[str], int] = kernels.__getitem__
    return {
        "key": program.key,
        "title": program.title,
        "source": program.source,
        "spaces": [list(space) for space in program.spaces],
        "outputs": list(program.outputs),
        "width": drawing.width,
        "values": [
            [
                v.operation, v.type, list(v.operands), places.number(v.place.own), places.number(v.place.inner),
                v.role, [number(k) for k in v.kernels if k in kernels], int(v.stored), list(v.made_from),
            ]
            for v in program.values
        ],
        "nodes": [
            [i, text, x, layer, width]
            for i, text, x, layer, width in zip(drawn, labels, drawing.x, drawing.layer, widths, strict=True)
        ],
        "edges": [list(edge) for edge in drawing.edges],
        "far": [list(edge) for edge in drawing.far],
    }  # fmt: skip


def is_drawn(value: ShownValue) -> bool:
    """Whether a value is a node of the drawing. Constants, maps, sizes and checks would clutter it; they are
    named where a value that reads them is looked at."""
    return value.role not in ("constant", "index") and not value.type.startswith(('any "Sym', 'any "none'))


def label(value: ShownValue) -> str:
    words = value.kind.removeprefix("aten.").removesuffix(".default")
    return words if len(words) <= _MAX_LABEL else f"..{words[2 - _MAX_LABEL :]}"
