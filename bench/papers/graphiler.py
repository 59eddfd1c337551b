"""Graphiler's figures 5 to 10 and tables 3, 4 (Xie et al., MLSys 2022): user-defined functions, inference.

GCN, GAT and C-GAT are the layers of bench/udf_layers.py, written as its figure 1 prints GAT. RGCN and HGT are those of
bench/relational_models.py, whose message functions copy the weight of each edge's type, as its figure 1 prints HGT.
"""

from __future__ import annotations

import argparse

from bench.papers import worker
from bench.papers.cells import OURS, Panel, Paper
from bench.papers.hector import cells_of, relational
from bench.papers.models import DGL, DGL_UDF, GRAPHWEAVE, Measurement, System
from bench.papers.spec import Spec
from bench.relational_tables import PEERS, best_peer

GRAPHS = ("pubmed", "ppi", "arxiv", "reddit")
TYPED = ("mutag", "bgs", "biokg", "am")
LAYERS = {"gcn": "GCN", "gat": "GAT", "cgat": "C-GAT"}
TINY = "rmat:200:800"

SPEEDUPS = {"gcn": 407.0, "gat": 604.0, "cgat": 145.0}
"""Section 5.2.1: speed-ups over DGL-UDF on PPI."""

TIMES = {
    "mutag": (431, 88, 88, 9.5),
    "bgs": ("OOM", "OOM", "OOM", 26.5),
    "biokg": ("OOM", "OOM", "OOM", 75.2),
    "am": ("OOM", "OOM", "OOM", 123),
}
PEAKS = {
    "mutag": (11822, 7087, 7087, 220),
    "bgs": ("OOM", "OOM", "OOM", 957),
    "biokg": ("OOM", "OOM", "OOM", 6095),
    "am": ("OOM", "OOM", "OOM", 8034),
}
FORMS = ("UDF", "+compile", "+reorder", "+fusion")
"""Tables 3 (ms) and 4 (MB): HGT's graph -> numbers of FORMS."""

COMPILED = System("+compile", worker.OURS, {"rewrite": False, "fuse": False})
REORDERED = System("+reorder", worker.OURS, {"fuse": False})
FUSED = System("+fusion", worker.OURS)
UDF = System("UDF", DGL)

ABOUT = "Two layers, 64 wide, 64 random features; reddit is R-MAT with a tenth of its nodes and edges."


def spec_of(options: argparse.Namespace, layer: str, graph: str) -> Spec:
    return Spec(f"udf-{layer}", TINY if options.quick else graph)


SYSTEMS = [GRAPHWEAVE, System("graphweave, not compiled", worker.RUNS_ALONE), System(DGL_UDF, DGL)]
"""The functions compiled with the model, outside graphweave.compile, and by DGL."""


def figure_5(options: argparse.Namespace) -> list[Panel]:
    """Figures 5 (time) and 6 (memory), from the same systems."""
    time = Panel("Figure 5", "inference of user-defined functions", "ms", ABOUT, "bars", "model", "graph")
    memory = Panel("Figure 6", "memory of inference", "MiB", f"{ABOUT} Peak beyond inputs.", "bars", "model", "graph")
    ratio = Panel("Figure 5, printed", "speed-up over DGL-UDF on PPI", "times", "Section 5.2.1.", rows="model")
    for layer, title in LAYERS.items():
        ratio.printed("Graphiler", title, {"ppi": SPEEDUPS[layer]})
        for graph in GRAPHS[: 1 if options.quick else None]:
            work = Measurement(options, spec_of(options, layer, graph), "infer")
            for system, answer in work.times(SYSTEMS).items():
                time.measured(system, title, work.spec.graph, answer, scale=1e3)
            _peaks(memory, work, SYSTEMS, (title, work.spec.graph))
    return [time, memory, ratio]


def _peaks(panel: Panel, work: Measurement, systems: list[System], cell: tuple[str, str]) -> None:
    for system, peak in work.peaks(systems).items():
        known = not isinstance(peak, str)
        panel.value(system, *cell, peak / 2**20 if known else None, "ok" if known else str(peak))


