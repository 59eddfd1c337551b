"""Row orders that place neighbours near each other: reverse Cuthill-McKee, by degree, and along a Hilbert curve."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

RowOrder: TypeAlias = Literal["degree", "locality"]
"""Nodes of most edges first, or the reverse Cuthill-McKee order."""


def places_of(src: Tensor, dst: Tensor, num_nodes: int, order: RowOrder) -> Tensor:
    """The place of each node [num_nodes], int64, in an order of the graph with the edges (src[e], dst[e]).

    `degree`: nodes of most edges, of both directions, first; others of equal degree as they are. `locality`: see
    `cuthill_mckee`. Negative indices count from the end; edges whose ends are out of range count for nothing.
    """
    if num_nodes == 0:
        return torch.empty(0, dtype=torch.int64, device=dst.device)
    ends = torch.stack([src, dst]).cpu().long()
    ends = torch.where(ends < 0, ends + num_nodes, ends)
    ends = ends[:, ((ends >= 0) & (ends < num_nodes)).all(0)]
    if order == "locality":
        place, _ = cuthill_mckee(ends[1], ends[0], num_nodes, num_nodes, True)
    else:
        degree = torch.bincount(ends.reshape(-1), minlength=num_nodes)
        place = inverse(degree.argsort(descending=True, stable=True))
    return place.to(dst.device)


def inverse(permutation: Tensor) -> Tensor:
    """out[permutation[i]] = i. [n], int64 -> [n], int64."""
    out = torch.empty_like(permutation)
    out[permutation] = torch.arange(permutation.numel(), device=permutation.device)
    return out


def cuthill_mckee(
    rows: Tensor, sources: Tensor, num_rows: int, num_sources: int, one_space: bool
) -> tuple[Tensor, Tensor]:
    """The reverse Cuthill-McKee order as the rank of each row [num_rows] and of each source [num_sources], int64.

    The graph has the undirected edges (rows[e], sources[e]). With `one_space`, row i and source i are one node; else
    they are different nodes. Ranks begin at 0 and are unique among all nodes (Cuthill and McKee, "Reducing the
    bandwidth of sparse symmetric matrices", 1969; SciPy's implementation).
    """
    import numpy  # loading it with SciPy takes 0.2 s
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    shift = 0 if one_space else num_rows
    size = num_rows if one_space else num_rows + num_sources
    if size == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    ends = numpy.stack([rows.numpy(), sources.numpy() + shift])
    both = numpy.concatenate([ends, ends[::-1]], axis=1)
    matrix = coo_matrix((numpy.ones(both.shape[1], dtype=numpy.int8), tuple(both)), shape=(size, size)).tocsr()
    order = torch.from_numpy(reverse_cuthill_mckee(matrix, symmetric_mode=True).astype(numpy.int64))
    rank = torch.empty(size, dtype=torch.int64)
    rank[order] = torch.arange(size)
    return rank[:num_rows], rank[shift : shift + num_sources]


def hilbert(x: Tensor, y: Tensor) -> Tensor:
    """The position of each cell (x[i], y[i]), int64 from 0 on, along the Hilbert curve over the smallest square of 2^k
    cells a side that holds them all. Consecutive cells of the curve share an edge (Hilbert, 1891)."""
    most = max([int(t.max()) for t in (x, y) if t.numel()], default=0)
    place = torch.zeros_like(x)
    for bit in reversed(range(most.bit_length())):
        side = 1 << bit
        right, upper = (x & side) != 0, (y & side) != 0
        place += side * side * ((3 * right.long()) ^ upper.long())
        x, y = x & (side - 1), y & (side - 1)
        flipped = right & ~upper
        x, y = torch.where(flipped, side - 1 - x, x), torch.where(flipped, side - 1 - y, y)
        x, y = torch.where(upper, x, y), torch.where(upper, y, x)
    return place
