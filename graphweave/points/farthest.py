"""Points that are far from each other: `fps`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points.native import library
from graphweave.points.near import no_memory
from graphweave.points.sets import point_sets, safe_factor
from graphweave.runtime import threads


def fps(x: Tensor, batch: Tensor | None = None, ratio: float = 0.5, random_start: bool = True) -> Tensor:
    """The share `ratio` of the points of each set, each the one that is farthest from those before it, int64 [chosen].

    `x` [N, dims]; `batch` [N]: the sorted numbers of the sets that the points belong to. A set of n points gives
    n * ratio of them, rounded up, in the order in which they are chosen, set after set. The first is drawn from
    PyTorch's generator, or is the first of the set without `random_start`. Of equally far points, the one of the lower
    number is chosen, and none twice.

    Source: Eldar et al., "The Farthest Point Strategy for Progressive Image Sampling", 1997. DataError for other
    shapes, a ratio that is not above 0 and at most 1, coordinates that are not finite, and batches that are not sorted.
    """
    if not 0 < ratio <= 1:
        raise DataError(f"fps: ratio must be above 0 and at most 1 (got {ratio}). Pass the share of points to choose.")
    key = torch.randint(2**62, (1,)) if random_start else None
    return far_points(x.detach(), batch, float(ratio), key)


@torch.library.custom_op("graphweave::far_points", mutates_args=())
def far_points(x: Tensor, batch: Tensor | None, ratio: float, key: Tensor | None) -> Tensor:
    """See `fps`. The first points are drawn with the number `key`; None for those of the lowest numbers."""
    points = point_sets("x", x, batch)
    points = points.scaled(safe_factor(points.largest))
    counts = points.starts.diff()
    first = points.starts[:-1].clone()
    if key is not None:
        draws = torch.rand(
            counts.shape, generator=torch.Generator().manual_seed(int(key)), dtype=torch.float64, device="cpu"
        )
        first += (draws * counts).long().clamp(max=counts - 1)
    # ratios such as 0.1 are not exact: 0.1 of 30 points are 3
    wanted = [math.ceil(n * ratio * (1 - 1e-12)) for n in counts.tolist()]
    offsets = torch.tensor([0, *wanted], dtype=torch.int64, device="cpu").cumsum(0)
    out = torch.empty(sum(wanted), dtype=torch.int64, device="cpu")
    if library().gw_far_points(
        points.raw(), first.data_ptr(), offsets.data_ptr(), out.data_ptr(), threads.num_threads()
    ):
        raise no_memory("fps", "")
    return out.to(x.device)


@far_points.register_fake
def _far_points_fake(x: Tensor, batch: Tensor | None, ratio: float, key: Tensor | None) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)
