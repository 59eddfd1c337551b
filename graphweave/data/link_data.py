"""`LinkData`: one graph with pairs of nodes to predict, in given splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.node_data import check_edges, check_features


@dataclass(frozen=True, slots=True, eq=False)
class LinkData:
    """A problem of link prediction. Its fields are checked when it is made: it raises DataError if they are wrong.

    `x` [N, F] floating, finite. `joined` has the pairs [2, P] int64 of "train", "val" and "test", of which those of
    "train" are the graph that a model sees; `others` has pairs of "val" and "test" that are not joined. `name` is for
    messages.
    """

    x: Tensor
    joined: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    name: str

    @property
    def num_nodes(self) -> int:
        return self.x.size(0)

    @property
    def edge_index(self) -> Tensor:
        """The pairs of "train", both ways."""
        train = self.joined["train"]
        return torch.cat([train, train.flip(0)], 1)

    def __post_init__(self) -> None:
        check_features(self.name, self.x)
        for given, parts in ((self.joined, {"train", "val", "test"}), (self.others, {"val", "test"})):
            if given.keys() != parts:
                raise DataError(f"{self.name}: expected pairs of {sorted(parts)} (got {sorted(given)}). Add them.")
            for part, pairs in given.items():
                check_edges(f"{self.name}: pairs of {part}", pairs, self.num_nodes)
