"""The parts of a page: sections, tables, figures and lists of facts. All text that they are given is escaped, unless it
is `Html`, which is what they return; so parts can be put into parts."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias


class Html(str):
    """Text that is markup already, and must not be escaped again."""

    __slots__ = ()


Content: TypeAlias = "str | int | float | None"
"""Text, markup (`Html`), a number, or None, which is shown as a dash."""


def escape(content: Content) -> Html:
    """Text as markup that shows it; `Html` as it is. Integers and large numbers have their thousands separated, other
    numbers three significant digits."""
    if isinstance(content, Html):
        return content
    if content is None:
        return Html("&ndash;")
    if isinstance(content, bool):
        return Html("yes" if content else "no")
    if isinstance(content, int):
        return Html(f"{content:,}")
    if isinstance(content, float):
        return Html(f"{content:.3g}" if abs(content) < 1000 else f"{content:,.0f}")
    return Html(html.escape(content))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Parts one after the other, each of them escaped if it is text."""
    return Html(escape(between).join(map(escape, parts)))


def tag(name: str, *content: Content, **attributes: Content) -> Html:
    """An element. A trailing underscore of an attribute's name is dropped, other underscores are dashes; an attribute
    that is None or False is left out, and True stands for one without a value."""
    texts = [
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    ]
    return Html(f"<{name}{''.join(texts)}>{join(map(escape, content))}</{name}>")


def section(title: str, body: str, note: str = "", *, key: str = "") -> Html:
    """A part of the page under a heading of its own, with a sentence on how to read it. `key` is its address in the
    page (`#key`), made from the title if it is left out."""
    key = key or slug(title)
    below = tag("p", note, class_="note") if note else Html("")
    return tag("section", tag("h2", title, id=key), below, body, aria_labelledby=key)


def table(header: Sequence[Content], rows: Iterable[Sequence[Content]], caption: str) -> Html:
    """A table whose first column names its rows. Numbers are set to the right. It scrolls by itself if it is wide."""
    head = tag("tr", *(tag("th", cell, scope="col") for cell in header))
    lines = (tag("tr", tag("th", first, scope="row"), *map(_cell, others)) for first, *others in rows)
    inner = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *lines))
    return tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=caption)


def figure(svg: str, caption: str, alt: str) -> Html:
    """A drawing (trusted SVG) with its caption; `alt` says in words what it shows."""
    drawing = tag("div", Html(svg), class_="drawing", role="img", aria_label=alt)
    return tag("figure", drawing, tag("figcaption", caption))


def facts(named: Mapping[str, Content]) -> Html:
    """Names and what they are, for the few numbers that a reader wants first."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in named.items()), class_="facts")


def fold(summary: str, body: str, *, open_: bool = False, key: str | None = None) -> Html:
    """A part that is closed until its summary is clicked."""
    return tag("details", tag("summary", summary), body, open=open_, id=key)


def code(text: str, language: str = "") -> Html:
    """Lines of code or of a listing. They scroll by themselves if they are wide."""
    return tag("pre", tag("code", text), tabindex="0", class_=language or None)


def slug(text: str) -> str:
    """An address made from a title: "Kernels (CPU)" is "kernels-cpu"."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def _cell(content: Content) -> Html:
    number = isinstance(content, (int, float)) and not isinstance(content, bool)
    return tag("td", content, class_="number" if number else None)
