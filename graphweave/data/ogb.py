"""Data sets of the Open Graph Benchmark as they lie on disk, read without the package `ogb`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive
from graphweave.data.graph_set import LAYOUT as SET_LAYOUT
from graphweave.data.graph_set import GraphSet, graph_set_of
from graphweave.data.knowledge_graph import KnowledgeGraph
from graphweave.data.link_data import LinkData
from graphweave.data.node_data import NodeData
from graphweave.data.npz import LAYOUT, node_data
from graphweave.data.ogb_files import NODE, RawGraphs, RawSplit, read_graphs, read_labels, read_split
from graphweave.data.stores import TypedStores, typed_data
from graphweave.data.typed_node_data import TypedNodeData

_PARTS = {"train": "train", "valid": "val", "test": "test"}
"""OGB's names of the splits, and ours."""


def ogb(
    folder: str | Path, *, symmetric: bool = False, seed: int = 0
) -> NodeData | GraphSet | TypedNodeData | KnowledgeGraph | LinkData:
    """A data set in the folder where `ogb` keeps it, or where its `DatasetSaver` wrote it, with `raw/` and `split/`.

    With labels of nodes it is classification of nodes, of one type where there are types; with labels of graphs, a set
    of graphs, whose whole-numbered features are categories; with a split of links, link prediction, and with one of
    triples, a knowledge graph. `symmetric` adds the reverse of each edge, as `ogb` does for molecules; links and typed
    graphs have both directions anyway. Features of edges are left out. What is absent is drawn as in `npz`.
    """
    folder = Path(folder)
    raw, split = read_graphs(folder), read_split(folder)
    train = split.get("train")
    if isinstance(train, Mapping) and "relation" in train:
        return _knowledge_graph(raw, split, folder.name)
    if isinstance(train, Mapping) and train.keys() & {"edge", "source_node"}:
        return _links(raw, split, folder.name, seed)
    labels = read_labels(folder, NODE)
    if raw.is_typed:
        return typed_data(_stores(raw, labels, split, folder.name), folder.name, seed)
    rows = {f"{_PARTS[part]}_idx": np.asarray(rows) for part, rows in split.items()}
    if labels:
        arrays = _arrays_of_nodes(raw) | {"y": _targets(labels[NODE], missing=-1)} | rows
        return node_data(Archive.of(arrays, folder.name, LAYOUT), symmetric=symmetric, seed=seed)
    labels = read_labels(folder, "graph")
    if not labels:
        raise DataError(f"{folder}: expected labels of nodes or graphs in raw/, or a split of links (got none)."
                        " Add a file of labels.")  # fmt: skip
    arrays = _arrays_of_graphs(raw, labels[NODE], symmetric) | rows
    return graph_set_of(Archive.of(arrays, folder.name, SET_LAYOUT), seed=seed)


def _arrays_of_nodes(raw: RawGraphs) -> dict[str, np.ndarray]:
    """The arrays of docs/data.md of one graph, without labels."""
    (ends,), (nodes,) = raw.ends.values(), raw.num_nodes.values()
    arrays = {"src": ends[0], "dst": ends[1], "num_nodes": np.array(nodes.sum())}
    if NODE in raw.features:
        arrays["feat"] = raw.features[NODE].astype(np.float32)
    return arrays


def _arrays_of_graphs(raw: RawGraphs, labels: np.ndarray, symmetric: bool) -> dict[str, np.ndarray]:
    """The arrays of docs/data.md of a set of graphs."""
    (ends,), (nodes,), (edges,) = raw.ends.values(), raw.num_nodes.values(), raw.num_edges.values()
    begins = np.concatenate([[0], nodes.cumsum()])
    if edges.sum() != ends.shape[1]:
        raise DataError(f"raw/: the numbers of edges must have the sum {ends.shape[1]} (got {edges.sum()})."
                        " Correct the files.")  # fmt: skip
    src, dst = ends + begins[:-1].repeat(edges)
    if symmetric:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
    arrays = {"src": src, "dst": dst, "num_nodes": begins[-1:], "graph_ptr": begins, "y": _targets(labels)}
    if NODE in raw.features:
        values = raw.features[NODE]
        arrays["atom_feat" if (values % 1 == 0).all() else "feat"] = values
    return arrays


