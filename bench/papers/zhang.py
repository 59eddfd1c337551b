"""Figures 7 to 11 of Zhang et al., "Understanding GNN Computational Graph" (MLSys 2022): time, memory, bytes moved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.papers import price
from bench.papers.cells import OURS, Panel
from bench.papers.headlines import Headline, highest, mean, over
from bench.papers.models import DGL, EAGER, GRAPHWEAVE, PYG, Measurement, System, dgl_of
from bench.papers.session import Gap, Paper, Session
from bench.spec_peers import WITHIN
from bench.specs import Spec

BUDGETED = System("graphweave, a third", WITHIN)

TINY, TINY_POINTS = "rmat:300:2000", "points:2:100:5"

GAT = {name: Spec("gat", name, 64, (128, 128)) for name in ("cora", "citeseer", "pubmed", "reddit")}
MONET = {
    "cora": Spec("monet", "cora", 64, (16, 16), pseudo=2, kernels=3),
    "citeseer": Spec("monet", "citeseer", 64, (16, 16), pseudo=3, kernels=3),
    "pubmed": Spec("monet", "pubmed", 64, (16, 16), pseudo=3, kernels=3),
    "reddit": Spec("monet", "reddit", 64, (16, 16), pseudo=1, kernels=2),
    "reddit, whole": Spec("monet", "rmat:232965:114615892", 64, (16, 16), pseudo=1, kernels=2),
}
EDGECONV = {
    f"k={k} batch={batch}": Spec("edgeconv", f"points:{batch}:1024:{k}", 3, (64, 64, 128, 256))
    for k in (20, 40) for batch in (32, 64)
}  # fmt: skip
SEARCHED = {name: replace(spec, layer="edgeconv-knn") for name, spec in EDGECONV.items()}
MODELS = {"GAT": GAT, "MoNet": MONET, "EdgeConv": EDGECONV, "EdgeConv, k-NN": SEARCHED}

PRINTED = {
    "GAT": {"times faster": 2.07, "times less memory": 1.48, "times fewer bytes": 1 / 1.013},
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
    return replace(spec, graph=graph, inputs=3 if graph == TINY_POINTS else 8, widths=(8 * spec.heads,))


Three = dict[str, Panel]
"""The panels of time, memory and bytes."""


def three(session: Session, name: str, title: str, about: str) -> Three:
    counted = (
        f"{about} Counted without caches: of graphweave by its cost model, of PyG and DGL call by call, from operands "
        "and results; the cost model counts no program without fusion. A kernel of DGL reads two indices and a row of "
        "each operand for each edge "
        "(bench/papers/dgl_bytes.py). This machine has no counters of traffic."
    )
    given = {
        "time": ("ms", about),
        "memory": ("MiB", f"{about} Peak of a step beyond inputs."),
        "bytes": ("MiB", counted),
    }
    return {
        what: session.panel(f"{name}, {what}", title, unit, words, "bars", rows="model", columns="dataset")
        for what, (unit, words) in given.items()
    }


def fill(session: Session, panels: Three, spec: Spec, mode: str, systems: list[System], cell: tuple[str, str]) -> None:
    """Adds times, peaks and bytes, if the session wants them."""
    work = Measurement(session.options, spec, mode)
    seconds = price.model(spec, mode, len(systems), session.options.data_dir)
    if session.wants(*cell, panels["time"], seconds=seconds):
        for name, answer in work.times(systems).items():
            panels["time"].measured(name, *cell, answer, scale=1e3)
        session.measured(panels["time"])
    if session.wants(*cell, panels["memory"], panels["bytes"], what="memory", seconds=2 * seconds):
        for name, peak in work.peaks(systems).items():
            panels["memory"].peak(name, *cell, peak)
        for name, found in work.moved(systems).items():
            _moved(panels["bytes"], name, {"status": found} if isinstance(found, str) else found, cell)
        session.measured(panels["memory"], panels["bytes"])


def _moved(panel: Panel, system: str, found: Mapping[str, Any], cell: tuple[str, str]) -> None:
    """Adds the bytes of a system. Those of eager PyG come with graphweave's, whose capture has its calls."""
    for name, key in ((system, "moved"), *([(PYG, "eager_moved")] if system == OURS else [])):
        value, reason = found.get(key), found.get("status", "not counted")
        panel.value(name, *cell, None if value is None else value / 2**20, "ok" if value is not None else reason)


