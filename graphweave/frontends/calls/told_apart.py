"""Decompositions of calls that tell rows apart, into those that the importer knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

aten = torch.ops.aten

_MAX_COLUMNS = 4
"""A tensor [columns, rows] of at most this many columns is taken as that many numbers for each row, and their number
is compiled in."""


def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct slices along any dim, as distinct rows: those of dim 0. The ends of edges, [2, edges], become two
    numbers for each edge."""
    dim = dim % max(x.dim(), 1)
    if dim == 0:
        return NotImplemented
    few = x.dim() == 2 and guard_or_false(x.shape[0] <= _MAX_COLUMNS)
    rows = torch.stack(x.unbind(0), 1) if few else x.movedim(dim, 0).contiguous()
    found, inverse, counts = aten.unique_dim(rows, 0, sorted, return_inverse, return_counts)
    return torch.stack(found.unbind(1), 0) if few else found.movedim(0, dim).contiguous(), inverse, counts


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The first number of each run of equal ones, the run of each number, and how long each run is."""
    if x.dim() != 1 or dim not in (None, 0, -1):
        return NotImplemented
    place = torch.arange(x.shape[0], device=x.device)
    begins = (place == 0) | (x != x.index_select(0, (place - 1).clamp(min=0)))
    firsts = begins.nonzero().squeeze(1)
    run = begins.cumsum(0) - 1
    counts: Any = torch.zeros_like(firsts).index_add(0, run, torch.ones_like(run))
    return x.index_select(0, firsts), run, counts
