"""What a user would pick today: PyG with its native libraries, torch.compile, DGL; PyG's own protocol, and iSpLib's.

PyG's protocol is that of its tests of `torch.compile`: 10,000 nodes, 200,000 edges, 64 features. iSpLib (Anik et al.,
"iSpLib: A Library for Accelerating Graph Neural Networks using Auto-tuned Sparse Operations", WWW 2024 companion)
trains models of two layers on full graphs on a CPU, and compares with PyG.
"""

from __future__ import annotations

from importlib.metadata import distributions

from bench.common import machine
from bench.papers import price
from bench.papers.cells import Panel
from bench.papers.headlines import Headline, highest, mean, over
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, PYG, Measurement, System
from bench.papers.session import Gap, Paper, Session
from bench.spec_peers import NATIVE as FOLDER
from bench.specs import Spec

NATIVE = System("PyG, native", "pyg-native")
COMPILED, TUNED = System("torch.compile", "inductor"), System("torch.compile, max-autotune", "inductor-autotune")
PLAIN = System("graphweave by torch.compile", "plain")
SYSTEMS = [GRAPHWEAVE, PLAIN, EAGER, NATIVE, COMPILED, TUNED, System(DGL, "dgl")]

TINY = "rmat:300:2000"

PROTOCOL = {
    layer.upper(): Spec(layer, "rmat:10000:200000", 64, (64, 64), heads=4 if layer == "gat" else 1)
    for layer in ("gcn", "sage", "gin", "gat")
}

LIKELY = {
    (layer.upper(), graph): Spec(layer, graph, 64, (64, 64), heads=4 if layer == "gat" else 1)
    for layer in ("gcn", "sage", "gin", "gat") for graph in ("pubmed", "arxiv", "reddit")
}  # fmt: skip

WHOLE = "rmat:232965:114615892"
ISPLIB = {
    (f"{layer.upper()}, {width} wide", graph): Spec(layer, name, 602, (width, 41))
    for graph, name in (("reddit, a tenth", "reddit"), ("reddit, whole", WHOLE))
    for layer in ("gcn", "sage", "gin") for width in (16, 128)
}  # fmt: skip


def _times(session: Session, panel: Panel, cell: tuple[str, str], spec: Spec, systems: list[System], mode: str) -> None:
    seconds = price.model(spec, mode, len(systems), session.options.data_dir)
    if not session.wants(*cell, panel, seconds=seconds):
        return
    for name, answer in Measurement(session.options, spec, mode).times(systems).items():
        panel.measured(name, *cell, answer, scale=1e3)
    here = machine()
    session.measured(panel, machine={**here, "versions": {**here["versions"], **native_versions()}})


def native_versions() -> dict[str, str]:
    """The native libraries of PyG that its peer has, with their versions."""
    return {one.metadata["Name"]: one.version for one in distributions(path=[str(FOLDER)])}


def protocol(session: Session) -> list[Panel]:
    about = (
        "PyG's own protocol for `torch.compile`: 10,000 nodes, 200,000 edges, 64 features; here two layers, 64 wide, "
        "with the loss inside. PyG, native: with its native libraries, whose versions stand below, and edges as a "
        "SparseTensor, made before, for GCN, GraphSAGE and GIN. torch.compile is of PyG's layers, with dynamic=False."
    )
    panels = []
    for mode, title in (("train", "training step"), ("infer", "inference")):
        panel = session.panel(
            f"PyG's protocol, {mode}", f"{title} of PyG's protocol", "ms", about, "bars", rows="model", columns="graph"
        )
        for model, full in list(PROTOCOL.items())[: 1 if session.options.quick else None]:
            spec = Spec("gcn", TINY, 8, (8, 8)) if session.options.quick else full
            _times(session, panel, (model, "10k nodes"), spec, SYSTEMS, mode)
        panels.append(panel)
    return panels


def likely(session: Session) -> list[Panel]:
    about = (
        "Training step of two layers, 64 wide, with the loss; reddit is R-MAT with a tenth of its nodes and edges. The "
        "systems are those of PyG's protocol."
    )
    panel = session.panel("Graphs", "training on graphs of several sizes", "ms", about, "bars", rows="model",
                          columns="graph")  # fmt: skip
    for cell, full in list(LIKELY.items())[: 1 if session.options.quick else None]:
        spec = Spec("gcn", TINY, 8, (8, 8)) if session.options.quick else full
        _times(session, panel, cell, spec, SYSTEMS, "train")
    return [panel]


def isplib(session: Session) -> list[Panel]:
    about = (
        "Full-graph training of two layers, 602 features, 41 classes; R-MAT of reddit's size, or of a tenth of it; no "
        "optimiser; the hidden widths are chosen here. iSpLib reports up to 27 times the speed of PyG on the CPU of a "
        "server, by tuned sparse products and by what it keeps for the backward. Here PyG is eager, and PyG, native, "
        "has a SparseTensor that keeps both directions."
    )
    panel = session.panel("iSpLib's protocol", "a step of full-graph training", "ms", about, "bars", rows="model",
                          columns="graph")  # fmt: skip
    systems = [GRAPHWEAVE, EAGER, NATIVE, System(DGL, "dgl")]
    for cell, full in list(ISPLIB.items())[: 1 if session.options.quick else None]:
        spec = Spec("gcn", TINY, 8, (8, 8)) if session.options.quick else full
        _times(session, panel, cell, spec, systems, "train")
    return [panel]


PAPER = Paper(
    "today",
    "What a user would pick today",
    "none: all numbers but iSpLib's headline were measured here",
    {"protocol": protocol, "graphs": likely, "isplib": isplib},
    (
        Gap("iSpLib itself", "a system that does not run here", "Its number is its paper's."),
        Gap("Amazon, Yelp and OGBN graphs of iSpLib's tables", "data that nobody may redistribute",
            "Reddit's size stands for them."),
    ),
    (
        Headline("training faster than PyG, at most (iSpLib, GCN, reddit)", 27.0,
                 highest(over("iSpLib's protocol", PYG))),
        Headline("training faster than PyG with its native libraries, on average", 1.0,
                 mean(over("Graphs", NATIVE.name))),
        Headline("training faster than torch.compile(PyG) at its best, on average", 1.0,
                 mean(over("Graphs", COMPILED.name, TUNED.name))),
    ),
)  # fmt: skip
