"""Learn the forces between atoms and move them: SchNet on clusters of copper, then molecular dynamics by ASE.

    python examples/molecular_dynamics.py

Forces are gradients of the energy that the model computes. Energy, forces and the loss on both are one compiled
function, with one compilation for clusters of all sizes.
"""

from __future__ import annotations

import ase
import numpy as np
import torch
from ase import units
from ase.md.verlet import VelocityVerlet
from torch import Tensor

import graphweave as gw
from graphweave.data import AtomBatch, AtomSet, atom_clusters
from graphweave.md import PotentialCalculator
from graphweave.nn import EnergyAndForces, SchNet


def train(data: AtomSet, epochs: int = 12, size: int = 16) -> EnergyAndForces:
    """A potential, trained on the energies and forces of the training clusters."""
    rows = data.train_mask.nonzero().flatten()
    known = data.batch(rows)
    by_atom, spread = float(known.energy.sum() / len(known.pos)), float(known.forces.square().mean().sqrt())
    potential = EnergyAndForces(SchNet(32, cutoff=data.cutoff, mean=by_atom, std=spread))
    optimizer = torch.optim.Adam(potential.parameters(), lr=2e-3)

    @gw.compile
    def loss(batch: AtomBatch) -> Tensor:
        energy, forces = potential(batch.numbers, batch.pos, batch.edge_index, None, batch.batch, len(batch.energy))
        wrong = (forces - batch.forces).square().mean() + 0.01 * (energy - batch.energy).square().mean()
        return wrong / spread**2

    for epoch in range(1, epochs + 1):
        for some in rows[torch.randperm(len(rows))].split(size):
            optimizer.zero_grad()
            step_loss = loss(data.batch(some))
            step_loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {step_loss.item():.4f}")
    return potential.eval()


def simulate(model: torch.nn.Module, batch: AtomBatch, steps: int = 500) -> list[float]:
    """The total energy in meV per atom after each step at constant energy, from 300 K."""
    atoms = ase.Atoms(batch.numbers.numpy(), batch.pos.double().numpy())
    atoms.calc = PotentialCalculator(model.double())
    thermal = np.sqrt(units.kB * 300 * atoms.get_masses())[:, None]
    atoms.set_momenta(thermal * np.random.default_rng(0).normal(size=(len(atoms), 3)))
    run, energies = VelocityVerlet(atoms, 2 * units.fs), []
    run.attach(lambda: energies.append(1000 * atoms.get_total_energy() / len(atoms)))
    run.run(steps)
    return energies


def main() -> None:
    torch.manual_seed(0)
    data = atom_clusters("morse")
    potential = train(data)
    test = data.batch(data.test_mask.nonzero().flatten())
    energies = simulate(potential.model, data.batch(torch.tensor([len(data.energy) - 1])))
    drift = np.mean(energies[-50:]) - np.mean(energies[:50])
    print(f"{len(energies) - 1} steps of molecular dynamics: the total energy drifts by {drift:.3f} meV per atom")
    potential.float()
    found = potential(test.numbers, test.pos, test.edge_index, None, test.batch, len(test.energy))[1]
    right = 1 - (found - test.forces).abs().mean() / test.forces.abs().mean()
    print(f"share of the forces that is right: {right:.3f}, no forces: {0:.3f}")


if __name__ == "__main__":
    main()
