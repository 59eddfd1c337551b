"""An ASE calculator for models of energies: `PotentialCalculator`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from ase import Atoms
from ase.calculators.calculator import Calculator, PropertyNotImplementedError, all_changes
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import DataError
from graphweave.exporting.library import LoadedModel
from graphweave.nn import EnergyAndForces
from graphweave.points import NeighbourList


class _Evaluated(Protocol):
    """A model that gives the energy [1], forces [N, 3] and, if asked for, the virial [1, 3, 3] of one system."""

    dtype: torch.dtype

    def __call__(
        self, numbers: Tensor, pos: Tensor, edge_index: Tensor, offsets: Tensor | None, virial: bool
    ) -> Sequence[Tensor]: ...


class PotentialCalculator(Calculator):
    """Energies, forces and stresses of `model` for ASE: `atoms.calc = PotentialCalculator(model)`.

    `model` is a module that is called as `graphweave.nn.Potential` is, or `EnergyAndForces` of one, and is compiled
    here; or the folder to which `graphweave.export` wrote `EnergyAndForces(model).eval()`. Cells that repeat need
    offsets among the example inputs of the export. Units are those of ASE, angstroms and eV. Numbers have the dtype of
    the model; float64 conserves energy best.

    `cutoff`: the distance from which on atoms do not see each other (default: `model.cutoff`). Neighbours are kept in a
    list that is searched again when an atom has moved by half of `skin`. DataError for a model without a cutoff, and a
    folder in which something else was exported.
    """

    implemented_properties = ("energy", "free_energy", "forces", "stress")

    def __init__(
        self,
        model: nn.Module | str | os.PathLike[str],
        cutoff: float | None = None,
        skin: float = 1.0,
        **options: object,
    ) -> None:
        super().__init__(**options)
        model = model.model if isinstance(model, EnergyAndForces) else model
        cutoff = getattr(model, "cutoff", None) if cutoff is None else cutoff
        if cutoff is None:
            raise DataError("PotentialCalculator: the model has no cutoff. Pass the cutoff that it was trained with.")
        self.near = NeighbourList(cutoff, skin)
        self._evaluated: _Evaluated = _Compiled(model) if isinstance(model, nn.Module) else _Exported(Path(model))

    def calculate(
        self, atoms: Atoms | None = None, properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:  # fmt: skip
        """See ASE. Writes `self.results`."""
        super().calculate(atoms, properties, system_changes)
        atoms, stress = self.atoms, "stress" in properties
        if stress and not all(atoms.pbc):
            raise PropertyNotImplementedError(
                f"stress: a cell must repeat along all of its rows (got pbc={atoms.pbc.tolist()}). Set atoms.pbc."
            )
        pos, offsets = torch.from_numpy(atoms.positions), None
        if any(atoms.pbc):
            cell = torch.from_numpy(atoms.cell.array)
            found = self.near(pos, cell, atoms.pbc.tolist())
            offsets = (found.shifts @ cell).to(self._evaluated.dtype)
        else:
            found = self.near(pos)
        numbers = torch.from_numpy(atoms.numbers).long()
        energy, forces, *virial = self._evaluated(numbers, pos.to(self._evaluated.dtype), found.pairs, offsets, stress)
        self.results = {"energy": energy.item(), "free_energy": energy.item(), "forces": forces.double().numpy()}
        if stress:
            by_volume = virial[0][0].double().numpy() / atoms.get_volume()
            self.results["stress"] = by_volume.flat[[0, 4, 8, 5, 2, 1]]  # xx, yy, zz, yz, xz, xy


class _Compiled:
    """A model that is compiled in this process, once with and once without the virial, when they are asked for."""

    def __init__(self, model: nn.Module) -> None:
        first = next(model.parameters(), None)
        self.dtype = torch.get_default_dtype() if first is None else first.dtype
        self._run = [graphweave.compile(EnergyAndForces(model, virial).eval()) for virial in (False, True)]

    def __call__(
        self, numbers: Tensor, pos: Tensor, edge_index: Tensor, offsets: Tensor | None, virial: bool
    ) -> Sequence[Tensor]:
        with torch.no_grad():
            out: Sequence[Tensor] = self._run[virial](numbers, pos, edge_index, offsets)
        return out


class _Exported:
    """An exported library."""

    def __init__(self, folder: Path) -> None:
        described = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        inputs = {one["name"]: one["dtype"] for one in described["inputs"]}
        self._takes_offsets, self._outputs = "offsets" in inputs, len(described["outputs"])
        if list(inputs) not in (_INPUTS, [*_INPUTS, "offsets"]) or self._outputs not in (2, 3):
            raise DataError(
                f"{folder}: expected an exported EnergyAndForces of {', '.join(_INPUTS)} and, for cells that repeat,"
                f" offsets (got {', '.join(inputs) or 'nothing'}, and {self._outputs} outputs). Pass the folder of one."
            )
        self.dtype = getattr(torch, inputs["pos"])
        self._model = LoadedModel(folder)

    def __call__(
        self, numbers: Tensor, pos: Tensor, edge_index: Tensor, offsets: Tensor | None, virial: bool
    ) -> Sequence[Tensor]:
        if virial and self._outputs < 3:
            raise PropertyNotImplementedError(
                "stress: it was not exported. Pass virial=True to EnergyAndForces, and export that."
            )
        if offsets is None:
            offsets = pos.new_zeros(edge_index.size(1), 3)
        elif not self._takes_offsets:
            raise DataError(
                "PotentialCalculator: the exported model takes no offsets, which a cell that repeats needs (got such a"
                " cell). Add offsets to the example inputs, and export it again."
            )
        return self._model(numbers, pos, edge_index, *([offsets] if self._takes_offsets else []))


_INPUTS = ["numbers", "pos", "edge_index"]
