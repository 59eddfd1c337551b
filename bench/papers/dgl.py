"""DGL's table 3 and figures 2, 4 (Wang et al., "Deep Graph Library", 2019): full-graph training, memory, kernels."""

from __future__ import annotations

from collections.abc import Callable

from bench.named_graphs import size_of
from bench.papers import price
from bench.papers.cells import Panel
from bench.papers.dgl_batches import figure_3, table_4
from bench.papers.featgraph import NAMES, kernel
from bench.papers.headlines import Headline, highest, lowest, mean, over
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, PYG, Measurement, System, dgl_of
from bench.papers.session import Gap, Paper, Session
from bench.specs import Spec

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
    ("R-GCN", "ogbn-protein"): Spec("rgcn", "weighted:13253:3956125:8", 1, (32, 32, 112)),
    ("GCMC", "ML-100K"): Spec("gcmc", "ratings:943:1682:100000:5", widths=(500, 75), kernels=2),
    ("GCMC", "ML-1M"): Spec("gcmc", "ratings:6040:3706:1000209:5", widths=(500, 75), kernels=2),
    ("GCMC", "ML-10M"): Spec("gcmc", "ratings:69878:10677:10000054:10", widths=(500, 75), kernels=2),
}
"""The models of its appendix D.1: layers, hidden widths and heads (GAT on ogbn-arxiv: 4 heads of 16), with the sizes of
table 5; those of ogbn-protein by ten."""

SMALL = {
    ("GAT", "reddit"): Spec("gat", TINY, 16, (16, 8)),
    ("R-GCN", "ogbn-protein"): Spec("rgcn", "weighted:200:2000:3", 1, (8, 8, 5)),
    ("GCMC", "ML-100K"): Spec("gcmc", "ratings:30:40:300:3", widths=(16, 8), kernels=2),
}
"""What a quick run measures in their place."""

ALWAYS = System("graphweave, least memory", "least memory")

NODES = (20_000, 40_000, 60_000)
"""Figure 2(a): numbers of nodes. Each has 20 edges on average (section 6.2)."""

CLUSTER = (50_000, 500_000)
"""Figure 2(b): nodes and edges of a batch. 256 of 15,000 clusters of OGBL-CITATION (2.9M nodes, 30.6M edges) have as
many nodes, and at most as many edges."""

NEGATIVES = (1, 4, 8)


def table_3(session: Session) -> list[Panel]:
    about = (
        "Full-graph training, one epoch. reddit is R-MAT with a tenth of its nodes and edges here, ogbn-protein with a "
        "tenth, both without real features; ogbn-arxiv has its own edges, both ways; MovieLens has its sizes, and "
        "users, items and ratings drawn at random. GraphSAGE takes the mean, where the paper summed. GAT's last layer "
        "on ogbn-arxiv joins 4 heads of 40. R-GCN has 8 relations of weighted edges and 112 results. GCMC has a row of "
        "weights for each node and rating. Features are random; an optimiser is not counted."
    )
    panel = session.panel("Table 3", "full-graph training on a CPU", "s", about, rows="model", columns="dataset")
    for (model, graph), (theirs, pyg) in TABLE_3.items():
        panel.printed(DGL, model, {graph: theirs})
        panel.printed(PYG, model, {graph: pyg})
    for (model, graph), spec in (SMALL if session.options.quick else MODELS).items():
        column = "small" if session.options.quick else graph
        if session.wants(model, column, panel, seconds=price.model(spec, "train", 3, session.options.data_dir)):
            work = Measurement(session.options, spec, "train")
            for system, answer in work.times([GRAPHWEAVE, EAGER, dgl_of(spec)]).items():
                panel.measured(system, model, column, answer)
            session.measured(panel)
    return [panel]


def figure_2(session: Session) -> list[Panel]:
    attention = session.panel(
        "Figure 2(a)", "memory of GAT on synthetic graphs", "MiB",
        "Peak memory of a training step beyond inputs, GAT of three layers, 16 wide, one head, on R-MAT graphs of 20 "
        "edges a node. The paper's curves of a GPU say that PyG takes 6.3 times the memory of DGL.",
        "lines", rows="model", columns="nodes",
    )  # fmt: skip
    links = session.panel(
        "Figure 2(b)", "memory of link prediction", "MiB",
        "Peak memory of a training step beyond inputs, GCN of three layers, 256 wide, and a dot product for each edge "
        "and each drawn edge, on an R-MAT graph of the size of a batch of the paper's (50,000 nodes, 500,000 edges). "
        "The paper drew curves of a GPU without numbers in the text.",
        "lines", rows="model", columns="drawn edges for each edge",
    )  # fmt: skip
    quick = session.options.quick
    for nodes in (300,) if quick else NODES:
        spec = Spec("gat", f"rmat:{nodes}:{20 * nodes}", 64, (16, 16, 16))
        peaks(session, attention, ("GAT", str(nodes)), spec)
    size, width = ((300, 2000), 16) if quick else (CLUSTER, 256)
    for negatives in NEGATIVES[: 1 if quick else None]:
        spec = Spec("link", "pairs:{}:{}:{}".format(*size, negatives), 16 if quick else 128, (width,) * 3)
        peaks(session, links, ("GCN", str(negatives)), spec)
    return [attention, links]


