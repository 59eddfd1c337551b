"""The programs of PyG's public `examples/` with one changed line: right or wrong, how fast, what is left to PyTorch.

    python -m bench.pyg_examples --pyg /path/to/pytorch_geometric [--cases NAME ...] [--step-seconds 2] [--threads 2]
                                 [--out FILE] [--resume] [--markdown FILE]

`--pyg` is a checkout of PyG's public repository; nothing of it is kept. Data sets are generated in the form of the real
ones (bench/pyg_examples_data.py), so nothing is downloaded. The line compiles the model, and follows the statement that
makes it (bench/pyg_examples_text.py). Each run has a process of its own and is stopped after some training steps
(bench/pyg_examples_worker.py). Losses of the first steps and gradients of the first are compared before anything is
timed. `--cases` are names of programs, as `gcn.py`, or their beginnings, as `hetero/`.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import resource
import tempfile
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from bench import pyg_examples_worker
from bench.case import Bench, Numbers
from bench.check import NOISE_FLOOR, relative_error
from bench.common import available_memory, ratio_table
from bench.pyg_examples_cases import programs, reason
from bench.pyg_examples_data import SMALLER
from bench.runner import run
from tests.pyg.zoo import in_a_cell

Answer = dict[str, Any]

TOLERANCE = 1e-4
"""Largest relative error of a loss or gradient that is accepted at once. Beyond, a float64 run judges."""

WIDE, LOST = 1e-8, 1e-1
"""In float64 both systems agree up to WIDE. Where float32 keeps fewer than one digit (LOST), that is no excuse."""

ZERO = 1e-11
"""A float64 gradient below this share of the model's largest is zero in exact arithmetic."""

SERVER = multiprocessing.get_context("forkserver")

RIGHT = ("ok", "ill-conditioned")

SHOWN_CALLS, SHOWN_LETTERS = 6, 160
"""The page names this many operators for each reason, and this much of a reason."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one program, each in a process of its own: a fork of a server that has the libraries loaded."""

    examples: Path
    program: str
    folder: Path
    seconds: float
    threads: int
    timeout: float

    def run(self, system: str, *more: str) -> Answer:
        answer = self.folder / f"{system}.json"
        given = [str(self.examples), self.program, system, "--arrays", str(self.folder / f"{system}.pt")]
        given += ["--seconds", str(self.seconds), "--threads", str(self.threads), "--worker", str(answer), *more]
        answer.unlink(missing_ok=True)
        child = SERVER.Process(target=pyg_examples_worker.main, args=(given,))
        child.start()
        assert child.pid is not None
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (available_memory(),) * 2)
        child.join(self.timeout)
        if child.is_alive():
            child.kill()
            child.join()
            return {"status": f"no answer within {self.timeout:.0f} s"}
        if answer.exists():
            found: Answer = json.loads(answer.read_text())
            return found
        code = child.exitcode or 0
        return {"status": f"killed by signal {-code}" if code < 0 else f"exit {code}"}


def measure(examples: str, program: str, seconds: float, threads: int, timeout: float) -> Answer:
    """Everything about one program: why it is not run, or what its runs gave; and the date."""
    os.environ.update(OMP_NUM_THREADS=str(threads), MPLBACKEND="Agg")
    SERVER.set_forkserver_preload(list(pyg_examples_worker.LIBRARIES))
    with tempfile.TemporaryDirectory() as folder:
        found = _measured(Runs(Path(examples), program, Path(folder), seconds, threads, timeout))
    return {**found, "date": time.strftime("%Y-%m-%d", time.gmtime())}


def _measured(of: Runs) -> Answer:
    why = reason(of.examples, of.program)
    if why is not None:
        return {"status": "not run", "why": why}
    runs = {"eager": of.run("eager")}
    if runs["eager"]["status"] != "ok":
        why = re.sub(r" \(/[^)]*\)", "", runs["eager"]["status"])  # without the place where a package lies
        return {"status": "not run", "why": f"eager mode: {why}", "runs": runs}
    runs["graphweave"] = of.run("graphweave")
    answer: Answer = {
        "status": "ok", "line": runs["eager"]["line"], "second": runs["eager"]["second"], "runs": runs,
    }  # fmt: skip
    if runs["graphweave"]["status"] != "ok":
        return {**answer, "status": "crash", "why": runs["graphweave"]["status"]}
    answer["error"], answer["where"] = difference(of.folder, runs)
    if answer["error"] > TOLERANCE:
        answer["status"], answer["note"], answer["checks"] = _judged(of)
    if "median" in runs["eager"] and "median" in runs["graphweave"]:
        answer["ratio"] = runs["eager"]["median"] / runs["graphweave"]["median"]
    return answer


