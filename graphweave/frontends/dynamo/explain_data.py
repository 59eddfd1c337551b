"""An explanation as plain data, for its page and for other programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from graphweave.compiler.report import GraphNote, KernelNote, PassNote, RewriteNote, ValueNote
from graphweave.core.break_even import BreakEven
from graphweave.core.kernel_cost import Rates
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.spans import FirstCall, time_text
from graphweave.frontends.dynamo.explain_details import break_even_text, passes_text
from graphweave.frontends.dynamo.explain_measured import measured_step
from graphweave.frontends.dynamo.explain_sources import sources_of
from graphweave.frontends.dynamo.explain_steps import kind_shown, steps_program
from graphweave.frontends.dynamo.explain_summary import Explained, Row, size
from graphweave.frontends.dynamo.step_profile import StepProfile
from graphweave.pages.explained.data import (
    Became,
    ExplainedData,
    ShownCalls,
    ShownChoice,
    ShownFate,
    ShownKernel,
    ShownLine,
    ShownPiece,
    ShownPlace,
    ShownProgram,
    ShownStep,
    ShownValue,
)

_ONCE = "once a graph"
_LEFT = "left to PyTorch as it is, since nothing gains"
"""Words for the lines of a graph of which nothing is compiled."""

_PLACE = re.compile(r"[^\s()'\"]+\.py:\d+")
"""A line of a file in the text of a reason."""


class WholeReport(Explained, Protocol):
    """An Explanation, for the parts that its data holds."""

    @property
    def rewrites(self) -> Sequence[RewriteNote]: ...
    @property
    def passes(self) -> Sequence[PassNote]: ...
    @property
    def time(self) -> FirstCall: ...
    @property
    def step(self) -> StepProfile | None: ...
    @property
    def break_even(self) -> BreakEven | None: ...
    def rows(self) -> list[Row]: ...


def explained_data(report: WholeReport, rates: Rates) -> ExplainedData:
    """The data of `report`; bounds of kernels are those of a machine of these rates."""
    graphs, rows = report.graphs, report.rows()
    names = _graph_names(report)
    troubles = tuple(
        (r.about, ShownLine(r.text, ShownPlace(r.where, r.inside)))
        for r in rows
        if r.about in ("left to PyTorch", "left as it is", "runs eagerly", "graph break", "compiled again")
    )
    return ExplainedData(
        report.what,
        report.where,
        tuple(_numbers(report)),
        tuple((r.about, r.text, r.place) for r in rows),
        sources_of(_locations(report)),
        tuple(_fates(report)),
        tuple(_eager(report)),
        tuple(_programs(report, names)),
        tuple(_kernel(n, g, *one, names[_captured(g)], rates) for n, (g, one) in enumerate(_kernels(graphs))),
        tuple(ShownStep(g.half, m.step, m.during, m.after) for g in graphs for m in g.memory),
        tuple((s.space, s.shape, s.bytes, _place(s.where)) for g in graphs for s in g.keeps),
        troubles,
        tuple(_choice(note, i) for note in report.rewrites for i in range(len(note.steps))),
        rates,
        tuple(_listings(report)),
        None if report.step is None else measured_step(report.step, graphs, _keys(graphs), names),
    )


def _listings(report: WholeReport) -> Iterator[tuple[str, str]]:
    yield "Passes", passes_text(report.passes)
    yield "Time of the first call", time_text(report.time)
    if report.break_even is not None:
        yield "Break-even", break_even_text(report.break_even, compiled=bool(report.graphs))


def _numbers(report: WholeReport) -> Iterator[tuple[str, str]]:
    """The facts that a reader wants first."""
    graphs, captures = report.graphs, report.captures
    eager = sum(c.eager_calls for c in captures)
    yield "kernels a step" if any(c.trains for c in captures) else "kernels a call", str(_count(graphs, "kernels"))
    yield "calls left to PyTorch", str(_count(graphs, "fallbacks") + sum(g.products for g in graphs))
    yield "calls of eager mode", f"{eager:,}"
    known = [(c.moved, c.eager_moved) for c in captures if c.moved is not None and c.eager_moved is not None]
    if known and len(known) == len(captures):
        yield "bytes moved", size(sum(moved for moved, _ in known))
        yield "bytes of eager mode", size(sum(moved for _, moved in known))
    if any(g.recompute for g in graphs):
        yield "saved for the backward", size(sum(s.bytes for g in graphs for s in g.keeps))
    yield "graph breaks", f"{report.graph_breaks:,}"


def _count(graphs: Iterable[GraphNote], what: str) -> int:
    return sum(len(getattr(g, what)) for g in graphs)


def _locations(report: WholeReport) -> Iterator[Location]:
    for graph in report.graphs:
        yield from (value.where for value in graph.values)
        yield from (where for fallback in graph.fallbacks for where in fallback.where)
    for note in report.rewrites:
        yield from (value.where for value in note.values)
    yield from (b.where for b in report.breaks)


def _place(loc: Location) -> ShownPlace:
    return ShownPlace(loc.own, loc.line if loc.line != loc.own else "")


def _key(graph: GraphNote, kernel: str) -> str:
    return f"{graph.name}-{kernel}"


def _keys(graphs: Iterable[GraphNote]) -> dict[str, str]:
    """The keys of kernels by their labels."""
    return {k.label: _key(g, k.name) for g in graphs for k in (*g.once, *g.kernels)}


def _captured(graph: GraphNote) -> str:
    """The name of the captured graph whose half this is."""
    return graph.name.rpartition("_")[0]


def _graph_names(report: WholeReport) -> dict[str, str]:
    """The words that follow the names of things, by captured graph: " of graph 2", or nothing if there is only one."""
    names = list(dict.fromkeys([*(note.name for note in report.rewrites), *map(_captured, report.graphs)]))
    return {name: f" of graph {i}" if len(names) > 1 else "" for i, name in enumerate(names, 1)}


def _kernels(graphs: Iterable[GraphNote]) -> Iterator[tuple[GraphNote, tuple[KernelNote, str]]]:
    """The kernels of all graphs with the half that they belong to, those that run once first."""
    for graph in graphs:
        yield from ((graph, (k, _ONCE)) for k in graph.once)
        yield from ((graph, (k, graph.half)) for k in graph.kernels)


def _kernel(number: int, graph: GraphNote, note: KernelNote, half: str, suffix: str, rates: Rates) -> ShownKernel:
    cost = note.cost if note.cost is None or note.cost.bound_seconds is not None else note.cost.bounded_by(rates)
    lines_of = {str(loc): loc for loc in (*(v.where for v in graph.values), *note.lines) if loc}
    return ShownKernel(
        number, _key(graph, note.name), note.name + suffix, half, note.does, tuple(map(_place, note.lines)),
        tuple(_pieces(note.text, lines_of)), _loops(note.loops, lines_of), cost, note.not_taken,
    )  # fmt: skip


def _pieces(text: str, lines_of: Mapping[str, Location]) -> Iterator[ShownPiece]:
    """The code of a kernel, divided at the comments that name lines of the user's."""
    at, lines = NOWHERE, list[str]()
    for line in text.splitlines():
        named = lines_of.get(_comment(line))
        if named is None:
            lines.append(line)
        elif named != at:
            if lines:
                yield ShownPiece(_place(at), at.code, "\n".join(lines))
            at, lines = named, []
    yield ShownPiece(_place(at), at.code, "\n".join(lines))


