"""Training step of whole models: PyG eager (with and without huge pages), torch.compile's default backend, graphweave.

    python -m bench.train_step [--models gcn sage gin gat gatv2 transformer monet edgeconv edgeconv-mlp]
                               [--graphs arxiv pubmed cora cora-features rmat points] [--no-compile-loss]
                               [--systems eager eager-thp inductor graphweave] [--repeats 10] [--threads 2]
                               [--seed 0] [--out FILE] [--resume]

A step is forward, cross entropy on random labels over every node, and backward; an optimiser would be equal for all.
2 layers, 64 random input features (cora-features: Cora's own 1433), 64 hidden, 64 logits, float32; the EdgeConv models
have 4 layers, 64-64-128-256, on k-NN graphs of 16 x 1,024 random points, k = 20. The EdgeConv models are measured on
points, the others on the other graphs.

The loss is compiled with the model: users of torch.compile compile `F.cross_entropy(model(x, edge_index), y)`, so that
the compiler may fuse the loss with the last layer. inductor and graphweave get that whole function; eager runs the same
calls as they are. With --no-compile-loss both get the model alone, and eager PyTorch computes the loss for all three.

eager-thp is eager with PyTorch's own switch for huge pages (THP_MEM_ALLOC_ENABLE=1), so that ratios to it do not come
from page faults. torch.compile runs with dynamic=False, its faster setting (sizes known at compile time), and the
defaults of Dynamo's other settings.

If a loss or gradient differs by more than the tolerance from eager's, which eager's own float32 sums over hubs can
cause, a float64 run decides. (A logit within rounding of leaky_relu's kink can cause such an error in a correct system;
another --seed of the weights shows it.)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import graphweave
from bench.case import EXACT, Bench, Case, Check, Peers, training_result
from bench.graphs import GRAPHS, POINT_SETS, Workload, data_dir, load, missing
from bench.options import Among
from bench.runner import run
from bench.steps import Step
from bench.workloads import MODELS, THP, training_step

SYSTEMS = {"eager": "eager", "eager-thp": "eager", "inductor": "inductor", "graphweave": "graphweave"}
"""Peer -> what compiles its model."""

ENVIRONMENT = {"eager-thp": {THP: "1"}, "dgl-thp": {THP: "1"}}
"""Variables that are added for a peer's process."""

CHECK = Check(1e-4, exact=True)
"""Looser than the tests' 1e-5: a hub adds 13,000 float32 terms, and a weight gradient 169,343."""

DEFAULT_GRAPHS = ("arxiv", "rmat", "points", "pubmed", "cora", "cora-features")


def made(model: str, graph: str, folder: Path, seed: int) -> tuple[Workload, nn.Module]:
    work = load(graph, folder, pseudo=MODELS[model].pseudo)
    torch.manual_seed(seed)
    return work, MODELS[model].make(work.x.size(1))


def build(model: str, graph: str, folder: Path, seed: int, compile_loss: bool) -> Peers:
    def prepared(system: str) -> Callable[[], Step]:
        def prepare() -> Step:
            work, net = made(model, graph, folder, seed)
            if system == EXACT:
                work, net = work.double(), net.double()
            step = training_step(SYSTEMS.get(system, "eager"), net, compile_loss=compile_loss)
            return lambda: training_result(step(work), net)

        return prepare

    return {system: prepared(system) for system in (*SYSTEMS, EXACT)}


def inputs(model: str, graph: str, folder: Path, seed: int, compile_loss: bool) -> Mapping[str, Tensor]:
    """Inputs and initial weights, for a peer with another Python."""
    work, net = made(model, graph, folder, seed)
    given = {"x": work.x, "edge_index": work.edge_index, "y": work.y}
    more = {} if work.edge_attr is None else {"edge_attr": work.edge_attr}
    return {**given, **more, **{f"weight.{name}": value for name, value in net.state_dict().items()}}


def counted(peer: str, step: Step) -> dict[str, Any]:
    """The compiler's counters, which show a fallback to eager mode."""
    return {"counters": graphweave.counters()} if peer == "graphweave" else {}


def case_of(name: str, model: str, graph: str, options: Namespace, peers: tuple[str, ...]) -> Case:
    sizes = {
        "model": model, "graph": graph, "folder": options.data_dir, "seed": options.seed,
        "compile_loss": options.compile_loss,
    }  # fmt: skip
    small = {"graph": "tiny-points" if MODELS[model].points else "tiny"}
    return Case(
        name, build, peers, CHECK, sizes, small, inputs=inputs, notes=counted,
        missing=None if options.quick else missing(graph, options.data_dir),
    )  # fmt: skip


def cases(options: Namespace) -> Iterator[Case]:
    for graph in options.graphs:
        for model in options.models:
            if graph in MODELS[model].graphs:
                yield case_of(f"{model} {graph}", model, graph, options, tuple(SYSTEMS))


OPTIONS = {"compile_loss": True, "seed": 0, "data_dir": data_dir()}
BENCH = Bench(
    "bench.train_step", __doc__, cases,
    {"models": Among(MODELS), "graphs": Among((*GRAPHS, *POINT_SETS), DEFAULT_GRAPHS), **OPTIONS},
    apart=True, environment=ENVIRONMENT,
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
