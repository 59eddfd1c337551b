"""One graph with types of nodes and edges, labels for some nodes, and a split."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.node_data import check_edges, check_features, check_labels, check_mask


@dataclass(frozen=True, slots=True, eq=False)
class TypedNodeData:
    """Node classification in a relational graph. Its fields are checked when it is made: it raises DataError if they
    are wrong.

    Nodes are grouped by type; `node_counts` [T] is the number of each, N in all. `edge_index` [2, E] int64 has the
    sources in row 0. `etype` [E] int64 is in 0..num_rels-1, which counts inverse relations. `features`: for each node
    type [count, F] floating, or None if it has none. `y` [N] int64 is in -1..num_classes-1. The masks are [N] bool.
    """

    node_counts: tuple[int, ...]
    features: tuple[Tensor | None, ...]
    edge_index: Tensor
    etype: Tensor
    num_rels: int
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    name: str

    @property
    def num_nodes(self) -> int:
        return sum(self.node_counts)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    @property
    def ntype(self) -> Tensor:
        """Type of each node [N]."""
        return torch.repeat_interleave(torch.arange(len(self.node_counts)), torch.tensor(self.node_counts))

    def __post_init__(self) -> None:
        name, nodes = self.name, self.num_nodes
        if len(self.features) != len(self.node_counts):
            raise DataError(
                f"{name}: expected features, or None, for each of {len(self.node_counts)} node types "
                f"(got {len(self.features)})."
                " Correct the data."
            )
        for x, count in zip(self.features, self.node_counts, strict=True):
            if x is not None:
                check_features(name, x)
                if x.size(0) != count:
                    raise DataError(f"{name}: features of {x.size(0)} nodes for a type of {count}. Correct the data.")
        check_edges(name, self.edge_index, nodes)
        if self.etype.shape != self.edge_index.shape[1:] or self.etype.dtype != torch.int64:
            raise DataError(
                f"{name}: relations must be int64 [{self.num_edges}], one for each edge "
                f"(got {self.etype.dtype}, {list(self.etype.shape)})."
                " Correct the data."
            )
        bad = (self.etype < 0) | (self.etype >= self.num_rels)
        if bool(bad.any()):
            edge = int(bad.nonzero()[0])
            raise DataError(
                f"{name}: relation {int(self.etype[edge])} of edge {edge} is out of range: there are {self.num_rels} "
                "relations."
                " Correct the data."
            )
        check_labels(name, self.y, nodes, self.num_classes)
        for part, mask in (("train", self.train_mask), ("val", self.val_mask), ("test", self.test_mask)):
            check_mask(name, part, mask, self.y)
