"""`graphweave.md`: compiled and exported potentials as calculators of ASE, and molecular dynamics with them."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.errors import DataError
from graphweave.data import atom_clusters
from graphweave.nn import EnergyAndForces, SchNet

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WITHOUT_ASE = "needs ASE: pip install 'graphweave[md]'"
CUTOFF = 5.0


class Pairs(nn.Module):
    """The energy of pairs of atoms, which falls to 0 at the cutoff and depends on both numbers: quick to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.cutoff = CUTOFF
        self.depth = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(
        self, numbers: Tensor, pos: Tensor, edge_index: Tensor, offsets: Tensor | None, batch: Tensor | None,
        num_systems: int,
    ) -> Tensor:  # fmt: skip
        src, dst = edge_index[0], edge_index[1]
        gap = pos[dst] - pos[src]
        distance = (gap if offsets is None else gap + offsets).square().sum(-1).sqrt()
        wave = (1 + torch.cos(distance * (math.pi / CUTOFF))).square() * (distance < CUTOFF)
        charge = numbers.to(pos.dtype).sqrt()
        both = torch.zeros_like(charge).index_add(0, dst, charge[src] * wave)
        return (self.depth * charge * both).sum(0, keepdim=True)


def crystal(periodic: bool = True) -> Any:
    build = pytest.importorskip("ase.build", reason=WITHOUT_ASE)
    atoms = build.bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    sheared = atoms.cell.array + np.array([[0, 0.3, 0], [0, 0, 0.2], [0.1, 0, 0]])
    atoms.set_cell(sheared, scale_atoms=True)
    atoms.rattle(0.1, seed=3)
    atoms.pbc = periodic
    return atoms


