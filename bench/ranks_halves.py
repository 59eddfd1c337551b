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
import os
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
from bench.common import on_ranks, ratio_table, save
from bench.graphs import data_dir
from bench.options import Among, options_from
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


def of_rank(model: str, epochs: int, classes: int, folder: str, store: str) -> dict[str, Any]:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    part = load_part(folder, rank, num_parts=size)
    found = {name: trained(part, model, classes, epochs, halos) for name, halos in HALOS.items()}
    dist.destroy_process_group()
    return found


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is known of the parts, and rank 0's results by what halo rows are."""
    graph = graph_file(options.data_dir / f"{options.graph}.npz")
    with tempfile.TemporaryDirectory() as folder:
        manifest = write_partition(graph, options.parts, Path(folder) / "parts", method=options.method)
        parts = [load_part(f"{folder}/parts", r, num_parts=options.parts) for r in range(options.parts)]
        classes = 1 + max(int(torch.as_tensor(p.nodes[NODES].data["y"]).max()) for p in parts)
        found, *_ = on_ranks(
            of_rank, options.parts, threads=options.threads, timeout=options.timeout, model=options.model,
            epochs=options.epochs, classes=classes, folder=f"{folder}/parts", store=f"{folder}/store",
        )  # fmt: skip
    about = {
        "nodes": manifest.node_types[NODES], "edges": manifest.num_edges[0],
        "halo": [p.nodes[NODES].num_halo for p in parts], "own": [p.nodes[NODES].num_own for p in parts],
    }  # fmt: skip
    return about, found


def main(argv: Sequence[str] | None = None) -> int:
    options = options_from(
        argv, __doc__, graph="pubmed", model=Among(_LAYERS, "gcn"), method=Among(("random", "metis", "ldg"), "metis"),
        epochs=200, parts=2, timeout=3600.0, data_dir=data_dir(), threads=1,
    )  # fmt: skip
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
