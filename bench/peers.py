"""graphweave against DGL 2.1: training steps of whole models, in turn. (`bench.ops` compares single kernels.)

    python -m bench.peers [--cases gat edgeconv monet gcn sage gin gatv2] [--graph rmat] [--repeats 20]
                          [--threads 2] [--no-compile-loss] [--out FILE] [--resume]

DGL has a virtual environment of its own (`make bench-peers` makes .venv-dgl: torch 2.2.1, DGL 2.1.0), so both sides are
processes that stay alive and take turns, with equal thread counts. Both get the same inputs and initial weights, and
both are compared with eager PyG first.

DGL runs its own layers and operators with its best settings: every format is built before, self-loops and degrees are
prepared, there are no checks for nodes without edges, and ids have 64 bits, which is its default and slightly faster on
a CPU (bench/dgl_models.py says how definitions are made equal). dgl-thp is DGL with PyTorch's switch for huge pages.
graphweave's formats are warm as well, and its models are PyG's with default arguments. Its loss is compiled with the
model unless --no-compile-loss; DGL's is eager PyTorch. edgeconv runs on the k-NN graphs of --points, all else on
--graph.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from bench import train_step
from bench.case import Bench, Case
from bench.graphs import GRAPHS, POINT_SETS
from bench.options import Among
from bench.runner import run
from bench.workloads import MODELS

PEERS = ("graphweave", "dgl", "dgl-thp")

TRAINED = ("gat", "edgeconv", "monet", "gcn", "sage", "gin", "gatv2")
"""Models that DGL has layers for."""


def cases(options: Namespace) -> Iterator[Case]:
    for name in TRAINED:
        yield train_step.case_of(name, name, options.points if MODELS[name].points else options.graph, options, PEERS)


BENCH = Bench(
    "bench.peers", __doc__, cases,
    {"graph": Among(GRAPHS, "rmat"), "points": Among(POINT_SETS, "points"), **train_step.OPTIONS},
    apart=True, repeats=20, environment=train_step.ENVIRONMENT, dgl="bench.dgl_specs",
)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run(BENCH))
