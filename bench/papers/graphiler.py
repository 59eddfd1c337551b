"""Graphiler's figures 5 to 10 and tables 3, 4 (Xie et al., MLSys 2022): user-defined functions, inference.

GCN, GAT and C-GAT are the layers of bench/udf_layers.py, written as its figure 1 prints GAT. RGCN and HGT are those of
bench/relational_models.py, whose message functions copy the weight of each edge's type, as its figure 1 prints HGT.
"""

from __future__ import annotations

from bench.papers import price
from bench.papers.cells import OURS, Panel
from bench.papers.headlines import Headline, highest, lowest, mean, over
from bench.papers.hector import add_peer, answers_of, peaks, peaks_of, relational
from bench.papers.models import DGL_UDF, EAGER, GRAPHWEAVE, Measurement, System
from bench.papers.session import Gap, Paper, Session
from bench.relational_tables import PEERS
from bench.specs import Spec

GRAPHS = ("pubmed", "ppi", "arxiv", "reddit")
TYPED = ("mutag", "bgs", "biokg", "am")
LAYERS = {"gcn": "GCN", "gat": "GAT", "cgat": "C-GAT"}
TINY = "rmat:200:800"

SPEEDUPS = {"gcn": 407.0, "gat": 604.0, "cgat": 145.0}
"""Section 5.2.1: speed-ups over DGL-UDF on PPI."""

RGCN = {"DGL-UDF": 78.0, "DGL-slice": 21.0, "PyG-slice": 16.0, "DGL-batch": 3.6, "PyG-batch": 4.2}
"""Section 5.2.2: average speed-ups of R-GCN."""

TIMES: dict[str, tuple[float | str, ...]] = {
    "mutag": (431, 88, 88, 9.5),
    "bgs": ("OOM", "OOM", "OOM", 26.5),
    "biokg": ("OOM", "OOM", "OOM", 75.2),
    "am": ("OOM", "OOM", "OOM", 123),
}
PEAKS: dict[str, tuple[float | str, ...]] = {
    "mutag": (11822, 7087, 7087, 220),
    "bgs": ("OOM", "OOM", "OOM", 957),
    "biokg": ("OOM", "OOM", "OOM", 6095),
    "am": ("OOM", "OOM", "OOM", 8034),
}
FORMS = {"dgl-udf": "UDF", "gw-compile": "+compile", "gw-reorder": "+reorder", "graphweave": "+fusion"}
"""Tables 3 (ms) and 4 (MB), HGT: system of bench.relational -> the paper's form, in the order of its numbers."""

COMPILED, REORDERED = System("+compile", "neither"), System("+reorder", "no fusion")
FUSED, UDF = System("+fusion", "graphweave"), System("UDF", "dgl-udf")

ABOUT = "Two layers, 64 wide, 64 random features; reddit is R-MAT with a tenth of its nodes and edges."

PEER_NAMES = ("pyg-fast-rgcn", "pyg-rgcn", "pyg-hgt", "pyg-hetero", "bmm", "dgl", "dgl-hetero", "dgl-udf")


def spec_of(session: Session, layer: str, graph: str) -> Spec:
    return Spec(f"udf-{layer}", TINY if session.options.quick else graph, heads=4)


def systems_of(layer: str) -> list[System]:
    """The functions compiled, run outside graphweave.compile, and run by DGL; then the layers of PyG and DGL.

    C-GAT has no layer in DGL; in PyG it is written with scatters, since no layer normalises over pairs of edges.
    """
    own = [GRAPHWEAVE, System("graphweave, not compiled", "udf-eager"), System(DGL_UDF, "dgl-udf")]
    own.append(System("PyG primitives", EAGER.peer))
    return own if layer == "cgat" else [*own, System("DGL primitives", "dgl")]


