"""Small seeded inputs shared by the zoo's cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Built:
    """A module and the arguments of one call."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Make = Callable[[], Built]

NODES = 20
"""Rows of the homogeneous graph; the last two have no edge."""
EDGES = 60
IN = 8
OUT = 12
EDGE_DIM = 5
RELATIONS = 3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape)


def edges(num_src: int = NODES - 2, num_dst: int | None = None, num_edges: int = EDGES) -> Tensor:
    """Random edge index [2, num_edges]; the first edge is a self-loop and the second is listed twice."""
    num_dst = num_src if num_dst is None else num_dst
    index = torch.stack([torch.randint(num_src, (num_edges,)), torch.randint(num_dst, (num_edges,))])
    index[:, 0] = 0
    index[:, 2] = index[:, 1]
    return index


def undirected() -> Tensor:
    """Both directions of 30 random edges without self-loops, sorted by source, [2, E]."""
    src = torch.randint(NODES, (30,))
    dst = (src + 1 + torch.randint(NODES - 1, (30,))) % NODES
    key = torch.unique(torch.cat([src * NODES + dst, dst * NODES + src]))
    return torch.stack([key // NODES, key % NODES])


def batch(num_nodes: int = NODES, num_graphs: int = 3) -> Tensor:
    """Sorted graph number of each node, [num_nodes]."""
    return torch.sort(torch.cat([torch.arange(num_graphs), torch.randint(num_graphs, (num_nodes - num_graphs,))]))[0]


METADATA = (
    ["paper", "author"],
    [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")],
)
"""Node types and edge types of the heterogeneous inputs."""


def hetero() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    """Features [8 or 6, IN] and edge index by type."""
    counts = {"paper": 8, "author": 6}
    x = {name: randn(rows, IN) for name, rows in counts.items()}
    index = {kind: edges(counts[kind[0]], counts[kind[2]], 15) for kind in METADATA[1]}
    return x, index
