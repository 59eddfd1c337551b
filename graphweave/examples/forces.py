"""Trains a potential: a model of the energy of atoms, whose gradients are the forces on them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._dynamo
from torch import Tensor, nn

from graphweave.data import AtomBatch, AtomSet
from graphweave.distributed.ranks import ALONE, Ranks
from graphweave.examples.batched import RowTraining
from graphweave.examples.training import Predictions, TrainingJob, wrap
from graphweave.nn import EnergyAndForces, PaiNN, Potential, SchNet

BATCH = 16
"""Systems of a step, unless the user says otherwise."""

POTENTIALS: dict[str, Callable[..., Potential]] = {"schnet": SchNet, "painn": PaiNN}
FORCES, ENERGY = "force error, meV/A", "energy error, meV/atom"
"""Names of the mean absolute errors of a component of a force, and of the energy of an atom."""
_MILLI = 1000.0


class ForceLoss(nn.Module):
    """The sum over systems s of n atoms of (dE_s / (n a))^2 + sum over atoms and axes of (dF / b)^2 / 3 n.

    dE and dF are the errors of `potential`; a is the spread of the energy of an atom and b that of forces.
    """

    def __init__(self, potential: EnergyAndForces, by_energy: float, by_forces: float) -> None:
        super().__init__()
        self.potential, self.by_energy, self.by_forces = potential, by_energy, by_forces

    def forward(
        self, numbers: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor, sizes: Tensor, energy: Tensor,
        forces: Tensor,
    ) -> Tensor:  # fmt: skip
        found, pulls = self.potential(numbers, pos, edge_index, None, batch, energy.size(0))
        wrong = (pulls - forces).square().sum(-1) / (3 * sizes[batch])
        return ((found - energy) / (sizes * self.by_energy)).square().sum() + wrong.sum() / self.by_forces**2


class ForceTraining(RowTraining[AtomBatch]):
    """Mean absolute errors of forces and energies. The baseline is no force, and the mean energy of an atom of the
    training systems. A step is one compiled function: energies, forces, and the loss on both. The learning rate falls
    by 7% an epoch: at a constant one, the loss jumps in some epochs, the last of which may be the last of all."""

    measure = FORCES
    decay = 0.93

    def __init__(self, way: str, job: TrainingJob, data: AtomSet, ranks: Ranks = ALONE) -> None:
        super().__init__(way, job, data, job.batch or BATCH, ranks)
        self.data = data
        if way == "inductor":
            torch._dynamo.config.trace_autograd_ops = True  # else it breaks the graph, and differentiates once only
        known = data.batch(self.rows["train"])
        by_atom = known.energy / data.sizes[self.rows["train"]]
        spread = float(known.forces.square().mean().sqrt().clamp(min=1e-12))
        self.mean = float(by_atom.mean())
        model = POTENTIALS[job.model](job.hidden, cutoff=data.cutoff, mean=self.mean, std=spread)
        self.potential = EnergyAndForces(model)
        by_energy = float((by_atom - self.mean).square().mean().sqrt().clamp(min=1e-12))
        self.compiled_loss = wrap(way, job)(ForceLoss(self.potential, by_energy, spread))
        self.compiled = wrap(way, job)(self.potential)
        self.optimise(self.potential)

    def make_batch(self, drawn: Tensor, own: slice, number: int) -> AtomBatch:
        return self.data.batch(drawn[own])

    def loss(self, batch: AtomBatch) -> Tensor:
        sizes = batch.batch.bincount(minlength=batch.energy.size(0)).to(batch.pos.dtype)
        out: Tensor = self.compiled_loss(
            batch.numbers, batch.pos, batch.edge_index, batch.batch, sizes, batch.energy, batch.forces
        )
        return out

    def scores(self, part: str) -> dict[str, float]:
        rows = self.rows[part]
        if not rows.numel():
            return {FORCES: float("nan"), ENERGY: float("nan")}
        energy = self._over_rows(rows, self.size, lambda some: self._predicted(some)[0])
        return self._errors(energy, self._forces(rows), rows)

    def baseline(self) -> dict[str, float]:
        rows = self.rows["test"]
        none = torch.zeros_like(self.data.batch(rows).forces)
        return {f"test {name}": e for name, e in self._errors(self.mean * self.data.sizes[rows], none, rows).items()}

    def _test_predictions(self) -> Predictions | None:
        """The components of forces, in meV per angstrom."""
        rows = self.rows["test"]
        if not rows.numel():
            return None
        true = self.data.batch(rows).forces
        return Predictions.of_numbers(_MILLI * self._forces(rows).flatten(), _MILLI * true.flatten())

    def _errors(self, energy: Tensor, forces: Tensor, rows: Tensor) -> dict[str, float]:
        true = self.data.batch(rows)
        by_atom = (energy - true.energy).abs() / self.data.sizes[rows]
        return {
            FORCES: _MILLI * float((forces - true.forces).abs().mean()), ENERGY: _MILLI * float(by_atom.mean()),
        }  # fmt: skip

    def _forces(self, rows: Tensor) -> Tensor:
        return self._over_rows(rows, self.size, lambda some: self._predicted(some)[1])

    def _predicted(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        batch = self.data.batch(rows)
        energy, forces = self.compiled(
            batch.numbers, batch.pos, batch.edge_index, None, batch.batch, batch.energy.size(0)
        )
        return energy, forces
