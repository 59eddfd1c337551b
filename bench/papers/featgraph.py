"""FeatGraph's tables III, V, VI and figures 10, 11, 14 (Hu et al., SC 2020), at a tenth of the nodes.

Table III's kernels are those of bench/ops_cases.py. Ligra is not available here.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.common import interleaved
from bench.ops import measure
from bench.ops_cases import data_of
from bench.papers.cells import OURS, Panel, Paper
from bench.papers.graphs import edges_of
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, PYG, Measurement, dgl_of
from bench.papers.spec import Spec
from bench.schedules import checked, gcn
from graphweave import Schedule
from graphweave.core.errors import ScheduleError

LENGTHS = (32, 64, 128, 256, 512)
GRAPHS = ("ogbn-proteins", "reddit", "rand-10k")
TINY = "rmat:300:4000"

KERNELS = {
    "gcn": ("III(a)", "GCN aggregation"),
    "mlp": ("III(b)", "MLP aggregation"),
    "dot": ("III(c)", "dot-product attention"),
}

PRINTED: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {
    "gcn": {
        "ogbn-proteins": {
            "Ligra": (1.47, 2.05, 3.10, 6.01, 12.30), "MKL": (0.60, 0.96, 2.17, 5.34, 14.71),
            "FeatGraph": (0.50, 0.99, 1.97, 3.94, 8.02),
        },
        "reddit": {
            "Ligra": (4.10, 7.20, 13.10, 20.40, 34.90), "MKL": (1.50, 3.01, 7.87, 17.79, 40.06),
            "FeatGraph": (1.02, 2.13, 4.09, 8.16, 16.71),
        },
        "rand-10k": {
            "Ligra": (0.64, 0.86, 1.49, 2.58, 4.91), "MKL": (0.43, 0.77, 2.26, 5.45, 15.51),
            "FeatGraph": (0.22, 0.43, 0.87, 1.74, 3.52),
        },
    },
    "mlp": {
        "ogbn-proteins": {
            "Ligra": (12.90, 24.70, 47.70, 94.00, 187.00), "FeatGraph": (2.48, 4.84, 9.68, 19.55, 38.70)
        },
        "reddit": {"Ligra": (20.70, 37.90, 71.50, 139.00, 273.00), "FeatGraph": (4.03, 8.20, 15.33, 30.80, 62.07)},
        "rand-10k": {"Ligra": (7.81, 14.80, 28.80, 56.90, 113.00), "FeatGraph": (1.42, 2.74, 5.48, 10.96, 21.97)},
    },
    "dot": {
        "ogbn-proteins": {"Ligra": (9.81, 22.30, 47.50, 97.70, 198.00), "FeatGraph": (2.21, 4.39, 8.67, 16.46, 32.97)},
        "reddit": {"Ligra": (17.20, 37.30, 77.20, 152.00, 297.00), "FeatGraph": (3.71, 7.34, 14.11, 27.13, 54.51)},
        "rand-10k": {"Ligra": (5.57, 12.90, 28.20, 58.30, 119.00), "FeatGraph": (1.28, 2.51, 5.37, 10.76, 21.47)},
    },
}  # fmt: skip
"""Kernel -> graph -> system -> seconds at each of LENGTHS (table III). rand-10k stands for the paper's rand-100K."""

SPARSITY = {"uniform-99.95": (0.34, 0.31), "uniform-99.5": (3.58, 1.95), "uniform-95": (37.22, 12.78)}
"""Table V: graph -> seconds of MKL and FeatGraph."""

END_TO_END = {
    "train": {"gcn": (2447.1, 114.5), "sage": (1269.6, 57.8), "gat": (5763.9, 179.3)},
    "infer": {"gcn": (1176.9, 55.3), "sage": (602.4, 29.8), "gat": (1580.9, 71.5)},
}
"""Table VI, CPU: mode -> model -> seconds of DGL without and with FeatGraph."""

HIDDEN = {"gcn": 512, "sage": 256, "gat": 256}

PARTITIONS = {
    "1": (12.5, 10.0, 7.6, 16.1),
    "2": (7.9, 5.5, 4.5, 13.9),
    "4": (5.6, 4.6, 4.1, 12.4),
    "8": (6.0, 5.1, 4.5, 12.6),
}
"""Figure 14: feature partitions -> seconds at 1, 4, 16 and 64 graph partitions."""

NAMES = {"graphweave": OURS, "mkl": "MKL", "pyg": PYG, "dgl": DGL}


