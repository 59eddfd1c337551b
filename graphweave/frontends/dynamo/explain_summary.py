"""The short form of `explain`, as text or as a table."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from graphweave.compiler.report import (
    CaptureNote,
    FormNote,
    FormsNote,
    GraphNote,
    KernelNote,
    MemoryBudgetNote,
    SavedNote,
    TuningNote,
)
from graphweave.core.lines import Location, shown_text
from graphweave.frontends.dynamo.breaks import Break, Recompilation

_MAX_LINES = 2
"""Limit on the user's lines that one row names."""
_MAX_SHAPES = 4
"""Limit on the shapes that one row names."""
_MIN_WIDTH = 60
"""Columns that a narrower terminal is taken to have."""
_BOLD = "\x1b[1m{}\x1b[0m"
_HALVES = ("inference", "forward", "backward")
"""The kinds of compiled graphs, in the order of the report."""
_PRELUDE = "once-a-graph"
"""The word for kernels that run once a graph."""
_MAX_PADDED = 76
"""Width in characters to which the middle column is padded. A longer text moves the last column of its own line
only."""
_MAX_WIDTH = 160
"""Width in characters of a line of text. What is longer goes on in the next line."""


_Lines: TypeAlias = tuple[str, str]
"""The user's lines and those of libraries, as a row shows them."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report: `about` is the heading of its group. `where` are the user's lines and `inside` those of
    libraries that they call, or ""."""

    about: str
    text: str
    where: str = ""
    inside: str = ""

    @property
    def place(self) -> str:
        return f"{self.where} ({self.inside})" if self.inside else self.where


class Explained(Protocol):
    """The parts of an Explanation that the short form shows."""

    @property
    def what(self) -> str: ...
    @property
    def where(self) -> str: ...
    @property
    def captures(self) -> Sequence[CaptureNote]: ...
    @property
    def graphs(self) -> Sequence[GraphNote]: ...
    @property
    def tunings(self) -> Sequence[TuningNote]: ...
    @property
    def budgets(self) -> Sequence[MemoryBudgetNote]: ...
    @property
    def forms(self) -> Sequence[FormsNote]: ...
    @property
    def eager(self) -> Sequence[str]: ...
    @property
    def left(self) -> Sequence[str]: ...
    @property
    def graph_breaks(self) -> int: ...
    @property
    def breaks(self) -> Sequence[Break]: ...
    @property
    def recompiled(self) -> Sequence[Recompilation]: ...


def summary(report: Explained) -> list[Row]:
    """The rows of the short form. Groups without content have no rows."""
    rows = [Row("captured", _captured(report), report.where)]
    sizes: dict[str, int] = {}
    for capture in report.captures:
        sizes |= dict(capture.spaces)
    rows += [Row("captured", f"{words}: {count:,}") for words, count in sizes.items()]
    if report.graphs:
        rows += _work(report)
    for note in report.tunings:
        rows += _tuned(note)
    for budget in report.budgets:
        rows += _budgeted(budget)
    for decision in report.forms:
        rows += [Row("forms", _form(form, decision.why)) for form in decision.forms if len(decision.forms) > 1]
    rows += _kernels(report.graphs)
    rows += _left(report.graphs)
    rows += [Row("left as it is", f"{graph}: nothing in it gains by being compiled") for graph in report.left]
    rows += [Row("runs eagerly", shown_text(why)) for why in report.eager]
    rows += _kept(report.graphs)
    rows += [Row("graph break", b.why, *_lines((b.where,))) for b in report.breaks]
    unnamed = report.graph_breaks - sum(b.times for b in report.breaks)
    if unnamed > 0:
        rows.append(Row("graph break", f"{unnamed} more without a line; TORCH_LOGS=graph_breaks shows them"))
    rows += [Row("compiled again", f"{r.what}: {r.why}", r.where) for r in report.recompiled]
    return rows


