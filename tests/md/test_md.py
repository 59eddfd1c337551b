"""`graphweave.md`: compiled and exported potentials as calculators of ASE, and molecular dynamics with them."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
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
from graphweave.examples.forces import ENERGY, FORCES, ForceTraining
from graphweave.examples.training import TrainingJob
from graphweave.nn import EnergyAndForces, Potential, SchNet
from graphweave.points import neighbours

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WITHOUT_ASE = "needs ASE: pip install 'graphweave[md]'"
EXAMPLES = Path(__file__).parents[2] / "examples"
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


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pairs with forces, offsets and the virial, as a library."""
    folder, pos = tmp_path_factory.mktemp("exported"), torch.rand(4, 3, dtype=torch.float64)
    edges, offsets = torch.tensor([[0, 1, 2], [1, 0, 1]]), torch.zeros(3, 3, dtype=torch.float64)
    model = EnergyAndForces(Pairs(), virial=True).eval()
    graphweave.export(model, (torch.tensor([8, 1, 1, 2]), pos, edges, offsets), folder)
    return folder


def test_an_exported_potential_gives_the_same(exported: Path, tmp_path: Path) -> None:
    atoms = crystal()
    from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress

    from graphweave.md import PotentialCalculator

    atoms.calc = PotentialCalculator(exported, cutoff=CUTOFF)
    numbers, pos, cell = (torch.from_numpy(one) for one in (atoms.numbers, atoms.positions, atoms.cell.array))
    found = neighbours(pos, CUTOFF, cell)
    energy, forces, virial = EnergyAndForces(Pairs(), True)(numbers, pos, found.pairs, found.shifts @ cell)
    assert atoms.get_potential_energy() == pytest.approx(energy.item(), rel=1e-13)
    np.testing.assert_allclose(atoms.get_forces(), forces.detach().numpy(), rtol=1e-11, atol=1e-13)
    there = virial[0].detach().numpy() / atoms.get_volume()
    np.testing.assert_allclose(atoms.get_stress(voigt=False), there, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(atoms.get_stress(), calculate_numerical_stress(atoms), rtol=1e-5, atol=1e-7)
    atoms.pbc = False
    wanted = calculate_numerical_forces(atoms, iatoms=[0])
    np.testing.assert_allclose(atoms.get_forces()[:1], wanted, rtol=1e-5, atol=1e-7)


def test_what_was_not_exported_is_refused(exported: Path, tmp_path: Path) -> None:
    atoms = crystal()
    from graphweave.md import PotentialCalculator

    shutil.copytree(exported, tmp_path / "less")
    manifest = json.loads((exported / "manifest.json").read_text())
    less = {"inputs": manifest["inputs"][:3], "outputs": manifest["outputs"][:2]}
    (tmp_path / "less" / "manifest.json").write_text(json.dumps(less))
    atoms.calc = PotentialCalculator(tmp_path / "less", cutoff=CUTOFF)
    with pytest.raises(DataError, match="the exported model takes no offsets"):
        atoms.get_forces()
    with pytest.raises(Exception, match="stress: it was not exported"):
        atoms.get_stress()


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
def test_a_simulation_code_in_c_calls_the_potential(exported: Path, tmp_path: Path) -> None:
    """Energy and forces at the start, and a total energy that stays over 300 steps and several lists."""
    flags = ["-std=c11", "-Wall", "-Werror", "-D_GNU_SOURCE", f"-I{exported}", f"-Wl,-rpath,{exported}"]
    program, source = tmp_path / "pair_style", EXAMPLES / "export" / "pair_style.c"
    subprocess.run(["gcc", *flags, str(source), str(exported / "model.so"), "-lm", "-o", str(program)], check=True)
    box, at = 10.5, torch.arange(3, dtype=torch.float64) * 3.5
    pos = torch.cartesian_prod(at, at, at) + 0.8 * torch.rand(27, 3, dtype=torch.float64)
    numbers, cell = torch.arange(27) % 5 + 1, box * torch.eye(3, dtype=torch.float64)
    lines = [f"{n} 20.0 {x!r} {y!r} {z!r}" for n, (x, y, z) in zip(numbers.tolist(), pos.tolist(), strict=True)]
    run = [str(program), str(exported / "weights.safetensors"), str(CUTOFF), "300"]
    done = subprocess.run(run, input="\n".join([f"27 {box} 0.05", *lines]), capture_output=True, text=True, check=True)
    energy, *forces, last = [[float(number) for number in line.split()] for line in done.stdout.splitlines()]
    found = neighbours(pos, CUTOFF, cell)
    wanted, slopes = EnergyAndForces(Pairs())(numbers, pos, found.pairs, found.shifts @ cell)
    assert energy[0] == pytest.approx(wanted.item(), rel=1e-12)
    np.testing.assert_allclose(forces, slopes.detach().numpy(), rtol=1e-9, atol=1e-11)
    total, kinetic = last
    assert kinetic > 1 and total == pytest.approx(energy[0], abs=0.01 * kinetic)


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


STEPS, DRIFT = 5000, 0.05
"""The steps of a simulation, and by how many meV an atom's mean total energy may change from its first to its last
tenth."""


@pytest.fixture(scope="module")
def trained() -> Potential:
    """SchNet after 20 epochs on clusters of copper, in float64."""
    data = atom_clusters("morse")
    training = ForceTraining("graphweave", TrainingJob("schnet", 32, 1, 0.0, 2e-3, 0.0, 20, 0, 1, task="forces"), data)
    for _ in range(20):
        training.epoch()
    found, without = training.test(), training.baseline()
    for measure in (f"test {FORCES}", f"test {ENERGY}"):
        assert found[measure] < 0.1 * without[measure]
    model = training.potential.model.double()
    assert isinstance(model, Potential)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("way", ["compiled", "exported"])
def test_a_trained_potential_conserves_energy(trained: Potential, way: str, tmp_path: Path) -> None:
    """A cluster of 15 atoms moves at constant energy by velocity Verlet, from 300 K."""
    ase = pytest.importorskip("ase", reason=WITHOUT_ASE)
    from ase import units
    from ase.md.verlet import VelocityVerlet

    from graphweave.md import PotentialCalculator

    data = atom_clusters("morse", each=1)
    start = data.batch(torch.tensor([len(data.energy) - 1]))
    model: Any = trained
    if way == "exported":
        given = start.numbers, start.pos.double(), start.edge_index
        graphweave.export(EnergyAndForces(trained).eval(), given, tmp_path / "model")
        model = tmp_path / "model"
    atoms = ase.Atoms(start.numbers.numpy(), start.pos.double().numpy())
    atoms.calc = PotentialCalculator(model, cutoff=data.cutoff)
    thermal = np.sqrt(units.kB * 300 * atoms.get_masses())[:, None]
    atoms.set_momenta(thermal * np.random.default_rng(0).normal(size=(len(atoms), 3)))
    run, energies, kinetic = VelocityVerlet(atoms, 2 * units.fs), [], []
    run.attach(lambda: energies.append(1000 * atoms.get_total_energy() / len(atoms)))
    run.attach(lambda: kinetic.append(1000 * atoms.get_kinetic_energy() / len(atoms)))
    run.run(STEPS)
    total, tenth = np.array(energies), STEPS // 10
    drift = total[-tenth:].mean() - total[:tenth].mean()
    print(f"{way}: drift of {drift:.4f} meV per atom, spread {total.std():.4f}, kinetic {np.std(kinetic):.2f}")
    assert len(total) == STEPS + 1 and abs(drift) < DRIFT
    assert total.std() < 0.05 * np.std(kinetic)  # what is exchanged with the kinetic energy is far more
    assert atoms.get_all_distances().max() < 12  # it is still a cluster


def test_schnet_is_a_potential() -> None:
    pytest.importorskip("ase", reason=WITHOUT_ASE)
    from graphweave.md import PotentialCalculator

    for model in (SchNet(4, 1, 3), EnergyAndForces(SchNet(4, 1, 3))):
        assert PotentialCalculator(model).near.cutoff == 5.0
