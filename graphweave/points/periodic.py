"""Pairs of atoms within a cutoff, in cells that repeat themselves: `neighbours`, `displacements`."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points import native
from graphweave.points.native import RawPeriodic
from graphweave.points.near import no_memory, pairs_of
from graphweave.points.sets import PointSets, point_sets
from graphweave.runtime import threads

_FLAT = 1e-12
"""Cells whose least singular value is that small a part of the greatest are singular."""


class Neighbours(NamedTuple):
    """Pairs of atoms that are near each other."""

    pairs: Tensor
    """int64 [2, pairs]: atoms i and j; each pair is there in both orders."""
    shifts: Tensor
    """[pairs, dims], whole numbers in the dtype of positions: by how many cells j is shifted along each row of the
    cell. `pos[j] + shift @ cell - pos[i]` leads from i to j."""


def neighbours(
    pos: Tensor,
    cutoff: float,
    cell: Tensor | None = None,
    periodic: bool | Sequence[bool] | Tensor = True,
    batch: Tensor | None = None,
) -> Neighbours:
    """All pairs of atoms that are at most `cutoff` apart, images in other cells included.

    `pos` [N, dims], anywhere in space. `cell` [dims, dims] has the vectors of the cell as rows, of any shape and also
    shorter than the cutoff; [systems, dims, dims] has a cell for each system of `batch` [N], the sorted numbers of the
    systems that atoms belong to. `periodic`: whether systems repeat along each row of their cell, one value for all,
    one for each row, or [systems, dims]. Rows along which they do not repeat may be anything, such as 0. Without a
    cell nothing repeats.

    Pairs are sorted by i, then j, then shift. An atom is not its own neighbour, but its images are. Distances are
    computed in float64 and equal in both orders of a pair. Results are whole numbers and have no derivatives:
    compute distances from them (`displacements`), which are differentiable in positions and cells.

    DataError for other shapes, different dtypes, a cutoff that is not above 0 and finite, positions and cells that are
    not finite, batches that are not sorted, a cell that is singular, and more cells or pairs than can be counted.
    """
    if not 0 < cutoff < math.inf:
        raise DataError(f"neighbours: cutoff must be above 0 and finite (got {cutoff}). Pass the largest distance.")
    flags = None if periodic is True else torch.as_tensor(periodic, dtype=torch.bool)
    return Neighbours(*near_images(pos.detach(), float(cutoff), None if cell is None else cell.detach(), flags, batch))


def displacements(pos: Tensor, found: Neighbours, cell: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
    """The vector from i to j of each pair, [pairs, dims], differentiable in `pos` and `cell`, which are those that
    `neighbours` was given."""
    i, j = found.pairs[0], found.pairs[1]
    apart = pos[j] - pos[i]
    if cell is None:
        return apart
    if cell.dim() == 2:
        return apart + found.shifts @ cell
    cells = cell[0].expand(pos.shape[0], -1, -1) if batch is None else cell[batch]
    return apart + (found.shifts.unsqueeze(2) * cells[i]).sum(1)


@torch.library.custom_op("graphweave::near_images", mutates_args=())
def near_images(
    pos: Tensor, cutoff: float, cell: Tensor | None, periodic: Tensor | None, batch: Tensor | None
) -> tuple[Tensor, Tensor]:
    """See `neighbours`."""
    systems = Systems(pos, cell, periodic, batch)
    functions, count, workers = native.library(), ctypes.c_int64(), threads.num_threads()
    handle = functions.gw_neighbours_new(systems.raw(), cutoff, native.MOST_KEPT, workers, count)
    if not handle:
        raise no_memory("neighbours", "")
    try:
        if count.value < 0:
            raise DataError(
                f"neighbours: 64 bits must count the images of atoms within the cutoff {cutoff}"
                " (got more, or atoms that are 2^53 cells away). Pass a smaller cutoff, or correct positions and cells."
            )
        pairs = pairs_of(count.value, "neighbours")
        shifts = torch.empty(count.value, pos.shape[1], dtype=torch.float64, device="cpu")
        if functions.gw_neighbours_take(handle, pairs.data_ptr(), shifts.data_ptr(), workers):
            raise no_memory("neighbours", f" of {count.value} pairs")
    finally:
        functions.gw_neighbours_free(handle)
    return pairs.to(pos.device), _rounded(shifts, pos)


@near_images.register_fake
def _near_images_fake(
    pos: Tensor, cutoff: float, cell: Tensor | None, periodic: Tensor | None, batch: Tensor | None
) -> tuple[Tensor, Tensor]:
    pairs = torch.library.get_ctx().new_dynamic_size()
    return pos.new_empty(2, pairs, dtype=torch.int64), pos.new_empty(pairs, pos.shape[1])


class Systems:
    """Atoms of a batch and their cells, as native code takes them."""

    def __init__(self, pos: Tensor, cell: Tensor | None, periodic: Tensor | None, batch: Tensor | None) -> None:
        self.atoms: PointSets = point_sets("neighbours", pos, batch)
        dims = pos.shape[1]
        self.cells = torch.zeros(self.atoms.numbers.numel(), dims, dims, dtype=torch.float64, device="cpu")
        self.inverses = self.cells
        if cell is not None:
            repeats = _flags(self.atoms, dims, cell, periodic)
            self.cells = torch.where(repeats.unsqueeze(2), _cells(self.atoms, pos, cell), 0.0).contiguous()
            self.inverses = _inverses(self.atoms, self.cells, repeats)

    def raw(self) -> RawPeriodic:
        """The addresses, valid while this object lives."""
        return RawPeriodic(self.atoms.raw(), self.cells.data_ptr(), self.inverses.data_ptr())

    def of_atoms(self) -> Tensor:
        """int64 [atoms]: the place of each atom's system among those that have atoms."""
        return torch.arange(self.atoms.numbers.numel(), device="cpu").repeat_interleave(self.atoms.starts.diff())