def difference(
    folder: Path, runs: Mapping[str, Answer], of: str = "graphweave", to: str = "eager"
) -> tuple[float, str]:
    """The largest relative error of the first losses and of the first step's gradients, and where it is.

    Beside a float64 run, a gradient that is zero but for its rounding (of a bias before a normalisation) is known to be
    zero: what the others have there is rounding of large terms, and is measured by the largest gradient.
    """
    got, want = (torch.load(folder / f"{name}.pt") for name in (of, to))
    worst, where = 0.0, ""
    for i, (one, other) in enumerate(zip(runs[of]["losses"], runs[to]["losses"], strict=True)):
        error = math.inf if math.isnan(one) != math.isnan(other) else abs(one - other) / max(abs(other), 1e-6)
        worst, where = max((worst, where), (0.0 if math.isnan(error) else error, f"loss of step {i + 1}"))
    largest = max((float(grad.abs().max()) for grad in want.values() if grad.numel()), default=0.0)
    for name in {**want, **got}:
        if name in got and name in want:
            nothing = to == "exact" and float(want[name].abs().max()) < ZERO * largest
            floor = largest if nothing else largest * NOISE_FLOOR
            error = relative_error(got[name].double(), want[name].double(), floor)
        else:  # a compiled backward may give zeros for what does not matter
            error = float(got.get(name, want.get(name)).abs().max()) / max(largest, 1e-30)
        worst, where = max((worst, where), (error, f"gradient {name}"))
    return worst, where


def _judged(of: Runs) -> tuple[str, str, dict[str, Any]]:
    """The status of a program whose numbers differ, a note, and the errors.

    What is left to PyTorch draws other dropout masks than the reference, and its sorts take equal numbers in any order.
    So both systems first run without dropout and with stable sorts. Then float64 judges, where float32 loses digits: in
    eager mode too, or, if both systems agree in float64, only by the order of the compiled sums.
    """
    runs = {name: of.run(name, "--still", "--check") for name in ("eager", "graphweave")}
    if any(one["status"] != "ok" for one in runs.values()):
        return "wrong", "does not run without dropout", {}
    checks: dict[str, Any] = {"without dropout": difference(of.folder, runs)}
    if checks["without dropout"][0] <= TOLERANCE:
        return "ok", "compared without dropout", checks
    for name in ("exact", "wide"):
        runs[name] = of.run(name, "--still", "--check")
        if runs[name]["status"] != "ok":
            return "wrong", f"float64: {runs[name]['status']}", checks
    checks["float64"] = difference(of.folder, runs, "wide", "exact")
    checks["ours"], checks["eager"] = (difference(of.folder, runs, name, "exact") for name in ("graphweave", "eager"))
    wide, ours, eagers = (checks[name][0] for name in ("float64", "ours", "eager"))
    if ours <= TOLERANCE:
        return "ok", "compared in float64", checks
    right = ours <= 4 * eagers or (wide <= WIDE and ours <= LOST)
    return "ill-conditioned" if right else "wrong", "compared in float64", checks


def row(program: str, one: Answer) -> list[str]:
    """A line of the table of programs that run."""
    eager, ours = one["runs"]["eager"], one["runs"]["graphweave"]
    what = one["line"].partition(" = ")[0]
    program = program if what == "model" else f"{program} (`{what}`)"
    if one["status"] == "crash":
        return [program, "crash", _ms(eager), "-", "-", "-", "-", "-", one["why"]]
    work = ours["work"]
    left = [*_whole_graphs(work["eager_graphs"]), *_calls(work["on_edges"], "on edges, "), *_calls(work["left"], "")]
    numbers = (work["kernels"], work["calls"], work["breaks"])
    ratio = f"{one['ratio']:.1f}x" if "ratio" in one else "-"
    status = f"{one['status']}*" if "without dropout" in one.get("note", "") else one["status"]
    return [program, status, _ms(eager), _ms(ours), ratio, *map(str, numbers), in_a_cell(left)]


def _whole_graphs(reasons: Sequence[str]) -> list[str]:
    """The reasons why functions ran in eager mode, each once, cut short, and with its count."""
    return [f"**whole graph**: {_shortened(why)}{_times(count)}" for why, count in Counter(reasons).items()]


def _calls(notes: Sequence[str], where: str) -> list[str]:
    """The calls left to PyTorch, one line for each reason: those with the most calls, by the operators' names."""
    by_reason: dict[str, Counter[str]] = {}
    for note in notes:
        found = re.fullmatch(r"(?:aten\.)?(\w+)\S*: (.*?)(?: \((\d+) times\))?", note, re.DOTALL)
        name, why, count = found.groups() if found else (note, "left to PyTorch", None)
        by_reason.setdefault(why, Counter())[name] += int(count or 1)
    lines = []
    for why, calls in by_reason.items():
        shown = [f"{name}{_times(count)}" for name, count in calls.most_common(SHOWN_CALLS)]
        more = [f"{len(calls) - SHOWN_CALLS} more"] if len(calls) > SHOWN_CALLS else []
        lines.append(f"{where}{_shortened(why)}: {', '.join(shown + more)}")
    return lines


def _times(count: int) -> str:
    return f" ({count} times)" if count > 1 else ""


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS].rsplit(maxsplit=1)[0]} ..."


def _ms(run: Answer) -> str:
    return f"{1e3 * run['median']:.3g}" if "median" in run else "-"


