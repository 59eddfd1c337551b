"""Figures 7 to 10 of Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022): time, memory, bytes moved."""

from __future__ import annotations

import argparse

from bench.papers import worker
from bench.papers.cells import OURS, Panel, Paper
from bench.papers.models import EAGER, GRAPHWEAVE, PYG, Measurement, System, dgl_of
from bench.papers.spec import Spec

TINY, TINY_POINTS = "rmat:300:2000", "points:2:100:5"

GAT = {name: Spec("gat", name, 64, (128, 128)) for name in ("cora", "citeseer", "pubmed", "reddit")}
MONET = {
    "cora": Spec("monet", "cora", 64, (16, 16), pseudo=2, kernels=3),
    "citeseer": Spec("monet", "citeseer", 64, (16, 16), pseudo=3, kernels=3),
    "pubmed": Spec("monet", "pubmed", 64, (16, 16), pseudo=3, kernels=3),
    "reddit": Spec("monet", "reddit", 64, (16, 16), pseudo=1, kernels=2),
}
EDGECONV = {
    f"k={k} batch={batch}": Spec("edgeconv", f"points:{batch}:1024:{k}", 3, (64, 64, 128, 256))
    for k in (20, 40) for batch in (32, 64)
}  # fmt: skip
MODELS = {"GAT": GAT, "MoNet": MONET, "EdgeConv": EDGECONV}

PRINTED = {
    "GAT": {"times faster": 2.07, "times less memory": 1.48, "times fewer bytes": 0.987},
    "EdgeConv": {"times faster": 1.52, "times less memory": 4.58, "times fewer bytes": 5.32},
    "MoNet": {"times faster": 1.69, "times less memory": 1.47, "times fewer bytes": 1.30},
}
"""Figure 7, section 7.2: averages over datasets against DGL. GAT's bytes grew by 1.3 %."""

ABLATIONS = {
    "GAT": Spec("gat", "reddit", 64, (256,), heads=4),
    "EdgeConv": Spec("edgeconv", "points:64:1024:40", 3, (64,)),
    "MoNet": Spec("monet", "reddit", 64, (16,), pseudo=1, kernels=2),
}
"""Section 7.3: GAT 4 heads of 64, EdgeConv k = 40, batch 64, MoNet k = 2, r = 1. Forward: one layer."""


def small(spec: Spec) -> Spec:
    """The same layers on a tiny graph."""
    graph = TINY_POINTS if spec.graph.startswith("points") else TINY
    return Spec(
        spec.layer, graph, 3 if graph == TINY_POINTS else 8, (8 * spec.heads,), spec.heads, spec.pseudo, spec.kernels
    )


def fill(
    panels: dict[str, Panel],
    options: argparse.Namespace,
    spec: Spec,
    mode: str,
    systems: list[System],
    cell: tuple[str, str],
) -> None:
    """Adds times, peaks and, for systems of graphweave, the bytes that the cost model counts."""
    work = Measurement(options, spec, mode)
    answers = work.times(systems)
    for system, answer in answers.items():
        panels["time"].measured(system, *cell, answer, scale=1e3)
    for system, peak in work.peaks([s for s in systems if answers[s.name]["status"] == "ok"]).items():
        known = not isinstance(peak, str)
        panels["memory"].value(system, *cell, peak / 2**20 if known else None, "ok" if known else str(peak))
    for system in systems:
        if system.how == worker.OURS:
            _moved(panels["bytes"], work, system, cell)


def _moved(panel: Panel, work: Measurement, system: System, cell: tuple[str, str]) -> None:
    found = work.moved(system)
    reason = found.get("status", "not counted by the cost model")
    for name, key in ((system.name, "moved"), (PYG, "eager_moved")):
        if name == PYG and system.name != OURS:
            continue
        value = found.get(key)
        panel.value(name, *cell, None if value is None else value / 2**20, "ok" if value is not None else reason)


