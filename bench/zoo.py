"""The operator zoo: every PyG convolution and model, forward and gradients, compiled against eager.

    python -m bench.zoo [--only NAME ...] [--json FILE]

Exit code 1 when a number is wrong or a case crashes.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.utils import _pytree as pytree

import graphweave
from bench.check import FLOAT_TOLERANCE, Result, detached, no_worse_than_eager, step, worst_error
from bench.common import machine
from bench.zoo_cases import CASES, NOT_HERE, build

RIGHT = ("ok", "ill-conditioned")

SHOWN = 3
"""Reasons of fallbacks printed a row; the JSON has all of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `seconds` is the cold compile and first step.

    `status` is ok, ill-conditioned (float32 loses digits in eager too, and a float64 run judged), wrong or crash.
    """

    case: str
    status: str
    graphs: int = 0
    graph_breaks: int = 0
    kernels: int = 0
    kernel_launches: int = 0
    fallback_calls: int = 0
    fallbacks: tuple[str, ...] = ()
    error: float = float("nan")
    where: str = ""
    seconds: float = 0.0


def run_case(name: str, *, explain: bool = False) -> Row:
    """Eager and compiled on identical copies of one case; `explain` also asks for the reasons of fallbacks."""
    built = build(name)
    eager, compiled_module = built.module, build(name).module
    want = step(eager, built.args, built.kwargs, module=eager)
    torch._dynamo.reset()
    graphweave.reset_counters()
    start = time.perf_counter()
    try:
        compiled = graphweave.compile(compiled_module)
        got = step(compiled, built.args, built.kwargs, module=compiled_module)
    except Exception as problem:  # the table reports every crash, whatever its kind
        seconds = time.perf_counter() - start
        where = f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        return Row(name, "crash", error=float("inf"), where=where[:200], seconds=seconds)
    seconds = time.perf_counter() - start
    counts = graphweave.counters()
    row = Row(
        name, "ok", counts["compilations"], counts["graph_breaks"], kernel_launches=counts["kernel_launches"],
        fallback_calls=counts["fallback_calls"], seconds=seconds,
    )  # fmt: skip
    row = judge(row, name, got, want)
    if not explain:
        return row
    kernels, fallbacks = reasons(name)
    return replace(row, kernels=kernels, fallbacks=fallbacks)


def judge(row: Row, name: str, got: Result, want: Result) -> Row:
    error, where = worst_error(got, want)
    row = replace(row, error=error, where=where)
    if error < FLOAT_TOLERANCE[torch.float32]:
        return row
    exact = in_float64(name)
    if exact is not None and no_worse_than_eager(got, want, exact):
        return replace(row, status="ill-conditioned")
    return replace(row, status="wrong")


def in_float64(name: str) -> Result | None:
    """The eager result in double precision, None where the operator is written for float32 only."""
    built = build(name)
    module: nn.Module = built.module.double()
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda value: value.double() if value.is_floating_point() else value, (built.args, built.kwargs)
    )
    try:
        return step(module, args, kwargs, module=module)
    except RuntimeError:
        return None


def reasons(name: str) -> tuple[int, tuple[str, ...]]:
    """Number of kernels and what stayed with PyTorch and why, whole functions first, as `graphweave.explain` tells."""
    built = build(name)
    args, kwargs = detached((built.args, dict(built.kwargs)))
    report = graphweave.explain(built.module, *args, **kwargs)
    notes = Counter(f"{note.what}: {note.why}" for graph in report.graphs for note in graph.fallbacks)
    texts = [text if count == 1 else f"{text} ({count} times)" for text, count in notes.items()]
    kernels = sum(len(graph.kernels) for graph in report.graphs)
    return kernels, tuple(f"eager: {why}" for why in report.eager) + tuple(texts)


def show(rows: Sequence[Row], console: Console) -> None:
    table = Table(title="PyG operators through graphweave.compile, forward and gradients against eager")
    for heading in ("case", "status", "graphs", "breaks", "kernels", "launches", "ATen calls", "max error", "cold s"):
        table.add_column(heading, no_wrap=True)
    table.add_column("fallbacks", overflow="fold")
    for row in rows:
        style = {"ok": "", "ill-conditioned": "yellow"}.get(row.status, "bold red")
        notes = "; ".join(row.fallbacks[:SHOWN]) if row.status == "ok" else row.where
        if row.status == "ok" and len(row.fallbacks) > SHOWN:
            notes += f"; and {len(row.fallbacks) - SHOWN} more"
        numbers = (row.graphs, row.graph_breaks, row.kernels, row.kernel_launches, row.fallback_calls)
        cells = (row.case, row.status, *map(str, numbers), f"{row.error:.1e}", f"{row.seconds:.1f}", escape(notes))
        table.add_row(*cells, style=style)
    console.print(table)
    for name, reason in NOT_HERE.items():
        console.print(f"not run: {name}: {reason}", style="dim")
    good = sum(row.status in RIGHT for row in rows)
    console.print(f"{good} of {len(rows)} right, {sum(row.graphs == 1 for row in rows)} captured as one graph")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases to run; a name ending in * is a prefix")
    parser.add_argument("--json", type=Path, help="also write the rows, the machine and the versions here")
    parser.add_argument("--no-explain", action="store_true", help="skip the reasons of fallbacks (faster)")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(argv)
    torch.set_num_threads(options.threads)
    names = [name for name in CASES if options.only is None or any(matches(name, want) for want in options.only)]
    if not names:
        parser.error(f"no case is named {options.only}; the names are {', '.join(CASES)}")
    rows = []
    for name in track(names, "cases"):
        try:
            rows.append(run_case(name, explain=not options.no_explain))
        except Exception as problem:  # a case that breaks the harness must not hide the cases after it
            traceback.print_exc()
            rows.append(Row(name, "crash", error=float("inf"), where=f"harness: {problem}"[:200]))
    console = Console()
    show(rows, console if console.is_terminal else Console(width=180))
    if options.json:
        record = {"machine": machine(), "rows": [asdict(row) for row in rows], "not_here": NOT_HERE}
        options.json.write_text(json.dumps(record, indent=1))
    return 0 if all(row.status in RIGHT for row in rows) else 1


def matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


if __name__ == "__main__":
    raise SystemExit(main())
