"""`NodeData`: one graph with node features, labels and a split, and checks of each of these."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError

NO_LABEL = -1
"""Label of a node without a label. Such a node may not be in a mask."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeData:
    """A node-classification problem. Its fields are checked when it is made: it raises DataError if they do not fit
    together.

    `x` [N, F] floating, finite. `edge_index` [2, E] int64, row 0 the sources, row 1 the destinations, both in 0..N-1.
    `y` [N] int64, in -1..num_classes-1. The masks are [N] bool. `name` is for messages.
    """

    x: Tensor
    edge_index: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    name: str

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    def __post_init__(self) -> None:
        check_features(self.name, self.x)
        check_edges(self.name, self.edge_index, self.num_nodes)
        check_labels(self.name, self.y, self.num_nodes, self.num_classes)
        for part, mask in (("train", self.train_mask), ("val", self.val_mask), ("test", self.test_mask)):
            check_mask(self.name, part, mask, self.y)


def check_features(name: str, x: Tensor) -> None:
    if x.dim() != 2:
        raise DataError(
            f"{name}: node features must have shape [nodes, features] (got {list(x.shape)}). Correct the data."
        )
    if not x.is_floating_point():
        raise DataError(f"{name}: node features must be floating-point (got {x.dtype}). Convert them with .float().")
    finite = torch.isfinite(x).all(dim=1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(f"{name}: node features must be finite (row {row} has NaN or infinity). Replace them first.")


def check_edges(name: str, edge_index: Tensor, num_nodes: int) -> None:
    if edge_index.dim() != 2 or edge_index.size(0) != 2:
        raise DataError(
            f"{name}: edge_index must have shape [2, edges] (got {list(edge_index.shape)}). Correct the data."
        )
    if edge_index.dtype != torch.int64:
        raise DataError(f"{name}: edge_index must be int64 (got {edge_index.dtype}). Convert it with .long().")
    bad = (edge_index < 0) | (edge_index >= num_nodes)
    if bool(bad.any()):
        row, edge = bad.nonzero()[0].tolist()
        raise DataError(
            f"{name}: node {int(edge_index[row, edge])} at edge {edge} ({('src', 'dst')[row]}) is out of range: "
            f"the graph has {num_nodes} nodes."
            " Correct the data."
        )


def check_labels(name: str, y: Tensor, num_nodes: int, num_classes: int) -> None:
    if list(y.shape) != [num_nodes]:
        raise DataError(
            f"{name}: labels must have shape [{num_nodes}], one for each node (got {list(y.shape)}). Correct the data."
        )
    if y.dtype != torch.int64:
        raise DataError(f"{name}: labels must be int64 (got {y.dtype}). Convert it with .long().")
    bad = (y < NO_LABEL) | (y >= num_classes)
    if bool(bad.any()):
        node = int(bad.nonzero()[0])
        raise DataError(
            f"{name}: label {int(y[node])} of node {node} is out of range: there are {num_classes} classes."
            " Correct the data."
        )


def check_mask(name: str, part: str, mask: Tensor, y: Tensor) -> None:
    if mask.shape != y.shape or mask.dtype != torch.bool:
        raise DataError(
            f"{name}: {part}_mask must be bool of shape {list(y.shape)} (got {mask.dtype}, {list(mask.shape)})."
            " Correct the data."
        )
    unlabelled = mask & (y == NO_LABEL)
    if bool(unlabelled.any()):
        node = int(unlabelled.nonzero()[0])
        raise DataError(
            f"{name}: node {node} is in the {part} split but has no label. Give it one, or take it out of the split."
        )
