"""Points of a batch as native code takes them: float64, set after set, and checked."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points.searches import RawPointSets

_SAFE = 1e150
"""Squares of numbers up to this one, and sums of them, are finite in float64."""


class PointSets(NamedTuple):
    """The sets of a batch that have points."""

    coordinates: Tensor
    """float64 [points, dims], on the CPU and contiguous."""
    starts: Tensor
    """int64 [sets + 1]: set s has the points starts[s] to starts[s + 1]."""
    numbers: Tensor
    """int64 [sets]: the number of each set in the batch, in rising order."""

    def raw(self) -> RawPointSets:
        """The addresses, valid while this object lives."""
        count, dims = self.coordinates.shape
        assert count == int(self.starts[-1])
        return RawPointSets(self.coordinates.data_ptr(), self.starts.data_ptr(), self.numbers.numel(), dims)

    def scaled(self, factor: float) -> PointSets:
        return self if factor == 1 else self._replace(coordinates=self.coordinates * factor)

    @property
    def largest(self) -> float:
        """The largest absolute value of a coordinate; 0 without points."""
        return float(self.coordinates.abs().amax()) if self.coordinates.numel() else 0.0


def point_sets(what: str, points: Tensor, batch: Tensor | None) -> PointSets:
    """Points [points, dims] with the sorted numbers of their sets; one set, of number 0, without `batch`.

    DataError for other shapes and dtypes, coordinates that are not finite and numbers that are not sorted or below 0;
    `what` names the points in these messages.
    """
    if points.dim() != 2 or points.shape[1] == 0 or not points.dtype.is_floating_point:
        raise DataError(
            f"{what}: expected points as floating-point numbers [points, dims], dims > 0"
            f" (got {points.dtype} {list(points.shape)}). Pass these."
        )
    coordinates = points.detach().to("cpu", torch.float64).contiguous()
    finite = coordinates.isfinite().all(1)
    if not finite.all():
        first = int((~finite).nonzero()[0])
        raise DataError(
            f"{what}: coordinates must be finite (got {points[first].tolist()} for point {first})."
            " Remove such points, or look for what made them."
        )
    if batch is None:
        count = len(points)
        starts = [0, count] if count else [0]
        return PointSets(coordinates, _integers(starts), _integers([0] if count else []))
    numbers, counts = _checked_batch(what, batch, len(points)).unique_consecutive(return_counts=True)
    return PointSets(coordinates, torch.cat([counts.new_zeros(1), counts.cumsum(0)]), numbers)


def check_alike(what: str, x: Tensor, y: Tensor) -> None:
    """DataError if points are of different dims or dtypes."""
    if x.dtype != y.dtype or x.shape[1:] != y.shape[1:]:
        raise DataError(
            f"{what}: x and y must have the same dtype and dims (got {x.dtype} {list(x.shape)} and {y.dtype}"
            f" {list(y.shape)}). Convert one of them."
        )


def safe_factor(*sizes: float) -> float:
    """A power of two. With coordinates of these sizes times it, squares of distances are finite, and not all 0; it is 1
    unless numbers are extreme. Products with it are exact, but for coordinates that are tiny compared with others."""
    largest = max(sizes)
    return 1.0 if largest == 0 or 1 / _SAFE < largest < _SAFE else 2.0 ** -max(math.frexp(largest)[1], -1000)


def _checked_batch(what: str, batch: Tensor, count: int) -> Tensor:
    if batch.dtype not in (torch.int64, torch.int32) or list(batch.shape) != [count]:
        raise DataError(
            f"{what}: batch must be int64 [{count}], the set of each point (got {batch.dtype} {list(batch.shape)})."
            " Pass one number for each point."
        )
    numbers = batch.detach().to("cpu", torch.int64)
    if count and (int(numbers[0]) < 0 or bool((numbers[1:] < numbers[:-1]).any())):
        raise DataError(
            f"{what}: batch must be sorted and not negative (got {numbers[:8].tolist()}{' ...' if count > 8 else ''})."
            " Pass points that are sorted by their set."
        )
    return numbers


def _integers(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device="cpu")
