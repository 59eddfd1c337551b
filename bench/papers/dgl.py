"""DGL's table 3 and figures 2(a), 4 (Wang et al., "Deep Graph Library", 2019): full-graph training, memory, kernels."""

from __future__ import annotations

import argparse

from bench.papers import worker
from bench.papers.cells import Panel, Paper
from bench.papers.featgraph import NAMES, kernel
from bench.papers.graphs import edges_of
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, PYG, Measurement, System, dgl_of
from bench.papers.spec import Spec

TINY = "rmat:300:2000"

TABLE_3: dict[tuple[str, str], tuple[float | str, float | str]] = {
    ("SAGE", "reddit"): (13.80, 99.47),
    ("GAT", "reddit"): (9.15, "OOM"),
    ("SAGE", "ogbn-arxiv"): (3.31, 8.389),
    ("GAT", "ogbn-arxiv"): (1.237, 43.21),
    ("R-GCN", "ogbn-protein"): (26.31, 373.8),
    ("GCMC", "ML-100K"): (0.064, 1.569),
    ("GCMC", "ML-1M"): (0.351, 40.47),
    ("GCMC", "ML-10M"): (5.08, "OOM"),
}
"""Model and dataset -> seconds of DGL and PyG on the paper's CPU."""

MODELS = {
    ("SAGE", "reddit"): Spec("sage", "reddit", 602, (16, 41)),
    ("GAT", "reddit"): Spec("gat", "reddit", 602, (16, 16, 41)),
    ("SAGE", "ogbn-arxiv"): Spec("sage", "arxiv", 128, (256, 256, 40)),
    ("GAT", "ogbn-arxiv"): Spec("gat", "arxiv", 128, (64, 64, 160), heads=4),
}
"""The models of its appendix D.1: layers, hidden widths and heads (GAT on ogbn-arxiv: 4 heads of 16)."""

ALWAYS = System("graphweave, least memory", worker.OURS, {"recompute": "always"})

NODES = (20_000, 40_000, 60_000)
"""Figure 2(a): numbers of nodes. The text does not say how many edges a node has; it has 20 here."""


def table_3(options: argparse.Namespace) -> list[Panel]:
    about = (
        "Full-graph training, one epoch. reddit is R-MAT with a tenth of its nodes and edges here; ogbn-arxiv has its "
        "own edges, both ways. GraphSAGE takes the mean, where the paper summed. GAT's last layer on ogbn-arxiv joins "
        "4 heads of 40. Features are random; an optimiser is not counted. R-GCN with weighted edges on ogbn-protein "
        "and GCMC on MovieLens are not measured: their graphs are not in shared/data."
    )
    panel = Panel("Table 3", "full-graph training on a CPU", "s", about, rows="model", columns="dataset")
    for (model, graph), (theirs, pyg) in TABLE_3.items():
        panel.printed(DGL, model, {graph: theirs})
        panel.printed(PYG, model, {graph: pyg})
    for (model, graph), full in MODELS.items():
        if options.quick and (model, graph) != ("GAT", "reddit"):
            continue
        spec = Spec(full.layer, TINY, 16, (16, 8), full.heads) if options.quick else full
        for system, answer in Measurement(options, spec, "train").times([GRAPHWEAVE, EAGER, dgl_of(spec)]).items():
            panel.measured(system, model, TINY if options.quick else graph, answer)
    return [panel]


def figure_2(options: argparse.Namespace) -> list[Panel]:
    about = (
        "Peak memory of a training step beyond inputs, GAT of three layers, 16 wide, one head, on R-MAT graphs of 20 "
        "edges a node. The paper drew curves for a GPU, without numbers in the text."
    )
    panel = Panel("Figure 2(a)", "memory of GAT on synthetic graphs", "MiB", about, "lines", "model", "nodes")
    for nodes in (300,) if options.quick else NODES:
        spec = Spec("gat", f"rmat:{nodes}:{20 * nodes}", 64, (16, 16, 16))
        for system, peak in (
            Measurement(options, spec, "train").peaks([GRAPHWEAVE, ALWAYS, EAGER, dgl_of(spec)]).items()
        ):
            if isinstance(peak, str):
                panel.value(system, "GAT", str(nodes), None, peak)
            else:
                panel.value(system, "GAT", str(nodes), peak / 2**20)
    return [panel]


def figure_4(options: argparse.Namespace) -> list[Panel]:
    """Operations count a multiplication and an addition for each edge and feature (SpMM: an addition)."""
    about = (
        "Throughput of sum aggregation (SpMM) and of the dot product of both ends (SDDMM) over feature length: on a "
        "k-nearest-neighbour graph (uniform degrees; a uniform random graph here) and on R-MAT with a tenth of "
        "reddit's nodes and edges. The paper drew GPU curves for each parallel strategy, without numbers in the text."
    )
    panels = []
    graphs, lengths = ((TINY,), (16,)) if options.quick else (("uniform-99.5", "reddit"), (16, 32, 64, 128))
    for case, name, flops in (("gcn", "SpMM", 1), ("dot", "SDDMM", 2)):
        panel = Panel(f"Figure 4, {name}", f"throughput of {name}", "GFLOPS", about, "lines", "graph", "length")
        for graph in graphs:
            for length in lengths:
                answers = kernel(options, case, graph, length, options.threads)
                edges = _edges(options, graph)
                for system, answer in answers.items():
                    rate = flops * edges * length / answer["median"] / 1e9 if "median" in answer else None
                    panel.value(NAMES[system], graph, str(length), rate, answer["status"])
        panels.append(panel)
    return panels


def _edges(options: argparse.Namespace, graph: str) -> int:
    return int(edges_of(graph, options.data_dir)[0].size(1))


PAPER = Paper(
    "dgl",
    "Deep Graph Library: A Graph-Centric, Highly-Performant Package for Graph Neural Networks (2019)",
    "CPU: AWS m5n.16xlarge, 64 VCPUs, 256 GB; GPU: p3.2xlarge, one V100 of 16 GB",
    {"3": table_3, "2": figure_2, "4": figure_4},
    {
        "Table 4": "training on sampled batches is not measured yet",
        "Figure 2(b)": "memory of training on sampled clusters is not measured yet",
        "Figure 3": "the overhead of frameworks, on sampled batches, is not measured yet",
        "Table 3, R-GCN and GCMC": "ogbn-protein with 8 features of edges, and MovieLens, are not in shared/data",
        "Table 3, GPU columns": "GPU training",
    },
)