def figure_9(options: argparse.Namespace) -> list[Panel]:
    """Figures 9 and 10: GAT, switch by switch. The paper: 55, then 2.4, then 2.2 times faster on average."""
    time = Panel("Figure 9", "breakdown of GAT", "ms", ABOUT, "bars", "model", "graph")
    memory = Panel(
        "Figure 10", "memory breakdown of GAT", "MiB", f"{ABOUT} Peak beyond inputs.", "bars", "model", "graph"
    )
    systems = [UDF, COMPILED, REORDERED, FUSED]
    for graph in GRAPHS[: 1 if options.quick else None]:
        work = Measurement(options, spec_of(options, "gat", graph), "infer")
        for system, answer in work.times(systems).items():
            time.measured(system, "GAT", work.spec.graph, answer, scale=1e3)
        _peaks(memory, work, systems, ("GAT", work.spec.graph))
    return [time, memory]


def figure_7(options: argparse.Namespace) -> list[Panel]:
    """Figures 7 (time) and 8 (memory) of RGCN and HGT. DGL-slice is a loop over relations, DGL-batch one batch."""
    about = "One layer, 64 -> 64, synthetic graphs of the paper's sizes (Hector's table 3)."
    names = ("graphweave", *(name for peers in PEERS.values() for name in peers))
    record = relational(options, ("rgcn", "hgt"), ("infer",), names, graphs=TYPED, memory=TYPED)
    time = Panel("Figure 7", "inference of heterogeneous models", "ms", about, "bars", "model", "graph")
    memory = Panel("Figure 8", "memory of heterogeneous models", "MiB", about, "bars", "model", "graph")
    for model, graph, answers in cells_of(record, "infer"):
        time.measured(OURS, model, graph, answers["graphweave"], scale=1e3)
        for peer in PEERS:
            best = best_peer(peer, model, answers)
            if best:
                time.measured(peer, model, graph, answers[best[1]], scale=1e3)
    for pair, one in record["memory"].items():
        for name, peak in one["infer"]["peaks"].items():
            known = not isinstance(peak, str)
            memory.value(name, *pair.split(), peak / 2**20 if known else None, "ok" if known else peak)
    return [time, memory]


def table_3(options: argparse.Namespace) -> list[Panel]:
    """Tables 3 (time) and 4 (memory) of HGT. UDF: DGL running a user's functions; +fusion: graphweave."""
    about = "HGT inference, one layer, 64 -> 64, synthetic graphs of the paper's sizes (Hector's table 3)."
    record = relational(options, ("hgt",), ("infer",), ("graphweave", "dgl-udf"), graphs=TYPED, memory=TYPED)
    time = Panel("Table 3", "breakdown of HGT", "ms", about, rows="graph", columns="form")
    memory = Panel(
        "Table 4", "memory breakdown of HGT", "MiB", f"{about} Peak beyond inputs.", "table", "graph", "form"
    )
    for graph in TYPED:
        time.printed("Graphiler", graph, dict(zip(FORMS, TIMES[graph], strict=True)))
        memory.printed("Graphiler", graph, dict(zip(FORMS, PEAKS[graph], strict=True)))
    forms = {"dgl-udf": "UDF", "graphweave": "+fusion"}
    for _, graph, answers in cells_of(record, "infer"):
        for name, form in forms.items():
            missing = {"status": "needs --dgl-python"}
            time.measured("here", graph, form, answers.get(name, missing), scale=1e3)
    for pair, one in record["memory"].items():
        for name, peak in one["infer"]["peaks"].items():
            known = not isinstance(peak, str)
            memory.value("here", pair.split()[1], forms[name], peak / 2**20 if known else None, "ok" if known else peak)
    return [time, memory]


PAPER = Paper(
    "graphiler",
    "Graphiler: Optimizing Graph Neural Networks with Message Passing Data Flow Graph (MLSys 2022)",
    "AWS p3.2xlarge, one NVIDIA Tesla V100 of 16 GB, Intel Xeon E5-2686 v4",
    {"5": figure_5, "7": figure_7, "9": figure_9, "3": table_3},
    {
        "Seastar": "a system for GPUs only",
        "Tables 3 and 4, +compile and +reorder": "bench.relational has no switch for fusion; UDF and +fusion are shown",
    },
)