def _loops(text: str, lines_of: Mapping[str, Location]) -> str:
    """The loop IR of a kernel, in which comments name lines as a reader does."""
    lines = []
    for line in text.splitlines():
        named = lines_of.get(_comment(line))
        indent = line[: len(line) - len(line.lstrip())]
        lines.append(line if named is None else f"{indent}# {named.shown} {named.code}")
    return "\n".join(lines)


def _comment(line: str) -> str:
    """The text of a line that is a comment, in C++, Triton or the loop IR."""
    return line.strip().removeprefix("//").removeprefix("#").strip().strip('"')


def _fates(report: WholeReport) -> Iterator[ShownFate]:
    """The fates of all lines, in the order of the halves; equal fates of a line are told once."""
    found: dict[ShownFate, None] = {}
    for graph in report.graphs:
        for fate in (*_fates_of_values(graph), *_fates_of_notes(graph)):
            found.setdefault(fate)
    for note in report.rewrites:
        if not _halves(report, note):
            places = dict.fromkeys(place for value in note.values for place in _lines_of(value.where))
            found.update(dict.fromkeys(ShownFate(place, "call", _LEFT) for place in places))
    for at in report.breaks:
        found.update(dict.fromkeys(_at(at.where, "break", at.why)))
    for why in report.eager:
        found.update(dict.fromkeys(ShownFate(place, "eager", why) for place in _PLACE.findall(why)))
    for again in report.recompiled:
        found.setdefault(ShownFate(again.where, "again", f"{again.what}: {again.why}"))
    yield from found


def _at(loc: Location, became: Became, text: str) -> list[ShownFate]:
    return [ShownFate(place, became, text) for place in _lines_of(loc)]


