"""Which box of a regular grid each point lies in: `grid`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points.sets import point_sets


def grid(
    pos: Tensor,
    size: Tensor | float | Sequence[float],
    start: Tensor | float | Sequence[float] | None = None,
    end: Tensor | float | Sequence[float] | None = None,
) -> Tensor:
    """The number of the voxel that each point lies in, int64 [N].

    `pos` [N, dims]. Voxels have the edges `size`, begin at `start` and go on to `end`, each one number or one for each
    dim; without these, the least and the greatest coordinates of the points. They are numbered along the first dim
    first. Computed in the dtype of `pos`.

    DataError for other shapes, a size that is not above 0, points that are not finite or not between start and end, and
    more voxels than 64 bits count.
    """
    rows = pos.unsqueeze(1) if pos.dim() == 1 else pos
    return voxels_of(rows.detach(), _corner(rows, size), _corner(rows, start), _corner(rows, end))


@torch.library.custom_op("graphweave::voxels", mutates_args=())
def voxels_of(pos: Tensor, size: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    """See `grid`; with a size, a start and an end for each dim."""
    point_sets("pos", pos, None)
    if not pos.shape[0]:
        return pos.new_empty(0, dtype=torch.int64)
    if not bool((size > 0).all()):
        raise DataError(f"grid: size must be above 0 (got {size.tolist()}). Pass the edges of a voxel.")
    low = pos.amin(0) if start is None else start
    high = pos.amax(0) if end is None else end
    if not torch.stack([size, low, high]).isfinite().all():
        raise DataError(
            f"grid: size, start and end must be finite (got {size.tolist()}, {low.tolist()} and {high.tolist()})."
            " Pass such numbers."
        )
    outside = ((pos < low) | (pos > high)).any(1)
    if outside.any():
        first = int(outside.nonzero()[0])
        raise DataError(
            f"grid: points must lie between start and end, {low.tolist()} and {high.tolist()}"
            f" (got {pos[first].tolist()} for point {first}). Leave out start and end, or remove such points."
        )
    counts = [math.floor(n) + 1 for n in ((high - low) / size).tolist()]
    if math.prod(counts) >= 2**63:
        raise DataError(f"grid: 64 bits must count the voxels (got {counts} of them). Pass larger ones.")
    strides = [math.prod(counts[:d]) for d in range(len(counts))]
    return (((pos - low) / size).long() * torch.tensor(strides, device=pos.device)).sum(1)


@voxels_of.register_fake
def _voxels_of_fake(pos: Tensor, size: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    return pos.new_empty(pos.shape[0], dtype=torch.int64)


def _corner(pos: Tensor, value: Tensor | float | Sequence[float] | None) -> Tensor | None:
    """One number for each dim of `pos`."""
    if value is None:
        return None
    given = torch.as_tensor(value, dtype=pos.dtype, device=pos.device).detach()
    if list(given.shape) not in ([], [1], [pos.shape[1]]):
        raise DataError(
            f"grid: expected one number, or one for each of the {pos.shape[1]} dims (got {list(given.shape)})."
            " Pass as many."
        )
    return given.expand(pos.shape[1]).clone()
