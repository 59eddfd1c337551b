"""FeatGraph's tables III, V, VI and figure 10 (Hu et al., SC 2020), at a tenth of the nodes.

Table III's kernels are those of bench/ops_cases.py. Figures 11 to 15 are in featgraph_figures.py.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import ops
from bench.case import options_of
from bench.papers import featgraph_figures, price
from bench.papers.cells import OURS, Panel
from bench.papers.featgraph_figures import LENGTHS, TINY
from bench.papers.headlines import Headline, highest, lowest, mean, over
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, Measurement, dgl_of
from bench.papers.session import Gap, Paper, Session
from bench.runner import Measuring
from bench.specs import Spec

GRAPHS = ("ogbn-proteins", "reddit", "rand-10k")

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

NAMES = {"graphweave": OURS, "mkl": "MKL", "dgl": DGL}
"""Peer of bench.ops -> its name."""


def kernel(options: argparse.Namespace, case: str, graph: str, length: int, threads: int) -> dict[str, Any]:
    """One kernel by every system, at `threads` threads. Leaves PyTorch's number of threads as it was."""
    argv = ["--threads", str(threads), "--repeats", str(options.repeats), "--systems", *NAMES]
    argv += ["--dgl-python", str(options.dgl_python)] if options.dgl_python is not None else []
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one = ops.case_of(case, graph, length, options.data_dir)
        with tempfile.TemporaryDirectory() as folder:
            return Measuring(ops.BENCH, one, options_of(ops.BENCH, argv), argv, Path(folder)).run()
    finally:
        torch.set_num_threads(before)


def add(panel: Panel, row: str, column: str, answers: dict[str, Any], scale: float = 1.0) -> None:
    for system, answer in answers.items():
        panel.measured(NAMES[system], row, column, answer, scale)


def table_iii(session: Session, case: str) -> list[Panel]:
    about = (
        "One thread. The paper's graphs have ten times the nodes and edges of those here, of equal average degree; "
        "ogbn-proteins and reddit are R-MAT here, and rand-10k stands for the paper's rand-100K. Ligra is not "
        "available here; MKL has GCN aggregation only."
    )
    name, title = KERNELS[case]
    panel = session.panel(f"Table {name}", f"{title}, time over feature length", "s", about, rows="graph",
                          columns="length")  # fmt: skip
    graphs, lengths = ((TINY,), (32,)) if session.options.quick else (GRAPHS, LENGTHS)
    for graph in graphs:
        for system, times in PRINTED[case].get(graph, {}).items():
            panel.printed(system, graph, {str(n): s for n, s in zip(LENGTHS, times, strict=True)})
        for length in lengths:
            seconds = price.kernel(case, graph, length, session.options.data_dir)
            if session.wants(graph, str(length), panel, seconds=seconds):
                add(panel, graph, str(length), kernel(session.options, case, graph, length, 1))
                session.measured(panel)
    return [panel]


def table_v(session: Session) -> list[Panel]:
    about = "GCN aggregation at length 128, one thread, uniform graphs of 10,000 nodes (the paper's: 100,000)."
    panel = session.panel("Table V", "sensitivity to the sparsity of the graph", "s", about, "lines", rows="kernel",
                          columns="graph")  # fmt: skip
    for graph, (mkl, theirs) in SPARSITY.items():
        panel.printed("MKL", "gcn", {graph: mkl})
        panel.printed("FeatGraph", "gcn", {graph: theirs})
        if session.options.quick and graph != "uniform-99.95":
            continue
        if session.wants("gcn", graph, panel, seconds=price.kernel("gcn", graph, 128, session.options.data_dir)):
            add(panel, "gcn", graph, kernel(session.options, "gcn", graph, 128, 1))
            session.measured(panel)
    return [panel]


def table_vi(session: Session) -> list[Panel]:
    about = (
        "Two layers, hidden size 512 (GCN) or 256, 602 features, 41 logits, on R-MAT with a tenth of reddit's nodes "
        "and edges; the paper used all of reddit. GraphSAGE takes the mean. An optimiser is not counted."
    )
    quick = session.options.quick
    panels = []
    for mode, models in END_TO_END.items():
        title = "one epoch, training" if mode == "train" else "one epoch, inference"
        panel = session.panel(f"Table VI, {mode}", title, "s", about, rows="model", columns="graph")
        for model, (without, theirs) in models.items():
            panel.printed("DGL without FeatGraph", model, {"reddit": without})
            panel.printed("DGL with FeatGraph", model, {"reddit": theirs})
            spec = Spec(model, TINY, 16, (32, 8)) if quick else Spec(model, "reddit", 602, (HIDDEN[model], 41))
            column = TINY if quick else "reddit"
            if quick and (model, mode) != ("gcn", "train"):
                continue
            seconds = price.model(spec, mode, 3, session.options.data_dir)
            if not session.wants(model, column, panel, seconds=seconds):
                continue
            systems = [GRAPHWEAVE, EAGER, dgl_of(spec)]
            for system, answer in Measurement(session.options, spec, mode).times(systems).items():
                panel.measured(system, model, column, answer)
            session.measured(panel)
        panels.append(panel)
    return panels


