"""Steps of whole models: PyG eager (with and without huge pages), torch.compile's default backend, graphweave, DGL 2.1.

    python -m bench.train_step [--models gcn sage gin gat gat-8x32 gatv2 transformer monet edgeconv edgeconv-mlp]
                               [--graphs arxiv pubmed cora cora-features rmat rmat:NODES:EDGES points]
                               [--modes train] [--systems eager eager-thp inductor graphweave dgl dgl-thp]
                               [--no-compile-loss] [--memory] [--repeats 10] [--threads 2] [--seed 0]
                               [--cases NAME ...] [--out FILE] [--resume]

A step is forward, cross entropy on random labels over every node, and backward; an optimiser would be equal for all.
2 layers, 64 random input features (cora-features: Cora's own 1433), 64 hidden, 64 logits, float32; the EdgeConv models
have 4 layers, 64-64-128-256, on k-NN graphs of 16 x 1,024 random points, k = 20. The EdgeConv models are measured on
points, the others on the other graphs. `--modes infer` measures forward passes without gradients.

The loss is compiled with the model: users of torch.compile compile `F.cross_entropy(model(x, edge_index), y)`, so that
the compiler may fuse the loss with the last layer. inductor and graphweave get that whole function; eager runs the same
calls as they are. With --no-compile-loss both get the model alone, and eager PyTorch computes the loss for all three.

eager-thp is eager with PyTorch's own switch for huge pages (THP_MEM_ALLOC_ENABLE=1), so that ratios to it do not come
from page faults; dgl-thp is DGL with it. torch.compile runs with dynamic=False, its faster setting (sizes known at
compile time), and the defaults of Dynamo's other settings. "least memory" is graphweave with recompute="always".

DGL has a virtual environment of its own (`make bench-peers` makes .venv-dgl: torch 2.2.1, DGL 2.1.0), and is measured
if it is named. It gets the same inputs and initial weights, and runs its own layers with its best settings: every
format is built before, self-loops and degrees are prepared, there are no checks for nodes without edges, and ids have
64 bits, which is its default and slightly faster on a CPU (bench/dgl_models.py says how definitions are made equal).

--memory also takes the peak of a step beyond data and parameters, in a process that compiled on the same graph and
dropped all that was kept for it: formats and all else that is kept for the graph are made in that step and counted.

If a loss or gradient differs by more than the tolerance from eager's, which eager's own float32 sums over hubs can
cause, a float64 run decides. (A logit within rounding of leaky_relu's kink can cause such an error in a correct system;
another --seed of the weights shows it.)
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace

from bench.case import Bench, Case
from bench.graphs import data_dir
from bench.named_graphs import absent
from bench.options import Among
from bench.runner import run
from bench.spec_peers import ENVIRONMENT, case_of
from bench.specs import SPECS
from bench.steps import MODES

PEERS = ("eager", "eager-thp", "inductor", "graphweave")
DEFAULT_GRAPHS = ("arxiv", "rmat", "points", "pubmed", "cora", "cora-features")


def cases(options: Namespace) -> Iterator[Case]:
    folder, peers = options.data_dir, tuple(options.systems or PEERS)
    sizes = {"seed": options.seed, "compile_loss": options.compile_loss}
    for graph in options.graphs:
        for model in options.models:
            for mode in options.modes:
                if ("points" in graph) == model.startswith("edgeconv"):
                    name = f"{model} {graph}" if mode == "train" else f"{model} {graph} {mode}"
                    missing = None if options.quick else absent(graph, folder)
                    spec = replace(SPECS[model], graph=graph)
                    yield case_of(name, spec, mode, folder, peers, sizes, missing=missing, memory=options.memory)


BENCH = Bench(
    "bench.train_step", __doc__, cases,
    {"models": Among(SPECS), "graphs": DEFAULT_GRAPHS, "modes": Among(MODES, ("train",)), "compile_loss": True,
     "memory": False, "seed": 0, "data_dir": data_dir()},
    apart=True, environment=ENVIRONMENT, dgl="bench.dgl_specs",
    columns={"peak, MiB": lambda found, one: f"{one['peak'] / 2**20:.0f}" if isinstance(one.get("peak"), int) else ""},
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