def as_text(rows: Iterable[Row], width: int = _MAX_WIDTH, heading: str = "{}") -> str:
    """The rows as lines of three columns, of `width` characters at most. The heading of a group stands in its first
    line, in the format `heading`."""
    rows = list(rows)
    left = max(len(r.about) for r in rows)
    room = width - left - 4
    middle = min(_MAX_PADDED, room, max(len(r.text) for r in rows if r.where))
    lines, last = [], ""
    for r in rows:
        about = heading.format(f"{r.about:<{left}}") if r.about != last else " " * left
        first, *others = textwrap.wrap(r.text, room, break_on_hyphens=False) or [""]
        line = f"{first:<{middle if r.where else 0}}  {r.place}".rstrip()
        if len(line) > room + 2 and not others:  # without the padding, the place may fit
            line = f"{first}  {r.place}"
        if len(line) > room + 2:
            line = first
            fits = others and len(f"{others[-1]}  {r.place}") <= room
            places = textwrap.wrap(r.place, room, break_on_hyphens=False)
            others = [*others[:-1], f"{others[-1]}  {r.place}"] if fits else [*others, *places]
        lines += [f"{about}  {line}".rstrip(), *(f"{'':<{left}}    {more}" for more in others)]
        last = r.about
    return "\n".join(lines) + "\n"


def as_table(rows: Iterable[Row]) -> str:
    """The rows for a terminal: as wide as it is, with bold headings, without the lines of libraries if they do not
    fit."""
    rows, width = list(rows), max(shutil.get_terminal_size().columns, _MIN_WIDTH)
    needed = sum(max(len(getattr(r, part)) for r in rows) for part in ("about", "text", "place")) + 4
    return as_text([replace(r, inside="") for r in rows] if needed > width else rows, width, _BOLD)


def _captured(report: Explained) -> str:
    if not report.captures:
        return f"nothing of {report.what} was captured as message passing that can be compiled"
    trained = sum(c.trains for c in report.captures)
    kind = "forward and backward" if trained == len(report.captures) else "forward" if not trained else "partly trained"
    return f"{report.what}, as {_many(len(report.captures), 'graph')}, {kind}"


def _work(report: Explained) -> list[Row]:
    """The rows about launches and bytes of one call, forward and backward, compared to eager mode."""
    call = "a step" if any(c.trains for c in report.captures) else "a call"
    kernels = sum(len(g.kernels) for g in report.graphs)
    halves = Counter(g.half for g in report.graphs for _ in g.kernels)
    of = f" ({', '.join(f'{n} {half}' for half, n in halves.items())})" if len(halves) > 1 else ""
    products = sum(g.products for g in report.graphs)
    left = sum(len(g.fallbacks) for g in report.graphs)
    native = sum(g.native for g in report.graphs)
    others = [(products, _many(products, "matrix product")), (native, _many(native, "native call")),
              (left, f"{left} calls of PyTorch's")]  # fmt: skip
    launches = ", ".join([f"{_many(kernels, 'kernel')}{of}", *(words for count, words in others if count)])
    rows = [Row("launches", f"{call}: {launches}; eager makes {sum(c.eager_calls for c in report.captures):,} calls")]
    counted = [c.moved for c in report.captures if c.moved is not None]
    moved = sum(counted)
    known = [c.eager_moved for c in report.captures if c.eager_moved is not None]
    words = f"{call}: {size(moved)} by the cost model"
    if len(known) == len(report.captures) and moved:
        words += f"; eager's calls read and write {size(sum(known))}, {sum(known) / moved:.1f} times that"
    if len(counted) == len(report.captures):
        rows.append(Row("bytes moved", words))
    once = max((g.hoisted for g in report.graphs), default=0)
    if once:
        kernels = len(_once(report.graphs))
        by = f", by {_many(kernels, 'kernel')}" if kernels else ""
        rows.append(Row("once a graph", f"{_many(once, 'value')} from index tensors alone{by}, kept until they change"))
    return rows


def _tuned(note: TuningNote) -> Iterator[Row]:
    """The choice that tuning made for a graph, and the predicted and measured times of it and of the compiler's own
    choice."""
    if note.measured is None:
        yield Row("tuned", f"no: {note.why}")
        return
    yield Row("tuned", note.choice)
    how = "found before" if note.stored else f"found in {note.seconds:.1f} s"
    ended = "" if note.finished else ", when the budget ended"
    yield Row("tuned", f"{how} among {_many(note.tried, 'candidate')}{ended}")
    times = (note.measured, note.predicted), (note.untuned_measured, note.untuned_predicted)
    chosen, untuned = (f"{1e3 * (got or 0):.3g} ms measured, {1e3 * (said or 0):.3g} predicted" for got, said in times)
    yield Row("tuned", f"a call's kernels: {chosen}; untuned {untuned}")


