"""Pairs of neighbours that are kept from call to call, while atoms move little: `NeighbourList`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.points.near import pairs_of
from graphweave.points.periodic import Neighbours, Systems, neighbours
from graphweave.points.searches import library
from graphweave.runtime import threads

_RANGE = 1 << 12
"""Candidates that a thread takes at a time."""

_ROUNDED = 1e-9
"""This part of the skin is left to rounding."""


class _Candidates(NamedTuple):
    """The facts that are known since the list was built."""

    pairs: Tensor
    """int64 [2, candidates]"""
    shifts: Tensor
    """float64 [candidates, dims]"""
    systems: Systems
    """The atoms and cells then, in memory of their own."""
    periodic: Tensor | None


class NeighbourList:
    """`neighbours` for atoms that move: pairs within cutoff + skin are searched, and kept until one could be missed.

        near = NeighbourList(cutoff=5.0, skin=0.5)
        for step in range(steps):
            found = near(pos, cell)  # as neighbours(pos, 5.0, cell)

    What it returns is exactly what `neighbours` returns, at each call. It searches again if an atom has moved by more
    than half the skin since the last search, apart from what it moved with a cell that was stretched, and if the number
    of atoms, the systems or `periodic` have changed. Atoms must not be moved back into their cell between calls, which
    is right but makes it search. Call it outside of compiled functions, and hand them the pairs.

    `searches` counts the searches. DataError for a cutoff or a skin that is not above 0 and finite, else as
    `neighbours`.
    """

    def __init__(self, cutoff: float, skin: float) -> None:
        if not (cutoff > 0 and skin > 0 and cutoff + skin < float("inf")):
            raise DataError(
                f"NeighbourList: cutoff and skin must be above 0 and finite (got {cutoff} and {skin}). Pass distances."
            )
        self.cutoff = float(cutoff)
        self.skin = float(skin)
        self.searches = 0
        self._kept: _Candidates | None = None

    @torch.compiler.disable(reason="a neighbour list keeps pairs from call to call")
    def __call__(
        self,
        pos: Tensor,
        cell: Tensor | None = None,
        periodic: bool | Sequence[bool] | Tensor = True,
        batch: Tensor | None = None,
    ) -> Neighbours:
        """See `neighbours`."""
        flags = None if periodic is True else torch.as_tensor(periodic, dtype=torch.bool).cpu().clone()
        systems = Systems(pos, cell, flags, batch)
        if self._kept is None or not self._covers(self._kept, systems, flags):
            found = neighbours(pos, self.cutoff + self.skin, cell, periodic, batch)
            shifts = found.shifts.to("cpu", torch.float64).contiguous()
            systems.atoms = systems.atoms._replace(coordinates=systems.atoms.coordinates.clone())
            self._kept = _Candidates(found.pairs.cpu().contiguous(), shifts, systems, flags)
            self.searches += 1
        pairs, shifts = _within(self._kept, systems, self.cutoff)
        return Neighbours(pairs.to(pos.device), shifts.to(pos.device, pos.dtype))

    def _covers(self, kept: _Candidates, systems: Systems, flags: Tensor | None) -> bool:
        """Whether no pair that is now within the cutoff was further apart than cutoff + skin.

        Let F carry the old cell to the new one, and let u be how far an atom is from where F carries it. A pair that is
        now the vector d apart was (d - u_j + u_i) F^-1 apart.
        """
        old, new = kept.systems, systems
        if not (
            _equal(kept.periodic, flags)
            and torch.equal(old.atoms.numbers, new.atoms.numbers)
            and torch.equal(old.atoms.starts, new.atoms.starts)
            and old.atoms.coordinates.shape == new.atoms.coordinates.shape
        ):
            return False
        if not new.atoms.numbers.numel():
            return True
        dims = old.atoms.coordinates.shape[1]
        # across rows along which nothing repeats, space stays as it is
        forth = torch.eye(dims, dtype=torch.float64, device="cpu") + old.inverses @ (new.cells - old.cells)
        atoms = new.of_atoms()
        carried = (old.atoms.coordinates.unsqueeze(1) @ forth[atoms]).squeeze(1)
        moved = torch.linalg.vector_norm(new.atoms.coordinates - carried, dim=1)
        furthest = torch.zeros(len(forth), dtype=torch.float64, device="cpu").scatter_reduce_(0, atoms, moved, "amax")
        back, singular = torch.linalg.inv_ex(forth)
        if singular.any():
            return False
        stretch = torch.linalg.matrix_norm(back, 2)
        rounded = _ROUNDED * self.skin + 1e-13 * max(new.atoms.largest, old.atoms.largest)
        return bool(((self.cutoff + 2 * furthest) * stretch <= self.cutoff + self.skin - rounded).all())


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


def _within(kept: _Candidates, systems: Systems, cutoff: float) -> tuple[Tensor, Tensor]:
    """Those of the candidates that are within the cutoff now."""
    count, dims = kept.shifts.shape
    ranges = (count + _RANGE - 1) // _RANGE
    offsets = torch.zeros(ranges + 1, dtype=torch.int64, device="cpu")
    atoms, workers, native = systems.of_atoms(), threads.num_threads(), library()

    def pass_over(pairs: Tensor | None, shifts: Tensor | None) -> None:
        native.gw_neighbours_within(
            systems.raw(), atoms.data_ptr(), cutoff, kept.pairs.data_ptr(), kept.shifts.data_ptr(), count, _RANGE,
            offsets.data_ptr(), pairs if pairs is None else pairs.data_ptr(),
            shifts if shifts is None else shifts.data_ptr(), workers,
        )  # fmt: skip

    pass_over(None, None)
    offsets.cumsum_(0)
    pairs = pairs_of(int(offsets[-1]), "NeighbourList")
    shifts = torch.empty(pairs.shape[1], dims, dtype=torch.float64, device="cpu")
    pass_over(pairs, shifts)
    return pairs, shifts
