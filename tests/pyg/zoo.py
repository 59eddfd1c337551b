"""The operator zoo: every PyG convolution and model, forward and gradients, compiled against eager, through both doors.

    python -m tests.pyg.zoo [--only NAME ...] [--door DOOR ...] [--json FILE] [--markdown FILE]

The exit code is 1 if a number is wrong or a case crashes.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils import _pytree as pytree

import graphweave
from bench.check import FLOAT_TOLERANCE, no_worse_than_eager, step, worst_error
from bench.common import machine
from bench.steps import Result
from graphweave.compiler.report import Report, collect
from tests.pyg.zoo_cases import CASES, NOT_HERE, build
from tests.pyg.zoo_graphs import Built

RIGHT = ("ok", "ill-conditioned")

DOORS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compile": graphweave.compile,
    "plain": lambda module: cast(nn.Module, torch.compile(module, backend="graphweave", dynamic=True)),
}
"""The ways to compile a module, by name."""

MAX_REASONS_SHOWN = 3
"""A row of the table shows at most this many reasons of fallbacks; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: one case through one door. `seconds` is the time of compilation and the first step.

    `graphs` counts compilations, `eager_calls` graphs and functions that could not be compiled. `eager` lists whole
    graphs that could not be compiled, `on_edges` the calls left to PyTorch that may work on as many rows as there are
    edges, `fallbacks` the other calls left to it, all with reasons. `status` is ok,
    ill-conditioned (float32 loses digits in eager too, and a float64 run judged), wrong or crash.
    """

    case: str
    status: str
    graphs: int = 0
    graph_breaks: int = 0
    kernels: int = 0
    kernel_launches: int = 0
    fallback_calls: int = 0
    eager: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    error: float = float("nan")
    where: str = ""
    seconds: float = 0.0
    door: str = "compile"
    eager_calls: int = 0
    on_edges: tuple[str, ...] = ()


def run_case(name: str, door: str = "compile", device: str = "cpu") -> Row:
    """Runs identical copies of one case in eager mode and compiled through one of `DOORS`, and compares them."""
    built = placed(build(name), device)
    eager, compiled_module = built.module, placed(build(name), device).module
    want = step(eager, built.args, built.kwargs, module=eager, counter_based=True)
    torch._dynamo.reset()
    graphweave.reset_counters()
    breaks = graph_breaks()
    start = time.perf_counter()
    try:
        with collect() as report:
            compiled = DOORS[door](compiled_module)
            got = step(compiled, built.args, built.kwargs, module=compiled_module)
    except Exception as problem:  # the table reports every crash, whatever its kind
        seconds = time.perf_counter() - start
        traceback.print_exc()
        where = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        return Row(name, "crash", error=float("inf"), where=where[:200], seconds=seconds, door=door)
    seconds = time.perf_counter() - start
    counts = graphweave.counters()
    row = Row(
        name, "ok", counts["compilations"], graph_breaks() - breaks, sum(len(g.kernels) for g in report.graphs),
        counts["kernel_launches"], counts["fallback_calls"], tuple(report.eager),
        left_to_pytorch(report, on_edges=False), seconds=seconds, door=door, eager_calls=counts["eager_fallbacks"],
        on_edges=left_to_pytorch(report, on_edges=True),
    )  # fmt: skip
    return judge(row, name, got, want, device)


def placed(built: Built, device: str) -> Built:
    """The module and its inputs on a device."""
    args, kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.to(device), (built.args, dict(built.kwargs)))
    return Built(built.module.to(device), args, kwargs)


def graph_breaks() -> int:
    """The number of graph breaks of this process so far. PyTorch counts in two places, neither of which has all."""
    counts = torch._dynamo.utils.counters
    return max(sum(counts[kind].values()) for kind in ("graph_break", "unimplemented"))


def judge(row: Row, name: str, got: Result, want: Result, device: str) -> Row:
    error, where = worst_error(got, want)
    row = replace(row, error=error, where=where)
    if error < FLOAT_TOLERANCE[torch.float32]:
        return row
    exact = in_float64(name, device)
    if exact is not None and no_worse_than_eager(got, want, exact):
        return replace(row, status="ill-conditioned")
    return replace(row, status="wrong")


def in_float64(name: str, device: str) -> Result | None:
    """The eager result in float64; None if the operator supports float32 only."""
    built = placed(build(name), device)
    module: nn.Module = built.module.double()
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda value: value.double() if value.is_floating_point() else value, (built.args, built.kwargs)
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for tensors that the model creates
    try:
        return step(module, args, kwargs, module=module, counter_based=True)
    except RuntimeError:
        return None
    finally:
        torch.set_default_dtype(before)


def left_to_pytorch(report: Report, *, on_edges: bool) -> tuple[str, ...]:
    """Calls that were left to PyTorch, on edges or on fewer rows, with the reason; equal ones are counted."""
    left = [note for graph in report.graphs for note in graph.fallbacks if note.on_edges == on_edges]
    notes = Counter(f"{note.what}: {note.why}" for note in left)
    return tuple(text if count == 1 else f"{text} ({count} times)" for text, count in notes.items())


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="PyG operators through graphweave, forward and gradients against eager")
    for heading in (
        "case",
        "door",
        "status",
        "graphs",
        "breaks",
        "kernels",
        "launches",
        "ATen calls",
        "eager",
        "max error",
        "cold s",
    ):
        table.add_column(heading, no_wrap=True)
    table.add_column("fallbacks", overflow="fold")
    for row in rows:
        style = {"ok": "", "ill-conditioned": "yellow"}.get(row.status, "bold red")
        notes = shown(row) if row.status in RIGHT else row.where
        numbers = (row.graphs, row.graph_breaks, row.kernels, row.kernel_launches, row.fallback_calls, row.eager_calls)
        cells = (
            row.case,
            row.door,
            row.status,
            *map(str, numbers),
            f"{row.error:.1e}",
            f"{row.seconds:.1f}",
            escape(notes),
        )
        table.add_row(*cells, style=style)
    console.print(table)
    for name, reason in NOT_HERE.items():
        console.print(f"not run: {name}: {reason}", style="dim")
    for door in DOORS:
        console.print(f"{door}: {summary([row for row in rows if row.door == door])}")


def shown(row: Row) -> str:
    """The reasons why whole graphs ran eagerly, and the first few calls that were left to PyTorch."""
    left = [*(f"on edges: {note}" for note in row.on_edges), *row.fallbacks]
    notes = "; ".join([*(f"eager: {why}" for why in row.eager), *left[:MAX_REASONS_SHOWN]])
    more = len(left) - MAX_REASONS_SHOWN
    return f"{notes}; and {more} more" if more > 0 else notes


def summary(rows: Sequence[Row]) -> str:
    if not rows:
        return "not run"
    status = Counter(row.status for row in rows)
    kernels = sum(row.kernels for row in rows) / max(len(rows), 1)
    counts = ", ".join(f"{count} {name}" for name, count in status.items())
    graphs, breaks, left = (
        sum(n) for n in zip(*((r.graphs, r.graph_breaks, r.eager_calls) for r in rows), strict=True)
    )
    return (
        f"{len(rows)} cases: {counts}; {graphs} compilations, {breaks} graph breaks, {left} eager calls; "
        f"{sum(row.graphs == 1 for row in rows)} captured as one graph, "
        f"{sum(bool(row.eager) for row in rows)} with a graph left eager, "
        f"{sum(not row.on_edges and not row.eager for row in rows)} with nothing left to PyTorch on edges, "
        f"{sum(not (row.on_edges or row.fallbacks or row.eager) for row in rows)} with no call left to PyTorch, "
        f"{kernels:.1f} kernels on average"
    )


def markdown(rows: Sequence[Row]) -> str:
    """The table as a page, with one line for the results of a case through both doors. Notes are of the first door."""
    by_door = {door: {row.case: row for row in rows if row.door == door} for door in DOORS}
    lines = [
        "# PyTorch Geometric through graphweave", "",
        "This page lists what becomes of every convolution of `torch_geometric.nn.conv` and every model of",
        "`torch_geometric.nn.models`, forward and gradients against eager.",
        "`python -m tests.pyg.zoo --markdown docs/zoo.md` wrote it.", "",
        f"`graphweave.compile(model)`: {summary(list(by_door['compile'].values()))}.", "",
        '`torch.compile(model, backend="graphweave", dynamic=True)`: '
        f"{summary(list(by_door['plain'].values()))}.", "",
        "*Graphs* are compilations (forward and backward together are one), *breaks* the places where capture had to",
        "let Python run, *eager* the graphs and functions that could not be compiled, *kernels* the generated loops of",
        "forward and backward. *Plain* is the second way: result, graphs, breaks, eager, and kinds of calls left on",
        "edges. What is left to PyTorch runs as in eager mode: slower, never wrong. It is listed for the first way.",
        "A call counts as one on edges unless the maps of its graph show that neither its operands nor its results",
        "have more rows than there are nodes, nor two dims that vary. In a graph without maps nothing shows it.", "",
        "| case | result | graphs | breaks | eager | kernels | plain | left on edges | left on nodes or fewer rows |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for case in dict.fromkeys(row.case for row in rows):
        row, plain = (by_door[door].get(case, Row(case, "not run", door=door)) for door in DOORS)
        notes = in_a_cell([*(f"**whole graph**: {why}" for why in row.eager), *row.on_edges])
        beside = in_a_cell(row.fallbacks)
        numbers = (row.graphs, row.graph_breaks, row.eager_calls, row.kernels)
        other = f"{plain.status}, {plain.graphs}, {plain.graph_breaks}, {plain.eager_calls}, {len(plain.on_edges)}"
        lines.append(f"| {' | '.join((case, row.status, *map(str, numbers), other, notes, beside))} |")
    lines += ["", "Not run, since eager mode does not run with PyTorch and PyTorch Geometric alone:", ""]
    lines += [f"- {name}: {reason}" for name, reason in NOT_HERE.items()]
    return "\n".join(lines) + "\n"


def in_a_cell(notes: Sequence[str]) -> str:
    return "<br>".join(note.replace("|", "\\|").replace("\n", " ") for note in notes)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases to run; a name ending in * is a prefix")
    parser.add_argument("--door", nargs="+", choices=DOORS, default=list(DOORS), help="ways into the compiler; both")
    parser.add_argument("--json", type=Path, help="also write the rows, the machine and the versions here")
    parser.add_argument("--markdown", type=Path, help="also write the table here as a page")
    parser.add_argument("--device", default="cpu", help="where compiled modules run: cpu, or cuda")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    names = [name for name in CASES if options.only is None or any(matches(name, want) for want in options.only)]
    if not names:
        parser.error(f"no case is named {options.only}; the names are {', '.join(CASES)}")
    rows = []
    for name, door in track([(n, d) for n in names for d in options.door], "cases"):
        try:
            rows.append(run_case(name, door, options.device))
        except Exception as problem:  # a case that breaks the harness must not hide the cases after it
            traceback.print_exc()
            rows.append(Row(name, "crash", error=float("inf"), where=f"harness: {problem}"[:200], door=door))
    console = Console()
    show(rows, console if console.is_terminal else Console(width=180))
    if options.json:
        record = {"machine": machine(), "rows": [asdict(row) for row in rows], "not_here": NOT_HERE}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(markdown(rows))
    return 0 if all(row.status in RIGHT for row in rows) else 1


def matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


if __name__ == "__main__":
    raise SystemExit(main())
