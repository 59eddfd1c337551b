"""Point clouds of equally many points, with a class for each cloud."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.archive import Archive, read_archive
from graphweave.data.split import random_split

_LAYOUT = "points [clouds, points, 3] or grid_packed and grid_shape, and y"

_POINTS = 512
"""Points that are drawn from the surface of each voxel grid."""


@dataclass(frozen=True, slots=True, eq=False)
class PointSet:
    """`points` [C, P, 3] floating, each cloud centred and within the unit ball; `y` [C] int64 in 0..num_classes-1; the
    masks are [C] bool."""

    points: Tensor
    y: Tensor
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    num_classes: int
    name: str


def point_set(path: str | Path, *, seed: int = 0) -> PointSet:
    """Point clouds from a file of named arrays, read without pickle.

    `points` [C, P, 3], or voxels as `grid_packed` [C, bytes] (bits) with `grid_shape` [3], of whose surface 512 points
    are drawn by `seed`; classes `y` [C]. `is_test` [C] marks test clouds; by default, and for validation, clouds are
    drawn by `seed` (60/20/20, or a fifth of those that are no test clouds). DataError for anything else.
    """
    file = read_archive(path, _LAYOUT)
    count = file.need("y").shape[0] if file.need("y").ndim else 0
    y = file.labels(count)
    if not count or int(y.min()) < 0:
        raise DataError(f"{file.name}: every cloud needs a class in 'y' (got {count} clouds). Correct the file.")
    points = file.real("points") if "points" in file else _of_voxels(file, count, seed)
    if points.dim() != 3 or points.size(0) != count or points.size(2) != 3 or not bool(points.isfinite().all()):
        raise DataError(
            f"{file.name}: points must be finite, of shape [{count}, points, 3] (got {list(points.shape)})."
            " Correct the file."
        )
    points = points - points.mean(1, keepdim=True)
    points = points / points.norm(dim=2).amax(1).clamp(min=1e-12).view(-1, 1, 1)
    data = PointSet(points, y, *_masks(file, y, seed), file.num_classes(y), file.name)
    file.tell_unused()
    return data


def _masks(file: Archive, y: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    if "is_test" not in file:
        return random_split(y, seed)
    test = file.integers("is_test") != 0
    if test.numel() != y.numel():
        raise DataError(
            f"{file.name}: 'is_test' must have one number for each of {y.numel()} clouds (got {test.numel()})."
            " Correct the file."
        )
    train, val, rest = random_split(torch.where(test, -1, y), seed, 0.8, 0.2)
    return train, val | rest, test


def _of_voxels(file: Archive, count: int, seed: int) -> Tensor:
    shape = tuple(file.integers("grid_shape").tolist())
    packed = file.need("grid_packed")
    if len(shape) != 3 or packed.dtype != np.uint8 or packed.shape != (count, -(-int(np.prod(shape)) // 8)):
        raise DataError(
            f"{file.name}: 'grid_packed' must hold the bits of {count} grids of 'grid_shape' {list(shape)} (got"
            f" {packed.dtype} {list(packed.shape)}). Correct the file."
        )
    random, out = np.random.default_rng(seed), np.empty((count, _POINTS, 3), dtype=np.float32)
    for i, bits in enumerate(packed):
        grid = np.unpackbits(bits)[: int(np.prod(shape))].reshape(shape).astype(bool)
        inner = grid.copy()
        for axis in range(3):
            for step in (-1, 1):
                inner &= np.roll(np.pad(grid, 1), step, axis)[1:-1, 1:-1, 1:-1]
        surface = np.argwhere(grid & ~inner)
        if not len(surface):
            raise DataError(f"{file.name}: grid {i} is empty. Leave it out of the file.")
        chosen = surface[random.choice(len(surface), _POINTS, replace=len(surface) < _POINTS)]
        out[i] = chosen + random.random((_POINTS, 3))
    return torch.from_numpy(out)
