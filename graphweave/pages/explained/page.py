"""The page about a compiled function."""

from __future__ import annotations

from collections.abc import Iterator

from graphweave.pages.elements import Html, code, facts, fold, join, section, table, tag
from graphweave.pages.explained.charts import memory, roofline
from graphweave.pages.explained.data import ExplainedData
from graphweave.pages.explained.kernels import kernels, run_table
from graphweave.pages.explained.links import place_link
from graphweave.pages.explained.programs import graphs, listing
from graphweave.pages.explained.sources import sources
from graphweave.pages.explained.step import step
from graphweave.pages.frame import asset, page

_SOURCE = (
    "Next to each line stands what became of it. A kernel's name leads to its code; a line's number marks its values "
    "in the graph below."
)
_PROGRAM = (
    "Choose a form of the program. Click a value, or walk with the arrow keys: up to what it reads, down to what reads "
    "it, left and right along its layer. Kernels have the same colour everywhere on this page."
)
_BOUND = (
    "A kernel cannot take less time than the machine needs to move its bytes once, or to compute its operations: its "
    "bound."
)
_MEMORY = "Bytes besides arguments and parameters, step by step, by the cost model."
_ONCE = "These follow from index tensors alone, so they are computed at the first call with a graph, and kept."
_RULES = "Rules that rewrite the program are taken if the cost model says that they gain."


def explained_page(data: ExplainedData) -> str:
    """The page as one HTML document."""
    title = f"graphweave: what became of {data.what}"
    return page(title, list(_parts(data)), script=asset("explained.js"), style=asset("explained.css"))


def _parts(data: ExplainedData) -> Iterator[Html]:
    place = f", defined at {data.where}, in one call" if data.where else ""
    yield tag("p", f"What graphweave made of {data.what}{place}.")
    yield facts(dict(data.numbers))
    if data.measured is not None:
        yield section("Time of a step", step(data, data.measured), key="step")
    yield section("Your source", sources(data), _SOURCE, key="source")
    yield section("The program", graphs(data), _PROGRAM, key="program")
    if data.kernels:
        yield section("Time and bytes", join([run_table(data), roofline(data)]), _BOUND, key="bound")
        yield section("Kernels", kernels(data), "The code of each kernel, with the lines that it comes from.")
    if data.memory:
        yield section("Memory", memory(data), _MEMORY)
    once = [(p, v) for p in data.programs if p.source for v in p.values if v.role == "once" and v.stored]
    if once:
        rows = ((v.kind, v.type, p.title, place_link(v.place)) for p, v in once)
        made = table(["what", "type", "needed by", "line"], rows, "Values that are kept until the index tensors change")
        yield section("Once a graph", made, _ONCE)
    if data.saved:
        yield section("Saved for the backward", _saved(data))
    yield section("Left out and why", _troubles(data), key="left")
    if data.choices:
        yield section("Rules by cost", _choices(data), _RULES, key="rules")
    yield section("Listings", join(fold(title, code(text)) for title, text in _listings(data)))


def _saved(data: ExplainedData) -> Html:
    largest_first = sorted(data.saved, key=lambda one: -one[2])
    rows = ((space, shape, nbytes, place_link(place)) for space, shape, nbytes, place in largest_first)
    return table(["rows", "a row", "bytes", "line"], rows, "Values that the forward keeps besides the arguments")


def _troubles(data: ExplainedData) -> Html:
    if not data.troubles:
        return tag("p", "Nothing: all of it was captured, and all work has kernels.", class_="good")
    rows = ((about, line.text, place_link(line.place)) for about, line in data.troubles)
    return table(["what", "why", "line"], rows, "What has no kernel, or is not compiled")


def _choices(data: ExplainedData) -> Html:
    rows = []
    for c in data.choices:
        pairs = [(b / 1e6, a / 1e6) for b, a in zip(c.before, c.after, strict=True)]
        costs = [_unbroken(f"{b:.4g} → {a:.4g}") if a != b else "same" for b, a in pairs]
        taken = tag("span", "taken" if c.taken else "refused", class_="good" if c.taken else "warn")
        rows.append((c.rules, taken, *costs, _unbroken(f"{1e3 * c.seconds:+.3g} ms"), place_link(c.place)))
    header = ["rules", "", "MB moved", "Mflop on vectors", "Mflop in products", "gain", "line"]
    return table(header, rows, "Rules that were tried, with the cost of the whole program before and after")


def _unbroken(text: str) -> Html:
    return tag("span", text, class_="unbroken")


def _listings(data: ExplainedData) -> Iterator[tuple[str, str]]:
    yield _summary(data)
    yield from ((f"The program, {program.title}", listing(program)) for program in data.programs)
    yield from data.listings


def _summary(data: ExplainedData) -> tuple[str, str]:
    width = max((len(about) for about, _, _ in data.summary), default=0)
    lines = [f"{about:<{width}}  {text}  {place}".rstrip() for about, text, place in data.summary]
    return "Short form", "\n".join(lines)
