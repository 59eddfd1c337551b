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

import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GCNConv, SAGEConv

import graphweave as gw
from bench.case import Bench, Numbers
from bench.common import on_ranks, ratio_table
from bench.graphs import data_dir
from bench.options import Among
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
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)  # type: ignore[attr-defined]
    part = load_part(folder, rank, num_parts=size)
    found = {name: trained(part, model, classes, epochs, halos) for name, halos in HALOS.items()}
    dist.destroy_process_group()
    return found


def measured(
    graph: str, model: str, method: str, epochs: int, parts: int, threads: int, timeout: float, folder: str
) -> dict[str, Any]:
    """What is known of the parts, and rank 0's results by what halo rows are."""
    file = graph_file(Path(folder) / f"{graph}.npz")
    with tempfile.TemporaryDirectory() as at:
        manifest = write_partition(file, parts, Path(at) / "parts", method=method)
        made = [load_part(f"{at}/parts", r, num_parts=parts) for r in range(parts)]
        classes = 1 + max(int(torch.as_tensor(p.nodes[NODES].data["y"]).max()) for p in made)
        found, *_ = on_ranks(
            of_rank, parts, threads=threads, timeout=timeout, model=model, epochs=epochs, classes=classes,
            folder=f"{at}/parts", store=f"{at}/store",
        )  # fmt: skip
    about = {
        "nodes": manifest.node_types[NODES], "edges": manifest.num_edges[0],
        "halo": [p.nodes[NODES].num_halo for p in made], "own": [p.nodes[NODES].num_own for p in made],
    }  # fmt: skip
    return {"parts": about, "halos": found}


def show(results: Mapping[str, Any], options: Namespace) -> None:
    for name, one in results.items():
        rows = [
            (str(n), *(f"{r['losses'][n - 1]:.4f}, {r['accuracy'][str(n)]:.3f}" for r in one["halos"].values()))
            for n in SHOWN if n <= options.epochs
        ]  # fmt: skip
        ratio_table(f"{name}, {options.parts} ranks: loss, test accuracy", ["epoch", *one["halos"]], rows)


def cases(options: Namespace) -> Iterator[Numbers]:
    keys = ("graph", "model", "method", "epochs", "parts", "threads", "timeout")
    given = {key: getattr(options, key) for key in keys}
    name = f"{options.model} {options.graph} {options.method}"
    yield Numbers(name, measured, {"folder": str(options.data_dir), **given}, {"epochs": 2}, here=True)


BENCH = Bench(
    "bench.ranks_halves", __doc__, cases,
    {"graph": "pubmed", "model": Among(_LAYERS, "gcn"), "method": Among(("random", "metis", "ldg"), "metis"),
     "epochs": 200, "parts": 2, "data_dir": data_dir()},
    threads=1, timeout=3600.0, show=show,
)  # fmt: skip