def _cells(atoms: PointSets, pos: Tensor, cell: Tensor) -> Tensor:
    """The cell of each system that has atoms, float64 [systems, dims, dims]."""
    dims, most = pos.shape[1], int(atoms.numbers[-1]) + 1 if atoms.numbers.numel() else 0
    shape = list(cell.shape)
    if shape != [dims, dims] and (len(shape) != 3 or shape[1:] != [dims, dims] or shape[0] < most):
        raise DataError(
            f"neighbours: cell must be [{dims}, {dims}] or [{most}, {dims}, {dims}], a cell for each system"
            f" (got {shape}). Pass the vectors of each cell as its rows."
        )
    if cell.dtype != pos.dtype:
        raise DataError(
            f"neighbours: pos and cell must have one dtype (got {pos.dtype} and {cell.dtype}). Convert one of them."
        )
    wide = cell.to("cpu", torch.float64)
    if not wide.isfinite().all():
        raise DataError(f"neighbours: cells must be finite (got {wide.tolist()}). Correct them.")
    return wide[atoms.numbers] if wide.dim() == 3 else wide.expand(atoms.numbers.numel(), dims, dims)


def _flags(atoms: PointSets, dims: int, cell: Tensor, periodic: Tensor | None) -> Tensor:
    """Whether each system repeats along each row of its cell, bool [systems, dims]."""
    if periodic is None:
        return torch.ones(atoms.numbers.numel(), dims, dtype=torch.bool, device="cpu")
    shape, systems = list(periodic.shape), len(cell) if cell.dim() == 3 else 1
    if shape not in ([], [dims], [systems, dims]):
        raise DataError(
            f"neighbours: periodic must be one value, [{dims}] or [{systems}, {dims}] (got {shape})."
            " Say of each row of the cell whether the system repeats along it."
        )
    flags = periodic.to("cpu")
    if len(shape) == 2 and cell.dim() == 3:
        return flags[atoms.numbers]
    return flags.expand(atoms.numbers.numel(), dims)


def _inverses(atoms: PointSets, cells: Tensor, repeats: Tensor) -> Tensor:
    """The matrix of each system that gives places in units of its cell, pos @ inverse. DataError for a flat cell."""
    left, sizes, right = torch.linalg.svd(cells)
    kept = torch.arange(cells.shape[1], device="cpu") < repeats.sum(1, keepdim=True)
    flat = (kept & ~(sizes > _FLAT * sizes[:, :1])).any(1) | (sizes[:, :1] > sys.float_info.max / 4).any(1)
    if flat.any():
        first = int(flat.nonzero()[0])
        raise DataError(
            f"neighbours: the vectors of a cell along which it repeats must be independent (got"
            f" {cells[first][repeats[first]].tolist()} for system {int(atoms.numbers[first])})."
            " Correct the cell, or pass periodic=False for vectors that are none."
        )
    inverted = torch.where(kept, 1 / sizes, 0.0)
    return torch.where(repeats.unsqueeze(1), right.mT * inverted.unsqueeze(1) @ left.mT, 0.0).contiguous()


def _rounded(shifts: Tensor, pos: Tensor) -> Tensor:
    """Shifts in the dtype of `pos`. DataError if it does not hold one of them."""
    out = shifts.to(pos.dtype)
    if pos.dtype != torch.float64 and not torch.equal(out.double(), shifts):
        raise DataError(
            f"neighbours: {pos.dtype} must hold the number of cells that atoms are away from each other"
            f" (got {shifts.abs().max():.0f}). Move atoms into their cell, or pass float64."
        )
    return out.to(pos.device)