def figure_5(session: Session) -> list[Panel]:
    """Figures 5 (time) and 6 (memory), from the same systems."""
    time = session.panel("Figure 5", "inference of user-defined functions", "ms", ABOUT, "bars", rows="model",
                         columns="graph")  # fmt: skip
    memory = session.panel("Figure 6", "memory of inference", "MiB", f"{ABOUT} Peak beyond inputs.", "bars",
                           rows="model", columns="graph")  # fmt: skip
    ratio = session.panel("Figure 5, printed", "speed-up over DGL-UDF on PPI", "times", "Section 5.2.1 of the paper.",
                          rows="model", columns="graph", source=time)  # fmt: skip
    for layer, title in LAYERS.items():
        ratio.printed("Graphiler", title, {"ppi": SPEEDUPS[layer]})
        for graph in GRAPHS[: 1 if session.options.quick else None]:
            measure(session, time, memory, spec_of(session, layer, graph), systems_of(layer), title)
        udf, own = (time.find(title, "ppi", name, paper=False) for name in (DGL_UDF, OURS))
        if udf is not None and own is not None and udf.value and own.value:
            ratio.value(OURS, title, "ppi", udf.value / own.value)
    return [time, memory, ratio]


def measure(session: Session, time: Panel, memory: Panel, spec: Spec, systems: list[System], row: str) -> None:
    """One cell of both panels, if the session wants it."""
    work = Measurement(session.options, spec, "infer")
    seconds = price.model(spec, "infer", len(systems), session.options.data_dir)
    if session.wants(row, spec.graph, time, seconds=seconds):
        for name, answer in work.times(systems).items():
            time.measured(name, row, spec.graph, answer, scale=1e3)
        session.measured(time)
    if session.wants(row, spec.graph, memory, what="memory", seconds=seconds):
        for name, peak in work.peaks(systems).items():
            memory.peak(name, row, spec.graph, peak)
        session.measured(memory)


def figure_9(session: Session) -> list[Panel]:
    """Figures 9 and 10: GAT, switch by switch."""
    about = (
        f"{ABOUT} UDF: DGL runs the functions. +compile: graphweave without rewriting and fusion; +reorder: without "
        "fusion; +fusion: with all."
    )
    said = "In the paper each is 55, 2.4 and 2.2 times as fast as the one before, on average."
    time = session.panel("Figure 9", "breakdown of GAT", "ms", f"{about} {said}", "bars", rows="model",
                         columns="graph")  # fmt: skip
    memory = session.panel("Figure 10", "memory breakdown of GAT", "MiB", f"{about} Peak beyond inputs.", "bars",
                           rows="model", columns="graph")  # fmt: skip
    for graph in GRAPHS[: 1 if session.options.quick else None]:
        systems = [UDF, COMPILED, REORDERED, FUSED]
        measure(session, time, memory, spec_of(session, "gat", graph), systems, "GAT")
    return [time, memory]


def figure_7(session: Session) -> list[Panel]:
    """Figures 7 (time) and 8 (memory) of RGCN and HGT."""
    about = (
        "One layer, 64 -> 64, synthetic graphs of the paper's sizes (Hector's table 3). PyG and DGL: the fastest of "
        "their layers, of slices (a loop over relations) and batches (one product for all)."
    )
    said = ", ".join(f"{name} {times:g}" for name, times in RGCN.items())
    time = session.panel(
        "Figure 7", "inference of heterogeneous models", "ms",
        f"{about} The paper's average speed-ups of R-GCN: {said}.", "bars", rows="model", columns="graph",
    )  # fmt: skip
    memory = session.panel("Figure 8", "memory of heterogeneous models", "MiB", f"{about} Peak beyond inputs.", "bars",
                           rows="model", columns="graph")  # fmt: skip
    systems = (OURS, *PEER_NAMES)
    for graph in ("tiny",) if session.options.quick else TYPED:
        for model in ("rgcn", "hgt"):
            seconds = price.relational(graph, 64, 1, 5, ("infer",))
            if session.wants(model, graph, time, seconds=seconds):
                record = relational(session.options, model, graph, ("infer",), systems)
                answers = answers_of(record, "infer")
                time.measured(OURS, model, graph, answers[OURS], scale=1e3)
                for peer in PEERS:
                    add_peer(time, peer, model, graph, answers)
                session.measured(time, machine=record["machine"])
            if session.wants(model, graph, memory, what="memory", seconds=2 * seconds):
                for name, peak in peaks(session.options, model, graph, "infer", systems).items():
                    memory.peak(name, model, graph, peak)
                session.measured(memory)
    return [time, memory]