def figure_7(session: Session) -> list[Panel]:
    about = (
        "Training step. GAT: 2 layers of 128; MoNet: 2 layers of 16; EdgeConv: 4 layers of 64, 64, 128, 256, on random "
        "points in place of ModelNet40. EdgeConv counts no search for neighbours; EdgeConv, k-NN has one in each step: "
        "graphweave's for itself and for PyG, whose own needs torch_cluster, and a k-d tree for DGL. Features are 64 "
        "random numbers, those of points are their coordinates; reddit is R-MAT "
        "with a tenth of its nodes and edges, or with all of them."
    )
    quick = session.options.quick
    averages = session.panel("Figure 7, printed", "averages against DGL", "times", "Section 7.2 of the paper.",
                             rows="model")  # fmt: skip
    for model, numbers in PRINTED.items():
        averages.printed("Zhang et al.", model, dict(numbers))
    panels = three(session, "Figure 7", "end to end", about)
    for model, datasets in MODELS.items():
        for dataset, full in list(datasets.items())[: 1 if quick else None]:
            spec = small(full) if quick else full
            systems = [GRAPHWEAVE, EAGER, dgl_of(spec)]
            fill(session, panels, spec, "train", systems, (model, spec.graph if quick else dataset))
    return [averages, *panels.values()]


def ablation(
    session: Session, name: str, title: str, mode: str, models: dict[str, Spec], systems: list[System], paper: str
) -> list[Panel]:
    step = "training step" if mode == "train" else "forward pass"
    graph = "reddit is R-MAT with a tenth of its nodes and edges"
    about = f"One layer as in section 7.3, {step}; {graph}. In the paper, {paper}"
    quick = session.options.quick
    panels = three(session, name, title, about)
    for model, full in list(models.items())[: 1 if quick else None]:
        spec = small(full) if quick else full
        fill(session, panels, spec, mode, systems, (model, spec.graph))
    return list(panels.values())


def figure_8(session: Session) -> list[Panel]:
    models = {"GAT": Spec("gat-concatenated", "pubmed", 64, (256,), heads=4), "EdgeConv": ABLATIONS["EdgeConv"]}
    systems = [GRAPHWEAVE, System("without reorganisation", "no rewriting")]
    said = (
        "reorganisation is 1.68 times faster, moves 3.06 times fewer bytes and takes 1.30 times less memory. GAT is "
        "written with the attention's product on edges, which PyG's own layer avoids by hand."
    )
    return ablation(session, "Figure 8", "reorganisation of operators", "infer", models, systems, said)


def figure_9(session: Session) -> list[Panel]:
    systems = [GRAPHWEAVE, System("without fusion", "no fusion")]
    said = "fusion is 1.68 times faster, moves 1.16 times fewer bytes (5.45 at most) and takes 4.92 times less memory."
    return ablation(session, "Figure 9", "fusion", "infer", ABLATIONS, systems, said)


def figure_10(session: Session) -> list[Panel]:
    systems = [
        System(OURS, "least memory"),
        System("without fusion", "no fusion, stashing"),
        System("fusion and stashing", "stashing"),
    ]
    models = {name: ABLATIONS[name] for name in ("GAT", "MoNet")}
    said = (
        "recomputation takes 2.21 times less memory for GAT (7.1 % slower), 1.55 times less for MoNet (5.9 % faster)."
    )
    return ablation(session, "Figure 10", "recomputation", "train", models, systems, said)


SMALLER = {
    ("GAT", "reddit"): ABLATIONS["GAT"],
    ("GAT", "reddit, a fortieth"): replace(ABLATIONS["GAT"], graph="rmat:5800:2870000"),
    ("EdgeConv", "k=40 batch=64"): EDGECONV["k=40 batch=64"],
    ("EdgeConv", "k=40 batch=16"): replace(EDGECONV["k=40 batch=64"], graph="points:16:1024:40"),
    ("MoNet", "reddit, whole"): MONET["reddit, whole"],
    ("MoNet", "reddit"): ABLATIONS["MoNet"],
}
"""Figure 11: the models of section 7.3, and the same on graphs so small that PyG can train them here."""

DEVICE, SHARE = 24 * 2**30, 3
"""Bytes of the paper's larger device, and how many times those of the smaller one they are."""


