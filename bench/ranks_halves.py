"""What narrower and older halo rows do to training: loss and accuracy by epoch, on two ranks.

    python -m bench.ranks halves [--graph pubmed] [--model gcn|sage] [--method metis|random] [--epochs 200] [--parts 2]
                                 [--data-dir DIR] [--out FILE]

The graph has features and labels, and is divided by `--method`: random parts read most of each other, which is the
hardest case. docs/distributed.md shows the results of both. Two layers of 64 hidden features without dropout, Adam with
a rate of 0.01 and a weight decay of 5e-4, and the cross-entropy of the training nodes inside the model. Training is the
same but for the options of `shard`. Accuracy is that of the test nodes, by a call without gradients, whose halo rows
are those of the same weights. Nothing here depends on the machine's speed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

import graphweave as gw
from bench.common import arguments, ratio_table, save
from bench.graphs import data_dir
from bench.turns import ROOT
from graphweave.distributed import load_part, shard
from graphweave.distributed.graph_file import graph_file
from graphweave.distributed.part import GraphPart
from graphweave.distributed.parts import NODES
from graphweave.distributed.write import write_partition

HALOS: dict[str, dict[str, Any]] = {
    "exact": {}, "bfloat16": {"halo_dtype": torch.bfloat16}, "one step old": {"stale": True},
    "bfloat16, one step old": {"halo_dtype": torch.bfloat16, "stale": True},
}  # fmt: skip
"""Options of `shard` by what halo rows are."""
SHOWN = (1, 2, 5, 10, 20, 50, 100, 200)
"""Epochs whose loss and accuracy are shown."""
_LAYERS = {"gcn": GCNConv, "sage": SAGEConv}


class Model(nn.Module):
    """Two layers, and the loss of the nodes of a mask."""

    def __init__(self, kind: str, features: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([_LAYERS[kind](features, 64), _LAYERS[kind](64, classes)])

    def forward(self, x: Tensor, edge_index: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        out = self.layers[1](F.relu(self.layers[0](x, edge_index)), edge_index)
        return F.cross_entropy(out[mask], y[mask]), out


def trained(part: GraphPart, kind: str, classes: int, epochs: int, options: dict[str, Any]) -> dict[str, Any]:
    """Losses of all epochs, test accuracy after those that are shown, and the bytes of the last step of this rank."""
    data = {name: torch.as_tensor(rows) for name, rows in part.nodes[NODES].data.items()}
    model = Model(kind, data["feat"].shape[1], classes)
    sharded = shard(model, part, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    given = data["feat"].float(), part.edge_index, data["y"].long(), data["train_mask"]
    losses, accuracy = [], {}
    for epoch in range(1, epochs + 1):
        gw.reset_counters()
        optimizer.zero_grad()
        loss, _ = sharded(*given)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        sent = gw.counters()["halo_bytes"]
        if epoch in SHOWN or epoch == epochs:
            with torch.no_grad():
                _, out = sharded(*given)
            right = (out.argmax(-1) == given[2])[data["test_mask"]]
            counts = torch.tensor([float(right.sum()), float(right.numel())])
            dist.all_reduce(counts)
            accuracy[epoch] = float(counts[0] / counts[1])
    return {"losses": losses, "accuracy": accuracy, "bytes sent": sent}


def worker(options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(options.store, size), rank=rank, world_size=size)
    part = load_part(options.folder, rank, num_parts=size)
    found = {
        name: trained(part, options.model, options.classes, options.epochs, halos) for name, halos in HALOS.items()
    }
    if rank == 0:
        options.worker.write_text(json.dumps(found))
    dist.destroy_process_group()


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of the parts, and rank 0's results by what halo rows are."""
    graph = graph_file(options.data_dir / f"{options.graph}.npz")
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_partition(graph, options.parts, Path(folder) / "parts", method=options.method)
        parts = [load_part(f"{folder}/parts", r, num_parts=options.parts) for r in range(options.parts)]
        classes = 1 + max(int(torch.as_tensor(p.nodes[NODES].data["y"]).max()) for p in parts)
        argv = [
            sys.executable, "-m", "bench.ranks", "halves", "--model", options.model, "--epochs", str(options.epochs),
            "--threads", str(options.threads), "--classes", str(classes), "--folder", f"{folder}/parts",
            "--store", f"{folder}/store", "--worker", f"{folder}/found.json",
        ]  # fmt: skip
        threads = {"OMP_NUM_THREADS": str(options.threads), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}
        ranks = [
            subprocess.Popen(
                argv, cwd=ROOT, env={**os.environ, **threads, "RANK": str(r), "WORLD_SIZE": str(options.parts)}
            )
            for r in range(options.parts)
        ]
        for process in ranks:
            if process.wait(options.timeout):
                raise RuntimeError(f"a rank ended with status {process.returncode}")
        found = json.loads(Path(f"{folder}/found.json").read_text())
    about = {
        "nodes": manifest.node_types[NODES], "edges": manifest.num_edges[0],
        "halo": [p.nodes[NODES].num_halo for p in parts], "own": [p.nodes[NODES].num_own for p in parts],
    }  # fmt: skip
    return about, found


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__)
    parser.prog = "bench.ranks halves"
    add = parser.add_argument
    add("--graph", default="pubmed")
    add("--model", choices=tuple(_LAYERS), default="gcn")
    add("--method", choices=("random", "metis", "ldg"), default="metis")
    add("--epochs", type=int, default=200)
    add("--parts", type=int, default=2)
    add("--timeout", type=float, default=3600, help="seconds that a rank may take")
    add("--data-dir", type=Path, default=data_dir())
    for name in ("--store", "--folder"):
        add(name, help=argparse.SUPPRESS)
    add("--classes", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(threads=1)
    options = parser.parse_args(argv)
    if options.worker is not None:
        worker(options)
        return 0
    about, found = measured(options)
    rows = [
        (str(epoch), *(f"{r['losses'][epoch - 1]:.4f}, {r['accuracy'][str(epoch)]:.3f}" for r in found.values()))
        for epoch in SHOWN if epoch <= options.epochs
    ]  # fmt: skip
    head = ["epoch", *found]
    ratio_table(f"{options.model} on {options.graph}, {options.parts} ranks: loss, test accuracy", head, rows)
    asked = {key: getattr(options, key) for key in ("graph", "model", "method", "epochs", "parts", "threads")}
    save(
        options.out, {"benchmark": f"ranks_halves_{options.method}", "options": asked, "parts": about, "results": found}
    )
    return 0