def _budgeted(note: MemoryBudgetNote) -> Iterator[Row]:
    """The memory that a step may take and takes, what was given up for it, and what that costs."""
    yield Row("memory", f"a step takes {size(note.peak)} besides its arguments, of {size(note.budget)} that it may")
    if note.peak != note.unlimited:
        saved = f"{size(note.unlimited)} by the compiler's choice"
        yield Row("memory", f"{note.choice}: {saved}, {1e3 * note.slower:.3g} ms faster by the cost model")


def _form(note: FormNote, why: str) -> str:
    """The price of a form for the graph at hand, and what became of it or which graphs would take it."""
    if note.refused:
        return f"{note.name}: could not be made ({note.refused})"
    suits = ", ".join(f"{n:,} {words}" for words, n in note.suits)
    taken = f"taken, since {why}" if why else "taken"
    told = taken if note.taken else f"made for {suits}" if note.made else f"for graphs with {suits}"
    return f"{note.name}: {1e3 * note.seconds:.3g} ms a call by the cost model, {told}"


def _kernels(graphs: Sequence[GraphNote]) -> list[Row]:
    """The rows about kernels, those of the prelude first."""
    found = Counter((_PRELUDE, k.does, _lines(k.lines)) for k in _once(graphs))
    for half in _HALVES:
        found.update((half, k.does, _lines(k.lines)) for g in graphs if g.half == half for k in g.kernels)
    return [Row(f"{half} kernels", does + _times(n), *where) for (half, does, where), n in found.items()]


def _once(graphs: Iterable[GraphNote]) -> list[KernelNote]:
    """The kernels of preludes. What forward and backward both need is computed by the first of them."""
    return list({k.text: k for g in graphs for k in g.once}.values())


def _left(graphs: Iterable[GraphNote]) -> list[Row]:
    found = Counter((f"{f.what}: {f.why}", _lines(f.where)) for g in graphs for f in g.fallbacks)
    return [Row("left to PyTorch", " ".join(what.split()) + _times(n), *where) for (what, where), n in found.items()]


def _kept(graphs: Iterable[GraphNote]) -> list[Row]:
    """The rows about what the forward keeps for the backward besides arguments, one for each space and user's line."""
    policies = dict.fromkeys(g.recompute for g in graphs if g.recompute)
    if not policies:
        return []
    found: dict[tuple[str, str], list[SavedNote]] = {}
    for s in (s for g in graphs for s in g.keeps):
        found.setdefault((s.space, s.where.own), []).append(s)
    held = sum(s.bytes for notes in found.values() for s in notes)
    total = f"{size(held)} besides the arguments" if found else "nothing besides the arguments"
    rows = [Row("saved for backward", f"{total} (recompute={', '.join(policies)})")]
    for (space, _), notes in sorted(found.items(), key=lambda item: -sum(s.bytes for s in item[1])):
        shapes = Counter(s.shape for s in notes)
        words = _few([f"{n} x {shape}" if n > 1 else shape for shape, n in shapes.items()], _MAX_SHAPES)
        lines = _lines(s.where for s in notes)
        rows.append(Row("saved for backward", f"{space}: {words}, {size(sum(s.bytes for s in notes))}", *lines))
    return rows


def _lines(locations: Iterable[Location]) -> _Lines:
    """A few of the user's own lines and of lines of libraries, with the number of lines left out."""
    locations = list(locations)
    own = list(dict.fromkeys(loc.own for loc in locations if loc.own))
    inner = list(dict.fromkeys(loc.line for loc in locations if loc.line and loc.line != loc.own))
    return (_few(own, _MAX_LINES), _few(inner, 1)) if own else (_few(inner, _MAX_LINES), "")


def _few(lines: Sequence[str], shown: int) -> str:
    more = len(lines) - shown
    return ", ".join(lines[:shown]) + (f" +{more}" if more > 0 else "")


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _times(n: int) -> str:
    return f" (x{n})" if n > 1 else ""


def size(count: float) -> str:
    """A number of bytes in the unit in which it is below 1000, or in GB."""
    units = ["GB", "MB", "kB", "B"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:.3g} {units[-1]}"
