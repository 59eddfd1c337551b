"""Graphs from `.npz` files (docs/data.md)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.data.archive import Archive, read_archive
from graphweave.data.edges import symmetrise
from graphweave.data.node_data import NO_LABEL, NodeData
from graphweave.data.split import random_split
from graphweave.data.usual_names import FEATURES

_log = logger(__name__)

_RANDOM_FEATURES = 64
"""Number of features that are drawn for each node if the file has none."""

LAYOUT = "src, dst or indptr, dst or edge_index, and num_nodes"

_WANTED = frozenset({
    "src", "dst", "indptr", "num_nodes", "feat", "feat_indptr", "feat_indices", "feat_data", "feat_shape", "y",
    "num_classes", "train_idx", "val_idx", "test_idx",
})  # fmt: skip


def npz(path: str | Path, *, symmetric: bool = False, seed: int = 0) -> NodeData:
    """One homogeneous graph from a file of named arrays, read without pickle.

    Edges: `src` and `dst`, or `indptr` and `dst` grouped by source; `num_nodes`, by default the rows of features, or of
    labels. Features: dense `feat` [N, F], or CSR in `feat_indptr`, `feat_indices`, `feat_data` (of length 1 if all
    entries are equal) and `feat_shape`; by default 64 are drawn from a normal distribution. Labels: `y` (-1 for none)
    and `num_classes`; by default no node has a label. Split: `train_idx`, `val_idx`, `test_idx` (ignored without
    labels); by default the labelled nodes are split 60/20/20 at random. The names of PyG and DGL are understood too
    (docs/data.md). `symmetric` adds reverse edges and drops duplicates and self-loops. `seed` seeds the features and
    the split that are drawn. A line of the log tells of features that are drawn, and one of arrays that are not used.
    """
    return node_data(read_archive(path, LAYOUT, _WANTED.__contains__), symmetric=symmetric, seed=seed)


def node_data(file: Archive, *, symmetric: bool = False, seed: int = 0) -> NodeData:
    """The graph of named arrays, as `npz` reads it."""
    file.need("dst")
    known = "feat" in file or "feat_indptr" in file
    has_labels = "y" in file
    num_nodes = file.count("num_nodes", 8 if known else 4 * _RANDOM_FEATURES)
    edge_index = _edges(file, num_nodes)
    x = file.features("feat", num_nodes)
    drawn = x is None
    if x is None:
        x = torch.randn(num_nodes, _RANDOM_FEATURES, generator=torch.Generator().manual_seed(seed))
    y = file.labels(num_nodes) if has_labels else torch.full((num_nodes,), NO_LABEL, dtype=torch.int64)
    masks = random_split(y, seed)
    if has_labels:
        masks = file.split(num_nodes, "node", "the graph", masks)
    data = NodeData(x, edge_index, y, *masks, file.num_classes(y), file.name)
    if symmetric:
        both = symmetrise(edge_index[0], edge_index[1], num_nodes)
        data = NodeData(x, both, y, *masks, data.num_classes, file.name)
    if drawn:
        _log.warning(
            "%s: no features were found (looked for %s, and 'feat_indptr' of a CSR matrix), so %d random numbers are"
            " drawn for each node.", file.name, ", ".join(map(repr, FEATURES)), _RANDOM_FEATURES,
        )  # fmt: skip
    file.tell_unused()
    return data


def _edges(file: Archive, num_nodes: int) -> Tensor:
    dst = file.integers("dst")
    if "src" in file:
        src = file.integers("src")
    else:
        counts = file.row_lengths("indptr", num_nodes, dst.numel())
        src = torch.repeat_interleave(torch.arange(num_nodes), counts)
    if src.numel() != dst.numel():
        raise DataError(
            f"{file.name}: 'src' and 'dst' must have one length (got {src.numel()} and {dst.numel()})."
            " Correct the file."
        )
    return torch.stack([src, dst])