def test_forces_and_stresses_are_derivatives_of_energies() -> None:
    atoms = crystal()
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    from graphweave.md import PotentialCalculator

    atoms.calc = PotentialCalculator(Pairs(), skin=0.8)
    forces, stress = atoms.get_forces(), atoms.get_stress()
    assert atoms.calc.near.searches == 1
    np.testing.assert_allclose(forces[:2], calculate_numerical_forces(atoms, iatoms=[0, 1]), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(stress, calculate_numerical_stress(atoms), rtol=1e-5, atol=1e-7)
    assert abs(forces).max() > 0.05 and abs(stress).min() > 1e-5
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
    for _ in range(5):
        atoms.positions += 0.01
        atoms.get_forces()
    assert atoms.calc.near.searches == 1
    atoms.positions[0] += 1.0
    energy, slope = atoms.get_potential_energy(), atoms.get_forces()[0, 0]
    assert atoms.calc.near.searches == 2
    atoms.positions[0, 0] += 1e-4
    assert (energy - atoms.get_potential_energy()) / 1e-4 == pytest.approx(slope, rel=1e-3)
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (2, 0, 0)
    atoms.pbc = [True, False, True]
    with pytest.raises(Exception, match="stress: a cell must repeat along all of its rows"):
        atoms.get_stress()


@pytest.mark.parametrize("periodic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_exported_potential_gives_the_same(periodic: bool, tmp_path: Path) -> None:
    atoms = crystal(periodic)
    from graphweave.md import PotentialCalculator

    model, pos = Pairs(), torch.from_numpy(atoms.positions)
    edge_index = torch.tensor([[0, 1, 2], [1, 0, 1]])
    given = (torch.from_numpy(atoms.numbers), pos, edge_index, *([torch.zeros(3, 3).double()] if periodic else []))
    graphweave.export(EnergyAndForces(model, virial=periodic).eval(), given, tmp_path / "model")
    atoms.calc = PotentialCalculator(model)
    energy, forces, stress = atoms.get_potential_energy(), atoms.get_forces(), periodic and atoms.get_stress()
    atoms.calc = PotentialCalculator(tmp_path / "model", cutoff=CUTOFF)
    assert atoms.get_potential_energy() == pytest.approx(energy, rel=1e-13)
    np.testing.assert_allclose(atoms.get_forces(), forces, rtol=1e-12, atol=1e-13)
    if periodic:
        np.testing.assert_allclose(atoms.get_stress(), stress, rtol=1e-12, atol=1e-14)
        atoms.pbc = False  # without shifts there is nothing to add
        apart = atoms.get_forces()
        atoms.calc = PotentialCalculator(model)
        np.testing.assert_allclose(atoms.get_forces(), apart, rtol=1e-12, atol=1e-13)
    else:
        atoms.pbc = True
        with pytest.raises(DataError, match="the exported model takes no offsets"):
            atoms.get_forces()
        with pytest.raises(Exception, match="stress: it was not exported"):
            atoms.get_stress()


def test_what_is_no_potential_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ase", reason=WITHOUT_ASE)
    from graphweave.md import PotentialCalculator

    with pytest.raises(DataError, match="the model has no cutoff"):
        PotentialCalculator(nn.Linear(2, 2))
    (tmp_path / "manifest.json").write_text('{"inputs": [{"name": "x", "dtype": "float32"}], "outputs": [{}]}')
    with pytest.raises(DataError, match=r"expected an exported EnergyAndForces .*got x, and 1 outputs"):
        PotentialCalculator(tmp_path, cutoff=1.0)


def test_the_error_says_how_to_install_ase(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("graphweave.md")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ase", None)
    with pytest.raises(ImportError, match=r"graphweave\.md needs ASE. Install it: pip install graphweave\[md\]\."):
        importlib.import_module("graphweave.md")


STEPS, DRIFT = 5000, 1.0
"""The steps of a simulation, and by how many meV an atom's mean total energy may change from its first to its last
tenth."""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_a_trained_potential_conserves_energy(way: str, tmp_path: Path) -> None:
    """SchNet, trained on clusters of copper, moves one of them at constant energy by velocity Verlet."""
    ase = pytest.importorskip("ase", reason=WITHOUT_ASE)
    from ase import units
    from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
    from ase.md.verlet import VelocityVerlet

    from graphweave.cli.forces import ENERGY, FORCES, ForceTraining
    from graphweave.cli.training import TrainingJob
    from graphweave.md import PotentialCalculator

    data = atom_clusters("morse")
    training = ForceTraining("graphweave", TrainingJob("schnet", 32, 1, 0.0, 2e-3, 0.0, 20, 0, 1, task="forces"), data)
    for _ in range(20):
        training.epoch()
    found, without = training.test(), training.baseline()
    for measure in (f"test {FORCES}", f"test {ENERGY}"):
        assert found[measure] < 0.1 * without[measure]
    potential = training.potential.model.double()
    start = data.batch(torch.tensor([len(data.energy) - 5]))
    model: Any = potential
    if way == "exported":
        given = start.numbers, start.pos.double(), start.edge_index
        graphweave.export(EnergyAndForces(potential).eval(), given, tmp_path / "model")
        model = tmp_path / "model"
    atoms = ase.Atoms(start.numbers.numpy(), start.pos.double().numpy())
    atoms.calc = PotentialCalculator(model, cutoff=data.cutoff)
    MaxwellBoltzmannDistribution(atoms, temperature_K=300, rng=np.random.default_rng(0))
    run, energies = VelocityVerlet(atoms, 2 * units.fs), []
    run.attach(lambda: energies.append(1000 * atoms.get_total_energy() / len(atoms)))
    run.run(STEPS)
    total = np.array(energies)
    tenth = STEPS // 10
    drift = total[-tenth:].mean() - total[:tenth].mean()
    print(f"drift of {drift:.4f} meV per atom in {STEPS} steps, spread {total.std():.4f}")
    assert len(total) == STEPS + 1 and abs(drift) < DRIFT and total.std() < DRIFT
    assert abs(np.diff(atoms.get_all_distances()[0])).max() < 10  # it is still a cluster


def test_schnet_is_a_potential() -> None:
    pytest.importorskip("ase", reason=WITHOUT_ASE)
    from graphweave.md import PotentialCalculator

    assert PotentialCalculator(SchNet(4, 1, 3)).near.cutoff == 5.0
