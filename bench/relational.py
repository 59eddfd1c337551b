"""Relational layers: RGCN, RGAT and HGT by graphweave, PyTorch Geometric, DGL 2.1 and per-edge copies of weights.

    python -m bench.relational [--graphs aifb mutag bgs biokg rdf_aifb fb15k_237 wn18rr] [--models rgcn rgat hgt]
                               [--systems graphweave gw-U gw-C gw-R gw-C+R pyg-rgcn pyg-fast-rgcn pyg-rgat pyg-hgt
                                pyg-hetero bmm dgl dgl-hetero dgl-udf] [--modes infer train] [--repeats 5]
                               [--memory-graphs aifb fb15k_237] [--threads 2] [--timeout 60] [--memory-gb 16]
                               [--cases NAME ...] [--dgl-python PYTHON] [--data-dir DIR] [--out FILE] [--resume]

Each model is one layer, 64 -> 64, one head, on full graphs. `infer` is a forward pass without gradients; `train` is the
forward, the negative log-likelihood of random labels and the backward for all weights (features are data and get no
gradient). Graphs are seeded synthetic ones with the counts of Hector's Table 3, and real knowledge graphs with the
inverse of every relation (bench/relational_graphs.py). Systems:

    graphweave  the text of bench/relational_models.py compiled with its loss; compaction and reordering by cost
    gw-*        the same with both forced: U neither, C compaction, R reordering, C+R both. Only if they are named:
                gw-reorder without fusion, gw-compile without rewriting as well, gw-pyg-* PyG's classes compiled
    bmm         the same text in eager PyTorch: a weight matrix is copied for every edge
    pyg-*       RGCNConv, FastRGCNConv, RGATConv, HGTConv, and HeteroConv of one convolution a relation
    dgl*        RelGraphConv or HGTConv, HeteroGraphConv, and message functions of a user (bench/relational_dgl.py)

Edges are sorted by relation and nodes by type for all. Before timing, outputs, loss and gradients are compared with
a float64 reference (bench/relational_reference.py). A system that would need more than --memory-gb by an estimate is
left out (by default what a process may take of the memory that is available). A system that takes more than a second a
step has one round.

Ratios are to the fastest peer of a kind that computes the same function, and geometric means are over the graphs that
have such a peer. HeteroConv of GATConv has another softmax (over the edges of one relation); it counts if no other peer
fits, and the table says so. On --memory-graphs the peak of a step is measured in processes of their own. The cases
`launches` count the kernels of a step of HeteroConv over 5 and over 140 relations.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

import graphweave
from bench import relational_graphs as graphs
from bench import relational_pyg
from bench import relational_tables as tables
from bench.case import Bench, Case, Check, Numbers, Peers
from bench.check import worst_error
from bench.common import available_memory
from bench.graphs import data_dir
from bench.options import Among
from bench.relational_launches import count
from bench.relational_models import LAYERS, MODELS, WithLoss, inputs, weights
from bench.relational_reference import kept_reference
from bench.runner import run
from bench.steps import MODES, ModelStep, Result, Step
from graphweave.core.choices import OPTIONS

VARIANTS: dict[str, dict[str, bool]] = {
    "graphweave": {},
    "gw-U": {"compact": False, "reorder": False},
    "gw-C": {"compact": True, "reorder": False},
    "gw-R": {"compact": False, "reorder": True},
    "gw-C+R": {"compact": True, "reorder": True},
    "gw-compile": {"compact": False, "reorder": False, "rewrite": False, "fuse": False},
    "gw-reorder": {"fuse": False},
}
"""Variant -> options of graphweave.compile, which force compact materialization and reordering of linear operators on
or off. "graphweave" leaves both to the cost model. The last two are Graphiler's steps before fusion."""

FORMS = relational_pyg.FORMS
SYSTEMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(VARIANTS, MODELS),
    **FORMS,
    "bmm": MODELS,
    "dgl": ("rgcn", "hgt"),
    "dgl-hetero": ("rgcn", "rgat"),
    "dgl-udf": MODELS,
    **{f"gw-{name}": models for name, models in FORMS.items()},
}
"""System -> the models that it has."""

