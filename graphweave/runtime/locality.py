"""Row orders that place neighbours near each other: reverse Cuthill-McKee, and positions along a Hilbert curve."""

from __future__ import annotations

import torch
from torch import Tensor


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