def _fates_of_values(graph: GraphNote) -> Iterator[ShownFate]:
    kernels: dict[str, dict[str, None]] = {}
    once: Counter[str] = Counter()
    called: dict[str, dict[str, None]] = {}
    told = {place for f in graph.fallbacks for loc in f.where for place in _lines_of(loc)}
    for value in graph.values:
        for place in _lines_of(value.where):
            kernels.setdefault(place, {}).update(dict.fromkeys(_key(graph, k) for k in value.kernels))
            once[place] += value.role == "once"
            if value.role == "pytorch" and place not in told:
                called.setdefault(place, {})[value.kind.removeprefix("aten.")] = None
    for place, names in kernels.items():
        if names:
            yield ShownFate(place, "kernel", graph.half, tuple(names))
    for place, kinds in called.items():
        yield ShownFate(place, "call", f"{graph.half}: {', '.join(kinds)}, by PyTorch")
    preludes: dict[str, dict[str, None]] = {}
    for k in graph.once:
        for loc in k.lines:
            for place in _lines_of(loc):
                preludes.setdefault(place, {})[_key(graph, k.name)] = None
    for place, n in once.items():
        if n or place in preludes:
            words = f"once a graph, for the {graph.half}: {n} value{'s' * (n > 1)}"
            yield ShownFate(place, "once", words, tuple(preludes.get(place, ())))


def _fates_of_notes(graph: GraphNote) -> Iterator[ShownFate]:
    """The lines that are left to PyTorch, and those whose values are saved for the backward."""
    for fallback in graph.fallbacks:
        for loc in fallback.where:
            yield from _at(loc, "pytorch", f"{fallback.what}: {' '.join(fallback.why.split())}")
    kept: Counter[str] = Counter()
    for s in graph.keeps:
        for place in _lines_of(s.where):
            kept[place] += s.bytes
    for place, held in kept.items():
        yield ShownFate(place, "saved", f"{size(held)} saved for the backward")


def _lines_of(loc: Location) -> list[str]:
    """The user's line, and the library's line inside it."""
    return list(dict.fromkeys(filter(None, (loc.own, loc.line))))


def _eager(report: WholeReport) -> Iterator[ShownCalls]:
    calls: Counter[str] = Counter()
    moved: dict[str, int | None] = {}
    for call in (call for capture in report.captures for call in capture.eager):
        for place in _lines_of(call.where):
            calls[place] += 1
            so_far = moved.get(place, 0)
            moved[place] = None if so_far is None or call.moved is None else so_far + call.moved
    yield from (ShownCalls(place, n, moved[place]) for place, n in calls.items())


def _halves(report: WholeReport, note: RewriteNote) -> list[GraphNote]:
    """The halves of a captured graph; none if it was left to PyTorch after it was rewritten."""
    return [g for g in report.graphs if _captured(g) == note.name]


def _programs(report: WholeReport, names: Mapping[str, str]) -> Iterator[ShownProgram]:
    """Each captured program, and the halves that became of it."""
    for note in report.rewrites:
        halves, of = _halves(report, note), names[note.name].removeprefix(" of ")
        graph = f"{of}: " if of else ""
        if halves:
            yield steps_program(note.name, f"{graph}kernels and calls", halves, _place)
        spaces = dict.fromkeys((s.name, s.words, s.rows) for g in halves for s in g.spaces)
        before = f"{note.name}_captured"
        became: dict[int, dict[str, None]] = {}
        for g in halves:
            for value in g.values:
                for old in value.made_from:
                    became.setdefault(old, {}).update(dict.fromkeys(_key(g, k) for k in value.kernels))
        values = tuple(_value(v, tuple(became.get(i, ()))) for i, v in enumerate(note.values))
        left = "" if halves else ", left to PyTorch"
        yield ShownProgram(before, f"{graph}as captured{left}", tuple(spaces), values)
        for g in halves:
            made = tuple(_value(v, tuple(_key(g, k) for k in v.kernels)) for v in g.values)
            own = tuple((s.name, s.words, s.rows) for s in g.spaces)
            yield ShownProgram(g.name, f"{graph}{g.half}, as it runs", own, made, g.outputs, before)


def _value(v: ValueNote, kernels: tuple[str, ...]) -> ShownValue:
    place = _place(v.where)
    return ShownValue(kind_shown(v), v.type, v.operation, v.operands, place, v.role, kernels, v.stored, v.made_from)


def _choice(note: RewriteNote, at: int) -> ShownChoice:
    step = note.steps[at]
    rules = ", ".join(f"{rule} x{n}" if n > 1 else rule for rule, n in Counter(step.rules).items())
    return ShownChoice(rules, _place(step.loc), step.before, step.after, step.seconds, step.taken)