def kernel(options: argparse.Namespace, case: str, graph: str, length: int, threads: int) -> dict[str, Any]:
    """One kernel by every system, at `threads` threads. Leaves PyTorch's number of threads as it was."""
    index, nodes = edges_of(graph, options.data_dir)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return measure(
                case, data_of(index, nodes, length), threads=threads, repeats=options.repeats, dgl=options.dgl_python,
                folder=Path(folder), wanted=("mkl", "dgl"),
            )  # fmt: skip
    finally:
        torch.set_num_threads(before)


def add(panel: Panel, row: str, column: str, answers: dict[str, Any], scale: float = 1.0) -> None:
    for system, answer in answers.items():
        panel.measured(NAMES[system], row, column, answer, scale)


def table_iii(options: argparse.Namespace) -> list[Panel]:
    panels = []
    for case, (name, title) in KERNELS.items():
        about = (
            "One thread. The paper's graphs have ten times the nodes and edges of those here, of equal average degree; "
            "ogbn-proteins and reddit are R-MAT here. Ligra is not available here; MKL has GCN aggregation only."
        )
        panel = Panel(f"Table {name}", f"{title}, time over feature length", "s", about, rows="graph", columns="length")
        graphs, lengths = ((TINY,), (32,)) if options.quick else (GRAPHS, LENGTHS)
        for graph in graphs:
            for system, seconds in PRINTED[case].get(graph, {}).items():
                panel.printed(system, graph, {str(n): s for n, s in zip(LENGTHS, seconds, strict=True)})
            for length in lengths:
                add(panel, graph, str(length), kernel(options, case, graph, length, 1))
        panels.append(panel)
    return panels


def table_v(options: argparse.Namespace) -> list[Panel]:
    about = "GCN aggregation at length 128, one thread, uniform graphs of 10,000 nodes (the paper's: 100,000)."
    panel = Panel("Table V", "sensitivity to the sparsity of the graph", "s", about, "lines", "kernel", "graph")
    for graph, (mkl, theirs) in SPARSITY.items():
        panel.printed("MKL", "gcn", {graph: mkl})
        panel.printed("FeatGraph", "gcn", {graph: theirs})
        if not options.quick or graph == "uniform-99.95":
            add(panel, "gcn", graph, kernel(options, "gcn", graph, 128, 1))
    return [panel]


def table_vi(options: argparse.Namespace) -> list[Panel]:
    about = (
        "Two layers, hidden size 512 (GCN) or 256, 602 features, 41 logits, on R-MAT with a tenth of reddit's nodes "
        "and edges; the paper used all of reddit. GraphSAGE takes the mean. An optimiser is not counted."
    )
    panels = []
    for mode, models in END_TO_END.items():
        title = "one epoch, training" if mode == "train" else "one epoch, inference"
        panel = Panel(f"Table VI, {mode}", title, "s", about, rows="model", columns="graph")
        for model, (without, theirs) in models.items():
            panel.printed("DGL without FeatGraph", model, {"reddit": without})
            panel.printed("DGL with FeatGraph", model, {"reddit": theirs})
            spec = Spec(model, "reddit", 602, (HIDDEN[model], 41))
            if options.quick and (model, mode) != ("gcn", "train"):
                continue
            if options.quick:
                spec = Spec(model, TINY, 16, (32, 8))
            for system, answer in Measurement(options, spec, mode).times([GRAPHWEAVE, EAGER, dgl_of(spec)]).items():
                panel.measured(system, model, "reddit" if not options.quick else TINY, answer)
        panels.append(panel)
    return panels


def figure_10(options: argparse.Namespace) -> list[Panel]:
    about = (
        "Speed-up over one thread of the same system, GCN aggregation at length 512 on R-MAT with a tenth of reddit's "
        "nodes and edges. The paper had 16 threads."
    )
    panel = Panel("Figure 10", "scaling with threads", "times one thread", about, "lines", "kernel", "threads")
    for system, times in (("Ligra", 9.5), ("MKL", 9.8), ("FeatGraph", 12.6)):
        panel.printed(system, "gcn", {"16": times})
    graph, length = (TINY, 32) if options.quick else ("reddit", 512)
    alone: dict[str, float] = {}
    for threads in range(1, options.threads + 1):
        for system, answer in kernel(options, "gcn", graph, length, threads).items():
            if "median" not in answer:
                panel.measured(NAMES[system], "gcn", str(threads), answer)
                continue
            alone.setdefault(system, answer["median"])
            panel.value(NAMES[system], "gcn", str(threads), alone[system] / answer["median"])
    return [panel]


