"""`train --task forces`: clusters of atoms with exact forces, and potentials that are trained on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from graphweave.cli.main import main
from graphweave.core.errors import DataError
from graphweave.data import AtomSet, atom_clusters
from graphweave.data.atom_clusters import PAIR_POTENTIALS
from graphweave.examples.checkpoint import resume, save
from graphweave.examples.forces import ENERGY, FORCES, POTENTIALS, ForceTraining
from graphweave.examples.training import TrainingJob

JOB = TrainingJob("schnet", 8, 1, 0.0, 1e-2, 0.0, 4, 0, 1, task="forces", batch=8)


@pytest.fixture(scope="module")
def few() -> AtomSet:
    return atom_clusters("morse", each=4, seed=1)


@pytest.mark.parametrize("name", PAIR_POTENTIALS)
def test_forces_are_derivatives_of_the_energy(name: str) -> None:
    pair = PAIR_POTENTIALS[name]
    pos = (pair.nearest * torch.randn(3, 7, 3, dtype=torch.float64)).requires_grad_()
    energy, forces = pair.energy_and_forces(pos)
    (slope,) = torch.autograd.grad(energy.sum(), pos)
    torch.testing.assert_close(forces, -slope, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("name", "depth"), [("lennard-jones", 120 * 8.617333e-5), ("morse", 0.3429)])
def test_two_atoms_are_bound_by_the_depth_of_the_potential(name: str, depth: float) -> None:
    pair = PAIR_POTENTIALS[name]
    two = torch.tensor([[[0.0, 0, 0], [pair.nearest, 0, 0]]], dtype=torch.float64)
    energy, forces = pair.energy_and_forces(two)
    assert energy.item() == pytest.approx(-depth, rel=1e-12) and float(forces.abs().max()) < 1e-12
    assert abs(pair.energy_and_forces(two / pair.nearest * pair.cutoff)[0].item()) < 0.02 * depth


def test_clusters(few: AtomSet) -> None:
    data, pair = few, PAIR_POTENTIALS["morse"]
    assert data.sizes.tolist() == [n for n in range(6, 16) for _ in range(4)]
    assert torch.equal(data.train_mask | data.val_mask | data.test_mask, torch.ones(40, dtype=torch.bool))
    for i, (first, last) in enumerate(zip(data.ptr[:-1], data.ptr[1:], strict=True)):
        pos = data.pos[first:last].double()
        energy, forces = pair.energy_and_forces(pos[None])
        assert data.energy[i].item() == pytest.approx(energy.item(), rel=1e-4) and energy < 0
        torch.testing.assert_close(data.forces[first:last].double(), forces[0], rtol=1e-3, atol=1e-4)
        batch = data.batch(torch.tensor([i]))
        near = (torch.cdist(pos, pos) <= data.cutoff).fill_diagonal_(False).nonzero().t()
        assert torch.equal(batch.edge_index, near) and torch.equal(batch.pos, data.pos[first:last])
    assert torch.equal(atom_clusters("morse", each=4, seed=1).pos, data.pos)
    both = data.batch(torch.tensor([7, 2]))
    assert both.batch.bincount().tolist() == data.sizes[[7, 2]].tolist()
    assert torch.equal(both.batch[both.edge_index[0]], both.batch[both.edge_index[1]])


def test_only_known_potentials() -> None:
    with pytest.raises(DataError, match="potential must be one of lennard-jones, morse"):
        atom_clusters("buckingham")


@pytest.mark.slow
@pytest.mark.parametrize("model", POTENTIALS)
def test_compiled_training_goes_as_eager_training(model: str, few: AtomSet) -> None:
    losses, found = [], []
    for way in ("eager", "graphweave"):
        training = ForceTraining(way, TrainingJob(model, 8, 1, 0.0, 1e-4, 0.0, 2, 0, 1, task="forces", batch=8), few)
        for _ in range(2):
            training.epoch()
        losses.append(training.history.loss)
        found.append(training.test())
        assert set(training.baseline()) == set(found[-1]) == {f"test {FORCES}", f"test {ENERGY}"}
    np.testing.assert_allclose(*losses, rtol=1e-3)
    for measure, value in found[0].items():
        assert found[1][measure] == pytest.approx(value, rel=1e-3)


def test_a_resumed_training_gives_the_same_numbers(few: AtomSet, tmp_path: Path) -> None:
    whole, first, second = (ForceTraining("eager", JOB, few) for _ in range(3))
    for _ in range(4):
        whole.epoch()
    for _ in range(2):
        first.epoch()
    save(tmp_path / "kept", JOB, few.name, [first])
    assert resume(tmp_path / "kept", JOB, few.name, [second]) == 2
    for _ in range(2):
        second.epoch()
    assert second.history.loss == whole.history.loss and second.test() == whole.test()
    assert whole.history.loss[-1] < 0.9 * whole.history.loss[0]
    for training in (whole, second):
        assert training.optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.93**3)


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "forces.html"
    command = ["train", "--task", "forces", "--model", "painn", "--hidden", "4", "--epochs", "1"]
    assert main([*command, "--batch", "120", "--no-compile", "--report", str(page)]) == 0
    said = capsys.readouterr().out
    assert (
        "painn on lennard-jones clusters: 800 systems" in said and f"test {FORCES}" in said and f"test {ENERGY}" in said
    )
    assert "Parity on the test data" in page.read_text() and "Edges of a node" in page.read_text()
    assert main(["train", "--task", "forces", "--data", "water.npz"]) == 2
    assert "potential must be one of lennard-jones, morse (got 'water.npz')" in capsys.readouterr().err