ON_DEMAND = ("gw-compile", "gw-reorder", *(f"gw-{name}" for name in FORMS))
"""Systems that are measured only if they are named."""

REFERENCE, WITHIN = "reference", "reference within relations"
"""Peers that compute in float64, relation by relation: with a softmax over all edges of a node, or over each relation's
by itself, as the systems of `tables.OTHER_SOFTMAX` have it."""

TOLERANCE = 1e-4
"""Relative error of loss and gradients: a hub adds 13,000 float32 terms."""

GIB = 2**30


def build(model: str, graph: str, mode: str, folder: Path) -> Peers:
    case = graphs.kept(graph, folder)
    values = weights(model, case.num_relations, case.num_node_types)

    def own(system: str) -> Step:
        """A variant of graphweave, or of "bmm", which does not compile model and loss."""
        layer = LAYERS[model](values)
        loss, layer_ = (
            part if system == "bmm" else graphweave.compile(part, options=VARIANTS[system])
            for part in (WithLoss(layer), layer)
        )
        given = inputs(model, case)
        return ModelStep(layer, mode, lambda: layer_(*given), lambda: loss(case.y, *given))

    def of_pyg(system: str) -> Step:
        step = relational_pyg.build(system.removeprefix("gw-"), model, case, values)
        step.mode = mode
        if system.startswith("gw-"):  # PyG's own class, unchanged, compiled alone and with its loss
            step.infer, step.loss = graphweave.compile(step.infer), graphweave.compile(step.loss)
        return step

    def exact(within: bool) -> Step:
        def step() -> Result:
            found = kept_reference(model, graph, case, values, within=within)
            out, loss = found.pop("out"), found.pop("loss")
            return Result((out,), {}) if mode == "infer" else Result((loss,), dict(found))

        return step

    pyg = {name: partial(of_pyg, name) for form in FORMS for name in (form, f"gw-{form}")}
    return {
        **{name: partial(own, name) for name in (*VARIANTS, "bmm")}, **pyg, REFERENCE: partial(exact, False),
        WITHIN: partial(exact, True),
    }  # fmt: skip


def arrays(model: str, graph: str, mode: str, folder: Path) -> Mapping[str, Tensor]:
    """The graph and the weights, for DGL."""
    case = graphs.kept(graph, folder)
    values = weights(model, case.num_relations, case.num_node_types)
    return {**case.arrays, **{f"weight.{name}": value for name, value in values.items()}}


def error(got: Result, want: Result) -> tuple[float, str]:
    return worst_error(got, want, wide=True)


def compared(want: Result, got: Result) -> Result:
    """The wanted gradients under the names of `got`: `sum.NAME` is of a parameter that all relations share."""
    grads = {name: want.grads[name.removeprefix("sum.")] for name in got.grads}
    shared = {name: grad.sum(0) for name, grad in grads.items() if grad is not None and name.startswith("sum.")}
    return Result(want.outputs, {**grads, **shared})


def refusal(memory_gb: float, peer: str, model: str, graph: str, mode: str, folder: Path) -> str | None:
    """Why a system is not run: it lacks options, or needs more memory. None if it is run."""
    if lacking := [name for name in VARIANTS.get(peer, ()) if name not in OPTIONS]:
        return f"no option {', '.join(lacking)} in this version"
    limit = memory_gb * GIB if memory_gb else available_memory()
    bytes_needed = needed(peer, model, mode == "train", graphs.kept(graph, folder))
    return f"needs {bytes_needed / GIB:.0f} GB" if bytes_needed > limit else None


