"""Hector's figures 8 to 11 and tables 4, 5 (Wu et al., ASPLOS 2024), by bench.relational in processes of its own.

Graphs are seeded synthetic ones of the sizes in its table 3, except fb15k, which is the real fb15k_237 with inverses.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.papers.cells import OURS, Panel, Paper
from bench.relational_graphs import WIDTH
from bench.relational_tables import BASE, FIXED, PEERS, best_peer, geometric, seconds
from bench.turns import ROOT

GRAPHS = ("aifb", "am", "bgs", "biokg", "fb15k_237", "mag", "mutag", "wikikg2")
MODELS, MODES = ("rgcn", "rgat", "hgt"), ("infer", "train")
WIDTHS = (32, 64, 128)
OURS_ONLY = ("graphweave", *FIXED)
COMPACT = {"gw-C": "C", "gw-R": "R", "gw-C+R": "C+R"}

BEST = {
    "train": {"rgcn": (2.02, 2.76, 3.48), "rgat": (4.61, 11.3, 55.4), "hgt": (2.17, 8.02, 43.1)},
    "infer": {"rgcn": (1.51, 1.91, 3.20), "rgat": (5.29, 8.56, 15.5), "hgt": (1.40, 2.87, 7.42)},
}
"""Table 4: speed-up of the best optimised code over the best other system: worst, mean, best."""

AVERAGES = {
    ("hgt", "train"): (1.08, 1.16, 1.26), ("hgt", "infer"): (1.07, 1.31, 1.40),
    ("rgat", "train"): (1.13, 1.17, 1.18), ("rgat", "infer"): (1.36, 1.28, 1.49),
}  # fmt: skip
"""Table 5: average speed-up over unoptimised code of C, R, C+R."""

SHORT = "graphs of Hector's sizes, synthetic except fb15k_237 (real, with inverses)"


def relational(
    options: argparse.Namespace, models: Sequence[str], modes: Sequence[str], systems: Sequence[str], *,
    width: int = 64, memory: Sequence[str] = (), graphs: Sequence[str] = GRAPHS,
) -> dict[str, Any]:  # fmt: skip
    """The record of `python -m bench.relational` on these cells. Features and results are `width` wide."""
    if options.quick:
        graphs, memory = ("tiny",), ("tiny",) if memory else ()
    wanted = [name for name in systems if options.dgl_python is not None or not name.startswith("dgl")]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        command = [sys.executable, "-m", "bench.relational", "--no-launches", "--out", str(out)]
        for name, values in (("graphs", graphs), ("models", models), ("modes", modes), ("systems", wanted)):
            command += [f"--{name}", *values]
        command += ["--memory-graphs", *memory, "--repeat", str(options.repeats), "--threads", str(options.threads)]
        command += ["--data-dir", str(options.data_dir)]
        if options.dgl_python is not None:
            command += ["--dgl-python", str(options.dgl_python)]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, WIDTH: str(width)}, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def cells_of(record: Mapping[str, Any], mode: str) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(model, graph, answers of its systems)."""
    return [
        (*pair.split(), one[mode]["systems"])  # type: ignore[misc]
        for pair, one in record["results"].items() if mode in one
    ]  # fmt: skip


def table_4(options: argparse.Namespace) -> list[Panel]:
    """Figure 8 (times) and table 4 (speed-ups over the best other system), from the same run."""
    systems = (*OURS_ONLY, *(name for names in PEERS.values() for name in names))
    panels, record = [], relational(options, MODELS, MODES, systems)
    for mode in MODES:
        about = f"One layer 64 -> 64, one head, {SHORT}. Each peer is the fastest of its public implementations."
        times = Panel(f"Figure 8, {mode}", "graphweave and other systems", "ms", about, "bars", "model", "graph")
        speed = Panel(
            f"Table 4, {mode}", "speed-up over the best other system", "times",
            "Worst, geometric mean and best over the graphs that a peer ran.", rows="model", columns="over graphs",
        )  # fmt: skip
        for model, printed in BEST[mode].items():
            speed.printed("Hector", model, dict(zip(("worst", "mean", "best"), printed, strict=True)))
        ratios: dict[str, list[float]] = {}
        for model, graph, answers in cells_of(record, mode):
            times.measured(OURS, model, graph, answers[BASE], scale=1e3)
            for peer in PEERS:
                fastest = best_peer(peer, model, answers)
                times.measured(peer, model, graph, answers[fastest[1]] if fastest else _reason(peer, answers), 1e3)
            own, best = seconds(answers, (BASE,)), seconds(answers, [n for names in PEERS.values() for n in names])
            if own and best:
                ratios.setdefault(model, []).append(best[0] / own[0])
        for model, values in ratios.items():
            for name, value in (("worst", min(values)), ("mean", geometric(values)), ("best", max(values))):
                speed.value(OURS, model, name, value)
        panels += [times, speed]
    return panels