def by_schedule(
    options: argparse.Namespace, graph: str, length: int, wanted: dict[tuple[str, str], Schedule]
) -> dict[tuple[str, str], Any]:
    """Cell -> seconds of GCN aggregation with its schedule, at one thread, or why the kernel cannot take it."""
    index, nodes = edges_of(graph, options.data_dir)
    x = torch.randn(nodes, length, generator=torch.Generator().manual_seed(0))
    args = (x, index[0].contiguous(), index[1].contiguous())
    exact = _exact(args)
    found: dict[tuple[str, str], Any] = {}
    calls: dict[str, Callable[[], Any]] = {}
    first: dict[str, float] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for cell, schedule in wanted.items():
            name = " ".join(cell)
            try:
                made, first[name] = checked(gcn, schedule, args, exact)
            except ScheduleError as error:
                found[cell] = {"status": str(error)}
                continue
            calls[name] = lambda made=made: made(*args)
        taken = interleaved(calls, repeats=options.repeats, first=first)
    finally:
        torch.set_num_threads(before)
    for cell in wanted:
        if (timing := taken.get(" ".join(cell))) is not None:
            found[cell] = {"median": timing.median, "q1": timing.q1, "q3": timing.q3}
    return found


def _exact(args: tuple[Tensor, ...]) -> Tensor:
    """GCN aggregation in float64, some edges at a time."""
    x, src, dst = args
    out, wide = torch.zeros(x.shape, dtype=torch.float64), x.double()
    for a, b in zip(src.split(100_000), dst.split(100_000), strict=True):
        out.index_add_(0, b, wide[a])
    return out


def figure_11(options: argparse.Namespace) -> list[Panel]:
    about = (
        "GCN aggregation, one thread, on R-MAT with a tenth of reddit's nodes and edges: 16 ranges of sources, "
        "tiles of 32 features, both, neither. In the paper, partitions are 1.7 times as fast as neither at length "
        "512, tiles 1.2 times, both 2.2 times."
    )
    graph, lengths = (TINY, (64,)) if options.quick else ("reddit", LENGTHS)
    panel = Panel("Figure 11", "partitions of the graph and tiles of features", "s", about, "bars", "length", "form")
    forms = {
        "neither": Schedule(source_partitions=1),
        "tiles": Schedule(feature_tile=32),
        "partitions": Schedule(source_partitions=16),
        "both": Schedule(source_partitions=16, feature_tile=32),
    }
    for length in lengths:
        wanted = {(str(length), form): schedule for form, schedule in forms.items()}
        for (row, column), answer in by_schedule(options, graph, length, wanted).items():
            panel.measured(OURS, row, column, answer)
    return [panel]


def figure_14(options: argparse.Namespace) -> list[Panel]:
    about = (
        "GCN aggregation at length 128, one thread, on R-MAT with a tenth of reddit's nodes and edges; the paper used "
        "all of reddit."
    )
    title = "time over graph and feature partitions"
    panel = Panel("Figure 14", title, "s", about, "heat map", "feature partitions", "graph partitions")
    parts = ("1", "4", "16", "64")
    for row, seconds in PARTITIONS.items():
        panel.printed("FeatGraph", row, dict(zip(parts, seconds, strict=True)))
    rows, columns = (("1", "2"), ("1", "4")) if options.quick else (tuple(PARTITIONS), parts)
    wanted = {
        (row, column): Schedule(source_partitions=int(column), feature_tile=None if row == "1" else 128 // int(row))
        for row in rows for column in columns
    }  # fmt: skip
    for (row, column), answer in by_schedule(options, TINY if options.quick else "reddit", 128, wanted).items():
        panel.measured(OURS, row, column, answer)
    return [panel]


PAPER = Paper(
    "featgraph",
    "FeatGraph: A Flexible and Efficient Backend for Graph Neural Network Systems (SC 2020)",
    "AWS c5.9xlarge, one 18-core Intel Xeon Platinum 8124M at 3.0 GHz, 25 MB of last-level cache, 68 GB",
    {"III": table_iii, "V": table_v, "VI": table_vi, "10": figure_10, "11": figure_11, "14": figure_14},
    {
        "Table IV": "GPU kernels",
        "Figure 12": "tree reduction within thread blocks of a GPU",
        "Figure 13": "hybrid partitioning for the shared memory of a GPU",
        "Figure 15": "the number of CUDA blocks; a CPU has no such parameter",
        "Table VI, GPU rows": "GPU training and inference",
    },
)