def summary(rows: Mapping[str, Answer]) -> str:
    ran = [one for one in rows.values() if one["status"] != "not run"]
    status = Counter(one["status"] for one in ran)
    ratios = [one["ratio"] for one in ran if one["status"] in RIGHT and "ratio" in one]
    whole = [one for one in ran if one["status"] in RIGHT]
    unbroken = sum(not one["runs"]["graphweave"]["work"]["breaks"] for one in whole)
    nothing = sum(not one["runs"]["graphweave"]["work"]["calls"] for one in whole)
    counts = ", ".join(f"{count} {name}" for name, count in status.items())
    if not ratios:
        return f"{len(ran)} programs run: {counts}"
    return (
        f"{len(ran)} programs run: {counts}. {unbroken} without a graph break, {nothing} with no call left to PyTorch "
        f"in a step. A step takes {geometric_mean(ratios):.2f} times as long in eager mode (geometric mean), between "
        f"{min(ratios):.2f} and {max(ratios):.2f} times; {sum(ratio < 1 for ratio in ratios)} programs are slower than "
        "eager"
    )


HEADINGS = ("program", "result", "eager ms", "ours ms", "speed", "kernels", "calls left", "breaks", "left to PyTorch")


def markdown(results: Mapping[str, Answer], threads: int) -> str:
    plain = {name: one for name, one in results.items() if one["status"] != "not run" and not one["second"]}
    lent = {name: one for name, one in results.items() if one["status"] != "not run" and one["second"]}
    other = {name: one for name, one in results.items() if one["status"] == "not run"}
    lines = [
        "# PyTorch Geometric's examples through graphweave", "",
        "This page lists how the programs of PyG's public `examples/` run, unchanged but for one line.",
        "`python -m bench.pyg_examples --pyg /path/to/pytorch_geometric --markdown docs/pyg_examples.md` wrote it.", "",
        "- **The line** is `model = graphweave.compile(model)` after the statement that makes the model, by the",
        "  program's name for it (in brackets where it is another). Where the program trains by a method of the model,",
        "  the line compiles that method:",
        "  `model.encode = graphweave.compile(model.encode)`. A line with `torch.compile` or `torch.jit.script` is",
        "  replaced, and left out for eager mode. Losses, and so the last layer's kernel with them, stay outside:",
        "  compiling them with the model is faster still.",
        "- **Data** are generated in the form of the real data sets, so nothing is downloaded. Large ones are smaller",
        "  here; the list is below.",
        "- **A step** goes from `optimizer.zero_grad()` to the end of `optimizer.step()`; times are medians of warm",
        f"  steps with {threads} thread{'s' if threads > 1 else ''}. Each system has a process of its own. The program",
        "  ends when enough steps are timed.",
        "- **Right** means that the losses of the first three steps and the gradients of the first equal eager mode's",
        "  with the same dropout masks, or else without any, and with sorts that keep equal numbers in their order",
        "  (*ok\\**), which those of eager mode need not do.",
        "  *ill-conditioned*: float32 loses digits in eager mode too, and a float64 run",
        "  judged.",
        "- *Kernels* and *calls left* to PyTorch are those of one step, *breaks* the places where capture let Python",
        "  run. What is left to PyTorch runs as in eager mode: slower, never wrong.", "",
        f"{summary({**plain, **lent})}.", "", f"Measured {_dates(results)}.", "",
        "## One changed line", "", *_table(HEADINGS, [row(name, one) for name, one in plain.items()]), "",
        "## Two changed lines", "",
        "These programs need pyg-lib or torch-sparse: for loaders, points, walks or splines. The second line,",
        "`import graphweave.pyg`, lends what is not installed ([how](pyg.md#without-pyg-lib)), for eager mode too.", "",
        *_table(HEADINGS, [row(name, one) for name, one in lent.items()]), "",
        "## Not run", "", *_table(("program", "reason"), [[n, in_a_cell([o["why"]])] for n, o in other.items()]), "",
        "## Smaller data", "", *_table(("data set", "size here"), list(SMALLER.items())),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _dates(results: Mapping[str, Answer]) -> str:
    days = sorted({one["date"] for one in results.values()})
    return f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}, program by program"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(cells)} |" for cells in rows]
    return [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}", *body]


def show(results: Mapping[str, Answer], options: Namespace) -> None:
    ran = [row(name, one) for name, one in results.items() if one["status"] != "not run"]
    ratio_table("PyG's examples, one training step", HEADINGS[:-1], [cells[:-1] for cells in ran])
    print(summary(results))
    if options.markdown:
        options.markdown.write_text(markdown(dict(sorted(results.items())), options.threads))


def cases(options: Namespace) -> Iterator[Numbers]:
    if options.pyg is None:
        raise SystemExit("--pyg names the folder of a checkout of PyTorch Geometric")
    examples = (options.pyg / "examples").resolve()
    for name in programs(examples):
        sizes = {"examples": str(examples), "program": name, "seconds": options.step_seconds}
        yield Numbers(name, measure, {**sizes, "threads": options.threads, "timeout": options.timeout}, here=True)


BENCH = Bench(
    "bench.pyg_examples", __doc__, cases, {"pyg": Path, "step_seconds": 2.0, "markdown": Path}, show=show
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