def figure_10(session: Session) -> list[Panel]:
    about = "GCN aggregation at length 512 on R-MAT with a tenth of reddit's nodes and edges. The paper had 16 threads."
    options = session.options
    times = session.panel("Figure 10, time", "time over threads", "s", about, "lines", rows="kernel",
                          columns="threads")  # fmt: skip
    graph, length = (TINY, 32) if options.quick else ("reddit", 512)
    for threads in range(1, options.threads + 1):
        seconds = price.kernel("gcn", graph, length, options.data_dir)
        if session.wants("gcn", str(threads), times, seconds=seconds):
            add(times, "gcn", str(threads), kernel(options, "gcn", graph, length, threads))
            session.measured(times)
    panel = session.panel("Figure 10", "scaling with threads", "times one thread", about, "lines", rows="kernel",
                          columns="threads", source=times)  # fmt: skip
    for system, gain in (("Ligra", 9.5), ("MKL", 9.8), ("FeatGraph", 12.6)):
        panel.printed(system, "gcn", {"16": gain})
    for cell in times.cells:
        alone = times.find("gcn", "1", cell.system, paper=False)
        if alone is not None and alone.value and cell.value:
            panel.value(cell.system, "gcn", cell.column, alone.value / cell.value)
    return [times, panel]


KERNEL_PANELS = {case: f"Table {name}" for case, (name, _) in KERNELS.items()}

HEADLINES = (
    Headline("GCN aggregation faster than MKL at length 512, reddit", 40.06 / 16.71,
             mean(over(KERNEL_PANELS["gcn"], "MKL", rows=["reddit"], columns=["512"]))),
    Headline("GCN aggregation faster than MKL at length 512, rand-100K", 15.51 / 3.52,
             mean(over(KERNEL_PANELS["gcn"], "MKL", rows=["rand-10k"], columns=["512"]))),
    Headline("GCN aggregation faster than MKL, worst of 15 cases (MKL is faster in one)", 0.96 / 0.99,
             lowest(over(KERNEL_PANELS["gcn"], "MKL"))),
    Headline("faster than MKL on the densest graph (table V)", 37.22 / 12.78,
             mean(over("Table V", "MKL", columns=["uniform-95"]))),
    Headline("training faster than DGL with its kernels of that time, at most (table VI)", 32.1,
             highest(over("Table VI, train", DGL))),
    Headline("inference faster than DGL with its kernels of that time, at most (table VI)", 22.1,
             highest(over("Table VI, infer", DGL))),
)  # fmt: skip

PAPER = Paper(
    "featgraph",
    "FeatGraph: A Flexible and Efficient Backend for Graph Neural Network Systems (SC 2020)",
    "AWS c5.9xlarge, one 18-core Intel Xeon Platinum 8124M at 3.0 GHz, 25 MB of last-level cache, 68 GB",
    {
        **{name: partial(table_iii, case=case) for case, (name, _) in KERNELS.items()},
        "V": table_v,
        "VI": table_vi,
        "10": figure_10,
        "11": featgraph_figures.figure_11,
        "12": featgraph_figures.figure_12,
        "13": featgraph_figures.figure_13,
        "14": featgraph_figures.figure_14,
        "15": featgraph_figures.figure_15,
    },
    (
        Gap("Table IV", "a GPU", "It has the kernels of table III on a GPU."),
        Gap("Table VI, GPU rows", "a GPU", "They are training and inference on a GPU."),
        Gap("Figures 12, 13 and 15 as printed", "a GPU", "The same questions are asked of a CPU above."),
        Gap("Figure 10, above two threads", "more than two cores", "The paper goes up to 16 threads."),
        Gap("Ligra", "a system that does not run here", "Its numbers are the paper's."),
    ),
    HEADLINES,
)
