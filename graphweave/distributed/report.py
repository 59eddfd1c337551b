"""Sizes of the parts of a partition on disk, and the cost of a step over them, as values to print or to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.distributed.cost import Cluster, Model, RankLoad, StepCost, step_cost
from graphweave.distributed.load import stored_tensor
from graphweave.distributed.manifest import Manifest, part_folder, read_manifest


def rank_loads(folder: str | Path) -> list[RankLoad]:
    """The rows that each part of the partition in a folder owns, reads and sends, nodes and edges of all types
    together. Only the manifest and the counts by rank are read. DataError, which names the file, for what is absent,
    damaged or does not fit together."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    found = []
    for rank, part in enumerate(manifest.parts):
        received, sent = (_by_rank(folder, rank, key, manifest) for key in ("halo_counts", "send_counts"))
        if int(received.sum()) != sum(part.num_halo):
            raise DataError(
                f"{part_folder(folder, rank)} is no part of a graph: its counts of halo rows do not add up. Run"
                " graphweave partition again."
            )
        peers = max(int((received > 0).sum()), int((sent > 0).sum()))
        found.append(RankLoad(sum(part.num_own), sum(part.num_halo), int(sent.sum()), sum(part.num_edges), peers))
    return found


def _by_rank(folder: Path, rank: int, key: str, manifest: Manifest) -> np.ndarray:
    """int64 [num_parts]: the counts of all node types together."""
    total = np.zeros(manifest.num_parts, np.int64)
    for i in range(len(manifest.node_types)):
        name = f"nodes{i}.{key}"
        file = part_folder(folder, rank) / f"{name}.npy"
        counts = stored_tensor(file, manifest.parts[rank].arrays[name], True).numpy()
        if counts.min(initial=0) < 0:
            raise DataError(f"{file} must have no negative counts. Run graphweave partition again.")
        total += counts
    return total


def report(manifest: Manifest, loads: list[RankLoad], model: Model, cluster: Cluster) -> JsonObject:
    """The sizes of a partition and what a step costs over it, as JSON values; see `docs/distributed.md`."""
    cost = step_cost(loads, model, cluster)
    nodes, edges = sum(manifest.node_types.values()), sum(manifest.num_edges)
    rows = sum(load.num_own + load.num_halo for load in loads)
    columns: dict[str, list[Any]] = {
        "own rows": [load.num_own for load in loads],
        "halo rows": [load.num_halo for load in loads],
        "edges": [load.num_edges for load in loads],
        "bytes received forward": [rank.forward_bytes for rank in cost.ranks],
        "bytes received backward": [rank.backward_bytes for rank in cost.ranks],
        "bytes received once": [rank.once_bytes for rank in cost.ranks],
        "memory": [rank.memory for rank in cost.ranks],
        "compute": [rank.compute for rank in cost.ranks],
        "communication": [rank.communication for rank in cost.ranks],
    }
    return {
        "graph": manifest.graph,
        "method": manifest.method,
        "seed": manifest.seed,
        "parts": manifest.num_parts,
        "nodes": nodes,
        "edges": edges,
        "cut edges": sum(manifest.cut_edges),
        "replication factor": rows / nodes if nodes else 1.0,
        "widths": list(model.widths),
        "exchanged widths": list(model.every_step),
        "value bytes": model.value_bytes,
        "bandwidth": cluster.bandwidth,
        "latency": cluster.latency,
        "seconds an edge": cluster.edge_seconds,
        "ranks": {name: _spread(values) for name, values in columns.items()},
        "step": _step(cost),
    }


def _step(cost: StepCost) -> dict[str, float]:
    return {
        "one rank": cost.one_rank,
        "in turn": cost.in_turn,
        "hidden": cost.hidden,
        "speed-up in turn": cost.speedup(cost.in_turn),
        "speed-up hidden": cost.speedup(cost.hidden),
    }


def _spread(values: list[int]) -> JsonObject:
    return {"min": min(values), "mean": sum(values) / len(values), "max": max(values), "each": values}