def _reason(peer: str, answers: Mapping[str, Any]) -> dict[str, str]:
    found = [answers[name]["status"] for name in PEERS[peer] if name in answers]
    return {"status": found[0] if found else "has no such layer, or its Python was not given"}


def table_5(options: argparse.Namespace) -> list[Panel]:
    panels, record = [], relational(options, ("rgat", "hgt"), MODES, OURS_ONLY)
    for mode in MODES:
        about = f"Compaction (C) and reordering (R) forced, over neither; {SHORT}. The paper's row is its average."
        panel = Panel(f"Table 5, {mode}", "compaction and reordering", "times", about, "bars", "model graph", "form")
        for model in ("rgat", "hgt"):
            panel.printed("Hector", f"{model} average", dict(zip(COMPACT.values(), AVERAGES[model, mode], strict=True)))
        for model, graph, answers in cells_of(record, mode):
            base = seconds(answers, ("gw-U",))
            for name, form in COMPACT.items():
                own = seconds(answers, (name,))
                panel.value(OURS, f"{model} {graph}", form, base[0] / own[0] if base and own else None,
                            answers[name]["status"])  # fmt: skip
        panels.append(panel)
    return panels


def figure_9(options: argparse.Namespace) -> list[Panel]:
    about = (
        f"RGAT inference in the four forms (U: neither); the paper splits it into GEMM and traversal kernels; {SHORT}."
    )
    panel = Panel("Figure 9", "RGAT inference with and without C and R", "ms", about, "bars", "graph", "form")
    record = relational(options, ("rgat",), ("infer",), OURS_ONLY, graphs=("am", "fb15k_237"))
    for _, graph, answers in cells_of(record, "infer"):
        for name in FIXED:
            panel.measured(OURS, graph, name.removeprefix("gw-"), answers[name], scale=1e3)
    return [panel]


def figure_10(options: argparse.Namespace) -> list[Panel]:
    about = f"Peak memory of HGT beyond inputs and weights, with (C) and without (U) compaction; {SHORT}."
    panel = Panel("Figure 10", "memory of HGT", "MiB", about, "bars", "graph and mode", "form")
    ratio = Panel("Figure 10, ratio", "memory with C over U, and pairs over edges", "%", about, rows="graph and mode")
    record = relational(options, ("hgt",), MODES, ("gw-U", "gw-C"), memory=GRAPHS)
    for pair, one in record["memory"].items():
        for mode, answer in one.items():
            row, peaks = f"{pair.split()[1]} {mode}", answer["peaks"]
            for name in ("gw-U", "gw-C"):
                peak = peaks.get(name, "was not timed")
                known = not isinstance(peak, str)
                panel.value(OURS, row, name[3:], peak / 2**20 if known else None, "ok" if known else peak)
            ratio.value(OURS, row, "unique pairs / edges", 100 * answer["compaction"])
            if all(isinstance(peaks.get(name), int) for name in ("gw-U", "gw-C")) and peaks["gw-U"]:
                ratio.value(OURS, row, "memory C / U", 100 * peaks["gw-C"] / peaks["gw-U"])
    return [panel, ratio]


def figure_11(options: argparse.Namespace) -> list[Panel]:
    about = f"Neither compaction nor reordering, widths 32, 64 and 128; {SHORT}. The paper drew bars without numbers."
    panels = {
        mode: Panel(f"Figure 11, {mode}", "time over width", "ms", about, "lines", "model graph", "width")
        for mode in MODES
    }
    for width in WIDTHS[: 2 if options.quick else None]:
        record = relational(options, MODELS, MODES, ("gw-U",), width=width)
        for mode, panel in panels.items():
            for model, graph, answers in cells_of(record, mode):
                panel.measured(OURS, f"{model} {graph}", str(width), answers["gw-U"], scale=1e3)
    return list(panels.values())


PAPER = Paper(
    "hector",
    "Hector: An Efficient Programming and Compilation Framework for Implementing Relational Graph Neural Networks in "
    "GPU Architectures (ASPLOS 2024)",
    "one NVIDIA RTX 3090 of 24 GB, Intel Core i9-9900K, 128 GB",
    {"4": table_4, "5": table_5, "9": figure_9, "10": figure_10, "11": figure_11},
    {
        "Figure 12": "instructions per cycle and throughputs of GPU kernels; this machine gives no hardware counters",
        "Figure 9, split by kind of kernel": "a kernel here holds products and traversal at once",
        "Seastar, Graphiler and HGL": "systems for GPUs only",
    },
)