def needed(system: str, model: str, train: bool, case: graphs.Case) -> int:
    """Bytes of the largest tensors that are alive at once, estimated from how the layers are written.

    bmm, UDF, FastRGCNConv, RGATConv: for each edge a 64 x 64 weight, and in training its gradient (RGAT: two, which are
    added; HGT: two weights, which are kept, and a gradient). Loops over relations keep rows of nodes for each relation.
    Factors of rows come from peaks measured on rdf_aifb.
    """
    row = 4 * graphs.FEATURES
    edges, nodes, relations = case.src.numel(), case.x.size(0), case.num_relations
    sources, ends = (int(case.counts[case.ends[:, end]].sum()) for end in (0, 1))
    copies = edges * graphs.FEATURES * row
    match system:
        case "bmm" | "dgl-udf":
            typed_nodes = nodes * graphs.FEATURES * row * 3 if model == "hgt" else 0
            return copies * {"rgcn": 1, "rgat": 2, "hgt": 3}[model] + typed_nodes if train else copies
        case "pyg-fast-rgcn":
            return copies + 16 * edges * relations
        case "pyg-rgat":
            return copies * (2 if train else 1)
        case "pyg-rgcn":
            return row * (2 * (relations * nodes + edges) if train else 4 * nodes + edges)
        case "pyg-hgt":
            return row * sources * (7 if train else 4)
        case "pyg-hetero" | "dgl-hetero":
            return row * ends * (4 if train else 2)
        case "dgl":
            return row * edges * ({False: 7, True: 9}[train] if model == "hgt" else 4)
    return 0


def counted(peer: str, step: Step) -> dict[str, Any]:
    """graphweave's counters, which show a fallback to eager mode."""
    return {"counters": {name: n for name, n in graphweave.counters().items() if n}} if peer in VARIANTS else {}


def described(graph: str, folder: Path) -> dict[str, Any]:
    """The sizes of a graph, and its unique pairs of source and relation over edges."""
    case = graphs.make(graph, folder)
    return {
        "nodes": case.x.size(0), "node_types": case.num_node_types, "edges": case.src.numel(),
        "relations": case.num_relations, "compaction": case.compaction,
    }  # fmt: skip


def case_of(model: str, graph: str, mode: str, options: Namespace, systems: tuple[str, ...]) -> Case:
    folder, peers = options.data_dir, tuple(name for name in systems if model in SYSTEMS[name])
    others = {name: WITHIN for name in peers if (name, model) in tables.OTHER_SOFTMAX}
    return Case(
        f"{model} {graph} {mode}", build, peers,
        Check(TOLERANCE, REFERENCE, error=error, compared=compared, others=others),
        {"model": model, "graph": graph, "mode": mode, "folder": folder}, {"graph": "tiny"}, arrays, counted,
        None if options.quick else graphs.missing(graph, folder), partial(refusal, options.memory_gb),
        graph in options.memory_graphs,
    )  # fmt: skip


def cases(options: Namespace) -> Iterator[Case | Numbers]:
    systems = tuple(options.systems or (name for name in SYSTEMS if name not in ON_DEMAND))
    for graph in options.graphs:
        yield Numbers(
            f"graph {graph}", described, {"graph": graph, "folder": options.data_dir}, {"graph": "tiny"}, here=True,
            missing=None if options.quick else graphs.missing(graph, options.data_dir),
        )  # fmt: skip
        for model in options.models:
            for mode in options.modes:
                yield case_of(model, graph, mode, options, systems)
    for relations in (5, 140):
        sizes = {"relations": relations, "threads": options.threads}
        yield Numbers(f"launches, {relations} relations", count, sizes, {"relations": 2})


OPTIONS_HERE = {
    "graphs": Among(graphs.GRAPHS, tuple(name for name in graphs.GRAPHS if name not in graphs.ON_DEMAND)),
    "models": Among(MODELS), "modes": Among(MODES), "memory_graphs": ("aifb", "fb15k_237"), "memory_gb": 0.0,
    "data_dir": data_dir(),
}  # fmt: skip
BENCH = Bench(
    "bench.relational", __doc__, cases, OPTIONS_HERE, apart=True, repeats=5, timeout=300.0, dgl="bench.relational_dgl",
    slow=1.0, show=tables.show,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