def _targets(values: np.ndarray, missing: float = np.nan) -> np.ndarray:
    """[rows] whole numbers of classes where there is one column of such, else [rows, targets]."""
    if values.shape[1] == 1:
        column = np.where(np.isnan(values[:, 0]), missing, values[:, 0])
        return column.astype(np.int64) if (column % 1 == 0).all() else column
    return values


def _stores(raw: RawGraphs, labels: Mapping[str, np.ndarray], split: RawSplit, name: str) -> TypedStores:
    """The stores that PyG would have for a graph with types."""
    stores: dict[Any, dict[str, Any]] = {kind: {"num_nodes": int(n.sum())} for kind, n in raw.num_nodes.items()}
    told = {*raw.features, *labels, *(kind for rows_of in split.values() for kind in rows_of)}
    if unknown := told - stores.keys():
        raise DataError(f"{name}: expected features, labels and splits of the types {', '.join(stores)} (got"
                        f" {min(unknown)}). Correct the names.")  # fmt: skip
    for kind, values in raw.features.items():
        stores[kind]["x"] = torch.from_numpy(values.astype(np.float32))
    for kind, values in labels.items():
        stores[kind]["y"] = torch.from_numpy(_targets(values, missing=-1))
    for part, rows_of in split.items():
        for kind, rows in rows_of.items():
            mask = torch.zeros(stores[kind]["num_nodes"], dtype=torch.bool)
            mask[torch.as_tensor(rows)] = True
            stores[kind][f"{_PARTS[part]}_mask"] = mask
    return stores | {key: {"edge_index": torch.from_numpy(ends.astype(np.int64))} for key, ends in raw.ends.items()}


def _knowledge_graph(raw: RawGraphs, split: RawSplit, name: str) -> KnowledgeGraph:
    counts = [int(n.sum()) for n in raw.num_nodes.values()]
    first = dict(zip(raw.num_nodes, accumulate(counts, initial=0), strict=False))
    parts = []
    for found in split.values():
        ends = {}
        for end in ("head", "tail"):
            ends[end] = torch.as_tensor(found[end]).long()
            if f"{end}_type" in found:  # heads and tails are then counted within their types
                ends[end] = ends[end] + torch.tensor([first[kind] for kind in found[f"{end}_type"]])
        parts.append(torch.stack([ends["head"], torch.as_tensor(found["relation"]).long(), ends["tail"]], 1))
    num_rels = 1 + max((int(part[:, 1].max()) for part in parts if len(part)), default=-1)
    train, valid, test = parts
    return KnowledgeGraph(train, valid, test, sum(counts), num_rels, name)


def _links(raw: RawGraphs, split: RawSplit, name: str, seed: int) -> LinkData:
    x = node_data(Archive.of(_arrays_of_nodes(raw), name, LAYOUT), seed=seed).x
    joined = {_PARTS[part]: _pairs(found) for part, found in split.items()}
    others = {_PARTS[part]: _other_pairs(found) for part, found in split.items() if part != "train"}
    return LinkData(x, joined, others, name)


def _pairs(found: Mapping[str, object]) -> Tensor:
    if "edge" in found:
        return torch.as_tensor(found["edge"]).long().T.contiguous()
    return torch.stack([torch.as_tensor(found[f"{end}_node"]).long() for end in ("source", "target")])


def _other_pairs(found: Mapping[str, object]) -> Tensor:
    """The pairs that are not joined. Where each source has many other targets, the first of them counts."""
    if "edge_neg" in found:
        return torch.as_tensor(found["edge_neg"]).long().T.contiguous()
    others = torch.as_tensor(found["target_node_neg"]).long()
    return torch.stack([torch.as_tensor(found["source_node"]).long(), others[:, 0]])
