"""The awkward zoo: small graphs on which careless kernels go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class EdgeList(NamedTuple):
    """Edges src[e] -> dst[e], int64 [num_edges], between `num_src` and `num_dst` rows; src and dst rows are the same
    nodes where `square`."""

    name: str
    src: Tensor
    dst: Tensor
    num_src: int
    num_dst: int

    @property
    def square(self) -> bool:
        return self.num_src == self.num_dst


MAX_ROWS = 64
"""Upper limit on the nodes and on the edges of a graph of the zoo."""


def zoo(seed: int = 0) -> list[EdgeList]:
    """Each awkward graph once. `seed` determines the random ones."""
    generator = torch.Generator().manual_seed(seed)
    hub_dst = torch.randint(12, (48,), generator=generator)
    hub_dst[torch.randperm(48, generator=generator)[:24]] = 5
    some_src, some_dst = _random(10, 10, 40, generator)
    order = torch.argsort(some_dst, stable=True)
    few_src, few_dst = _random(4, 4, 6, generator)
    power = torch.rand(60, generator=generator, dtype=torch.float64).pow(3).mul(30).long()
    loops = torch.arange(6)
    return [
        _edges("empty", [], [], 0, 0),
        _edges("one_node", [], [], 1, 1),
        _edges("one_node_loop", [0], [0], 1, 1),
        _edges("no_edges", [], [], 5, 5),
        _edges("no_edges_no_src", [], [], 0, 3),
        _edges("one_edge", [2], [0], 3, 3),
        _edges("isolated", 2 + few_src, 3 + few_dst, 9, 9),
        _edges("self_loops", torch.cat([loops, few_src]), torch.cat([loops, few_dst]), 6, 6),
        _edges("duplicates", few_src.repeat(3), few_dst.repeat(3), 4, 4),
        _edges("hub_dst", torch.randint(12, (48,), generator=generator), hub_dst, 12, 12),
        _edges("hub_src", hub_dst, torch.randint(12, (48,), generator=generator), 12, 12),
        _edges("unsorted", some_src, some_dst, 10, 10),
        _edges("sorted_by_dst", some_src[order], some_dst[order], 10, 10),
        _edges("bipartite", *_random(7, 4, 20, generator), 7, 4),
        _edges("bipartite_wide", *_random(2, 33, 31, generator), 2, 33),
        _edges("power_law", torch.randint(30, (60,), generator=generator), power, 30, 30),
    ]


def _edges(name: str, src: Tensor | Sequence[int], dst: Tensor | Sequence[int], num_src: int, num_dst: int) -> EdgeList:
    src, dst = (torch.as_tensor(index, dtype=torch.int64) for index in (src, dst))
    return EdgeList(name, src, dst, num_src, num_dst)


def _random(num_src: int, num_dst: int, num_edges: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    src = torch.randint(num_src, (num_edges,), generator=generator)
    return src, torch.randint(num_dst, (num_edges,), generator=generator)