def peaks(session: Session, panel: Panel, cell: tuple[str, str], spec: Spec) -> None:
    seconds = price.model(spec, "train", 4, session.options.data_dir)
    if not session.wants(*cell, panel, what="memory", seconds=seconds):
        return
    work = Measurement(session.options, spec, "train")
    for system, peak in work.peaks([GRAPHWEAVE, ALWAYS, EAGER, dgl_of(spec)]).items():
        panel.peak(system, *cell, peak)
    session.measured(panel)


def figure_4(session: Session) -> list[Panel]:
    """Operations count a multiplication and an addition for each edge and feature (SpMM: an addition)."""
    about = (
        "Throughput of sum aggregation (SpMM) and of the dot product of both ends (SDDMM) over feature length, one "
        "head: on a k-nearest-neighbour graph (uniform degrees; a uniform random graph here) and on R-MAT with a tenth "
        "of reddit's nodes and edges. The paper drew GPU curves for each parallel strategy, with weighted sums and 8 "
        "heads, without numbers in the text."
    )
    options, panels = session.options, []
    graphs, lengths = ((TINY,), (16,)) if options.quick else (("uniform-99.5", "reddit"), (16, 32, 64, 128))
    for case, name, flops in (("gcn", "SpMM", 1), ("dot", "SDDMM", 2)):
        panel = session.panel(f"Figure 4, {name}", f"throughput of {name}", "GFLOPS", about, "lines", rows="graph",
                              columns="length")  # fmt: skip
        for graph in graphs:
            for length in lengths:
                seconds = price.kernel(case, graph, length, options.data_dir)
                if session.wants(graph, str(length), panel, seconds=seconds):
                    work = flops * size_of(graph, options.data_dir)[1] * length
                    for system, answer in kernel(options, case, graph, length, options.threads).items():
                        rate = work / answer["median"] / 1e9 if "median" in answer else None
                        panel.value(NAMES[system], graph, str(length), rate, answer["status"])
                    session.measured(panel)
        panels.append(panel)
    return panels


PANELS: dict[str, Callable[[Session], list[Panel]]] = {
    "table-3": table_3, "table-4": table_4, "2": figure_2, "3": figure_3, "4": figure_4,
}  # fmt: skip

PAPER = Paper(
    "dgl",
    "Deep Graph Library: A Graph-Centric, Highly-Performant Package for Graph Neural Networks (2019)",
    "CPU: AWS m5n.16xlarge, 64 VCPUs, 256 GB; GPU: p3.2xlarge, one V100 of 16 GB",
    PANELS,
    (
        Gap("Table 3, GPU columns", "a GPU", "They are training on a GPU; the CPU's columns are above."),
        Gap("Table 4 as printed", "a GPU", "The paper trains on a GPU; here all systems train on a CPU."),
        Gap("Real reddit, ogbn-protein, ogbn-product and ogbl graphs", "data that nobody may redistribute",
            "Graphs of their sizes, or of a tenth of them, are drawn."),
    ),
    (
        Headline("full-graph training on a CPU faster than PyG, at most", 64.0, highest(over("Table 3", PYG))),
        Headline("full-graph training on a CPU faster than PyG, worst case", 1.9, lowest(over("Table 3", PYG))),
        Headline("GAT on sampled clusters faster than PyG, as printed on a GPU", 58.36 / 14.50,
                 mean(over("Table 4", PYG, rows=["GAT w/ CS"], columns=["ogbn-product"]))),
        Headline("less memory than PyG, GAT (figure 2a)", 6.3, mean(over("Figure 2(a)", PYG))),
        Headline("overhead on the smallest graph: speed over PyG (figure 3)", 0.83,
                 mean(over("Figure 3", PYG, columns=["100"]))),
    ),
    {
        "Figure 2(a), DGL": (
            "graphweave's peak has the formats of the graph in it, which DGL made before the measured step. With "
            '`recompute="always"` it is below DGL\'s all the same, as the column of least memory shows.'
        ),
        "Figure 2(b), DGL": (
            "With one drawn edge, 54 MiB of graphweave's 345 are formats and index tensors of the graph, which DGL "
            "made before the measured step, and 24 MiB are the sums of 128 features that it takes in front of the "
            "first product, with half the additions; DGL multiplies first. What is left is 8 % above DGL's. With "
            "four, the difference was not taken apart."
        ),
    },
)  # fmt: skip