def figure_11(session: Session) -> list[Panel]:
    about = (
        "Training step of the models of section 7.3. PyG is eager; graphweave has no budget, or a third of what PyG "
        'takes, by options={"memory": ...}; where PyG does not fit here, it is the 8 GB of the smaller of the paper\'s '
        "devices, of which the larger has 24. In the paper, EdgeConv on 8 GB is 1.17 times "
        "as fast as DGL on 24 GB, with 7.73 times less memory."
    )
    options, quick = session.options, session.options.quick
    memory = session.panel(
        "Figure 11, memory", "a third of the memory", "MiB", f"{about} Peak of a step beyond inputs.", rows="model",
        columns="dataset",
    )  # fmt: skip
    budgets = session.panel("Figure 11, budget", "the budget", "MiB", about, rows="model", columns="dataset")
    time = session.panel("Figure 11, time", "time with a third of the memory", "ms", about, rows="model",
                         columns="dataset")  # fmt: skip
    for (model, dataset), full in list(SMALLER.items())[: 1 if quick else None]:
        spec = small(full) if quick else full
        cell = (model, spec.graph if quick else dataset)
        seconds = 2 * price.model(spec, "train", 4, options.data_dir)
        if session.wants(*cell, memory, budgets, what="memory", seconds=seconds):
            peaks = Measurement(options, spec, "train").peaks([GRAPHWEAVE, EAGER, dgl_of(spec)])
            taken = peaks[PYG]
            budget = (taken if isinstance(taken, int) else DEVICE) // SHARE
            peaks |= Measurement(options, spec, "train", str(budget)).peaks([BUDGETED])
            for name, peak in peaks.items():
                memory.peak(name, *cell, peak)
            budgets.peak(BUDGETED.name, *cell, budget)
            session.measured(memory, budgets)
        budgeted = budgets.number(BUDGETED.name, *cell)
        if budgeted is None:
            time.missing.append(" ".join(cell))
        elif session.wants(*cell, time, seconds=seconds):
            work = Measurement(options, spec, "train", str(int(budgeted * 2**20)))
            for name, answer in work.times([GRAPHWEAVE, BUDGETED, EAGER, dgl_of(spec)]).items():
                time.measured(name, *cell, answer, scale=1e3)
            session.measured(time)
    return [memory, budgets, time]


HEADLINES = (
    Headline("faster than DGL, at most (figure 7)", 2.75, highest(over("Figure 7, time", DGL))),
    Headline("faster than DGL, GAT on average", 2.07, mean(over("Figure 7, time", DGL, rows=["GAT"]))),
    Headline("faster than DGL, EdgeConv and its search on average", 1.52,
             mean(over("Figure 7, time", DGL, rows=["EdgeConv, k-NN"]))),
    Headline("faster than DGL, MoNet on average", 1.69, mean(over("Figure 7, time", DGL, rows=["MoNet"]))),
    Headline("less memory than DGL, at most", 7.73, highest(over("Figure 7, memory", DGL))),
    Headline("less memory than DGL, GAT on average", 1.48, mean(over("Figure 7, memory", DGL, rows=["GAT"]))),
    Headline("less memory than DGL, EdgeConv on average", 4.58, mean(over("Figure 7, memory", DGL, rows=["EdgeConv"]))),
    Headline("less memory than DGL, MoNet on average", 1.47, mean(over("Figure 7, memory", DGL, rows=["MoNet"]))),
    Headline("fewer bytes moved than DGL, at most", 6.89, highest(over("Figure 7, bytes", DGL))),
    Headline("less memory by fusion (figure 9)", 4.92, mean(over("Figure 9, memory", "without fusion"))),
    Headline("less memory by recomputation, GAT (figure 10)", 2.21,
             mean(over("Figure 10, memory", "fusion and stashing", rows=["GAT"]))),
    Headline("faster on the smaller device than DGL on the larger one, EdgeConv (figure 11)", 1.17,
             mean(over("Figure 11, time", DGL, rows=["EdgeConv"], own=BUDGETED.name))),
)  # fmt: skip

PAPER = Paper(
    "zhang",
    "Understanding GNN Computational Graph: A Coordinated Computation, IO, and Memory Perspective (MLSys 2022)",
    "one NVIDIA RTX 3090, 10-core Intel Xeon Silver 4210",
    {"7": figure_7, "8": figure_8, "9": figure_9, "10": figure_10, "11": figure_11},
    (
        Gap("Figure 11 as printed", "a GPU", "It compares two GPUs; here a budget stands for the smaller one."),
        Gap("fuseGNN", "a GPU", "The system has no kernels for a CPU."),
    ),
    HEADLINES,
    {
        "Figure 7, memory, DGL": (
            "For GAT, the forward also sums what the backward needs for the scores of destinations, a row of each node "
            'and layer, which saves a walk over the edges; DGL walks. `saved="bfloat16"` takes 59 MiB on PubMed\'s '
            'size at the same time, `recompute="always"` 49 MiB at 1.4 times the time; the default takes 80.'
        ),
    },
)