def three(name: str, title: str, about: str, columns: str) -> dict[str, Panel]:
    bytes_about = (
        f"{about} Counted by the cost model without caches, and for PyG from the operands and results of eager "
        "PyTorch's calls. DGL's kernels are not calls of PyTorch's, and this machine has no counters of traffic."
    )
    given = {
        "time": ("ms", about),
        "memory": ("MiB", f"{about} Peak of a step beyond inputs."),
        "bytes": ("MiB", bytes_about),
    }
    return {
        what: Panel(f"{name}, {what}", title, unit, words, "bars", "model", columns)
        for what, (unit, words) in given.items()
    }


def figure_7(options: argparse.Namespace) -> list[Panel]:
    about = (
        "Training step. GAT: 2 layers of 128; MoNet: 2 layers of 16; EdgeConv: 4 layers of 64, 64, 128, 256, on random "
        "points in place of ModelNet40, the k-NN graph not counted. Features are 64 random numbers; reddit is R-MAT "
        "with a tenth of its nodes and edges."
    )
    panels = three("Figure 7", "end to end", about, "dataset")
    averages = Panel("Figure 7, printed", "averages against DGL", "times", "Section 7.2 of the paper.", rows="model")
    for model, numbers in PRINTED.items():
        averages.printed("Zhang et al.", model, dict(numbers))
    for model, datasets in MODELS.items():
        for dataset, full in list(datasets.items())[: 1 if options.quick else None]:
            spec = small(full) if options.quick else full
            fill(
                panels,
                options,
                spec,
                "train",
                [GRAPHWEAVE, EAGER, dgl_of(spec)],
                (model, spec.graph if options.quick else dataset),
            )
    return [averages, *panels.values()]


def ablation(
    options: argparse.Namespace, name: str, title: str, mode: str, models: dict[str, Spec], systems: list[System]
) -> list[Panel]:
    step = "training step" if mode == "train" else "forward pass"
    about = f"One layer as in section 7.3, {step}; reddit is R-MAT with a tenth of its nodes and edges."
    panels = three(name, title, about, "dataset")
    for model, full in list(models.items())[: 1 if options.quick else None]:
        spec = small(full) if options.quick else full
        fill(panels, options, spec, mode, systems, (model, spec.graph))
    return list(panels.values())


def figure_8(options: argparse.Namespace) -> list[Panel]:
    """The paper: 1.68 times faster, 3.06 times fewer bytes, 1.30 times less memory on average."""
    models = {"GAT": Spec("gat", "pubmed", 64, (256,), heads=4), "EdgeConv": ABLATIONS["EdgeConv"]}
    systems = [GRAPHWEAVE, System("without reorganisation", worker.OURS, {"rewrite": False})]
    return ablation(options, "Figure 8", "reorganisation of operators", "infer", models, systems)


def figure_9(options: argparse.Namespace) -> list[Panel]:
    """The paper: 1.68 times faster, 1.16 times fewer bytes (5.45 at most), 4.92 times less memory on average."""
    systems = [GRAPHWEAVE, System("without fusion", worker.OURS, {"fuse": False})]
    return ablation(options, "Figure 9", "fusion", "infer", ABLATIONS, systems)


def figure_10(options: argparse.Namespace) -> list[Panel]:
    """The paper: recomputation saves 2.21 times the memory of GAT (7.1 % slower), 1.55 times MoNet's (5.9 % faster)."""
    systems = [
        System(OURS, worker.OURS, {"recompute": "always"}),
        System("without fusion", worker.OURS, {"fuse": False, "recompute": "never"}),
        System("fusion & stashing", worker.OURS, {"recompute": "never"}),
    ]
    models = {name: ABLATIONS[name] for name in ("GAT", "MoNet")}
    return ablation(options, "Figure 10", "recomputation", "train", models, systems)


PAPER = Paper(
    "zhang",
    "Understanding GNN Computational Graph: A Coordinated Computation, IO, and Memory Perspective (MLSys 2022)",
    "one NVIDIA RTX 3090, 10-core Intel Xeon Silver 4210",
    {"7": figure_7, "8": figure_8, "9": figure_9, "10": figure_10},
    {"Figure 11": "compares two GPUs", "fuseGNN": "a peer for GPUs only"},
)
