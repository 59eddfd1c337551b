"""Row orders that place neighbours near each other: reverse Cuthill-McKee, by degree, and along a Hilbert curve."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

RowOrder: TypeAlias = Literal["degree", "locality"]
"""Nodes of most edges first, or the reverse Cuthill-McKee order."""


_WINDOWS = 8


_kept: dict[tuple[int, ...], Tensor] = {}


def places_of(src: Tensor, dst: Tensor, num_nodes: int, order: RowOrder, *, keep: bool = False) -> Tensor:
    """The place of each node [num_nodes], int64, in an order of the graph with the edges (src[e], dst[e]).

    `degree`: nodes of most edges, of both directions, first; others of equal degree as they are. `locality`: see
    `cuthill_mckee`. Negative indices count from the end; edges whose ends are out of range count for nothing. With
    `keep` the next call for equal edges gets the same result, which is made once where it is first judged, then used.
    """
    if num_nodes == 0:
        return torch.empty(0, dtype=torch.int64, device=dst.device)
    key = (num_nodes, int(order == "locality"), src.numel(), _digest(src), _digest(dst))
    if key in _kept:
        return _kept.pop(key)
    place = _places(src, dst, num_nodes, order)
    if keep:
        _kept.clear()
        _kept[key] = place
    return place


def _digest(index: Tensor) -> int:
    """A number that is likely to differ for other indices. If it does not, their order is no worse than none."""
    mixed = torch.arange(index.numel(), device=index.device).add_(index).mul_(0x1F123BB5159A55E5)
    return int(mixed.bitwise_xor_(mixed >> 31).sum())


def _places(src: Tensor, dst: Tensor, num_nodes: int, order: RowOrder) -> Tensor:
    ends = torch.stack([src, dst]).cpu().long()
    ends = torch.where(ends < 0, ends + num_nodes, ends)
    ends = ends[:, ((ends >= 0) & (ends < num_nodes)).all(0)]
    if order == "locality":
        place, _ = cuthill_mckee(ends[1], ends[0], num_nodes, num_nodes, True)
    else:
        degree = torch.bincount(ends.reshape(-1), minlength=num_nodes)
        place = inverse(degree.argsort(descending=True, stable=True))
    return place.to(dst.device)


def fresh_share(walked: Tensor, gathered: Tensor, num_rows: int, held: int) -> float:
    """The share of edges whose row is not among the last `held` rows that were gathered, if edge e belongs to row
    walked[e] and gathers row gathered[e], and rows are walked in the order of their numbers.

    An estimate: in eight windows of rows with about 2 `held` edges each, a row counts as fresh where it is first
    gathered, unless the first half of the window has gathered it. It is 0 without edges.
    """
    width = max(1, held * num_rows // max(1, walked.numel()))
    windows = max(1, num_rows // (2 * width))
    chosen = torch.zeros(windows + 1, dtype=torch.bool)
    chosen[torch.linspace(0, windows - 1, _WINDOWS).long()] = True
    window = (walked.long() % num_rows) // (2 * width)
    sampled = chosen[window.clamp_(max=windows)].nonzero().squeeze(1)
    window, late = window[sampled], (walked[sampled].long() % num_rows) % (2 * width) >= width
    if not int(late.sum()):
        return 0.0
    key = window * num_rows + gathered[sampled].long() % num_rows
    rows, place = key.unique(return_inverse=True)
    early = torch.zeros(rows.numel(), dtype=torch.bool)
    early[place[~late]] = True
    return float((~early).sum()) / float(late.sum())


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
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    shift = 0 if one_space else num_rows
    size = num_rows if one_space else num_rows + num_sources
    if size == 0:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    narrow = torch.int32 if size < 2**31 else torch.int64  # SciPy takes three times as long with 64 bits
    ends = rows.to(narrow).numpy(), (sources + shift).to(narrow).numpy()
    edges = csr_matrix((numpy.ones(rows.numel(), dtype=bool), ends), shape=(size, size))
    order = reverse_cuthill_mckee(edges + edges.T.tocsr(), symmetric_mode=True)
    order = torch.from_numpy(order.astype(numpy.int64))
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