def table_3(session: Session) -> list[Panel]:
    """Tables 3 (time) and 4 (memory) of HGT."""
    about = (
        "HGT inference, one layer, 64 -> 64, synthetic graphs of the paper's sizes (Hector's table 3). UDF: DGL runs a "
        "user's functions. +compile: graphweave without rewriting, compaction, reordering and fusion; +reorder: "
        "without fusion; +fusion: with all."
    )
    time = session.panel("Table 3", "breakdown of HGT", "ms", about, rows="graph", columns="form")
    memory = session.panel("Table 4", "memory breakdown of HGT", "MiB", f"{about} Peak beyond inputs; the paper: MB.",
                           rows="graph", columns="form")  # fmt: skip
    for graph in TYPED:
        time.printed("Graphiler", graph, dict(zip(FORMS.values(), TIMES[graph], strict=True)))
        memory.printed("Graphiler", graph, dict(zip(FORMS.values(), PEAKS[graph], strict=True)))
    for graph in ("tiny",) if session.options.quick else TYPED:
        seconds = 2 * price.relational(graph, 64, 1, 0, ("infer",))
        names = [
            name for name in FORMS if session.wants(graph, FORMS[name], time, memory, seconds=seconds, together=graph)
        ]
        if not names:
            continue
        record = relational(session.options, "hgt", graph, ("infer",), names, memory=True)
        answers, peak = answers_of(record, "infer"), peaks_of(record, "infer")
        for name in names:
            system = DGL_UDF if name.startswith("dgl") else OURS
            time.measured(system, graph, FORMS[name], answers[name], scale=1e3)
            memory.peak(system, graph, FORMS[name], peak[name])
        session.measured(time, memory)
    return [time, memory]


PAPER = Paper(
    "graphiler",
    "Graphiler: Optimizing Graph Neural Networks with Message Passing Data Flow Graph (MLSys 2022)",
    "AWS p3.2xlarge, one NVIDIA Tesla V100 of 16 GB, Intel Xeon E5-2686 v4",
    {"5": figure_5, "7": figure_7, "9": figure_9, "3": table_3},
    (Gap("Seastar", "a GPU", "The system has no kernels for a CPU."),),
    (
        *(
            Headline(f"faster than DGL's user-defined functions on PPI, {title}", SPEEDUPS[layer],
                     mean(over("Figure 5", DGL_UDF, rows=[title], columns=["ppi"])))
            for layer, title in LAYERS.items()
        ),
        Headline("as fast as DGL's own layers, worst case of GCN and GAT", 1.0,
                 lowest(over("Figure 5", "DGL primitives"))),
        Headline("faster than user-defined functions, R-GCN on average (figure 7)", RGCN["DGL-UDF"],
                 mean(over("Figure 7", "DGL UDF", rows=["rgcn"]))),
        Headline("faster than PyG's best layer, R-GCN on average (figure 7)", RGCN["PyG-batch"],
                 mean(over("Figure 7", "best PyG", rows=["rgcn"]))),
        Headline("faster than DGL's best layer, R-GCN on average (figure 7)", RGCN["DGL-batch"],
                 mean(over("Figure 7", "best DGL", rows=["rgcn"]))),
        Headline("faster than the best other system on typed graphs, at most", 7.9,
                 highest(over("Figure 7", *PEERS))),
        Headline("faster by fusion, GAT on average (figure 9)", 2.2, mean(over("Figure 9", "+reorder", own="+fusion"))),
    ),
    {
        "Figure 6, DGL primitives": (
            "On reddit there are 490 edges for each node, so the formats of the graph, which are made and counted in "
            "graphweave's measured step, take several times the bytes of the features. DGL's were made before."
        ),
    },
)  # fmt: skip
