"""Models of the energy of atoms: against PyG and sums by edges in float64, under motions, and compiled with forces."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch_geometric.nn import SchNet as PygSchNet
from torch_geometric.nn.models.schnet import ShiftedSoftplus

import graphweave
from bench.check import relative_error
from graphweave.core.errors import DataError
from graphweave.nn import EnergyAndForces, PaiNN, Potential, SchNet
from graphweave.points import neighbours
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

CUTOFF = 4.0
MODELS: dict[str, Callable[[], Potential]] = {
    "schnet": lambda: SchNet(6, 2, 5, CUTOFF, mean=-1.5, std=0.75),
    "painn": lambda: PaiNN(6, 2, 4, CUTOFF, mean=-1.5, std=0.75),
}


def model_of(name: str) -> Potential:
    torch.manual_seed(0)
    return MODELS[name]().double()


def systems(sizes: list[int], seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers, positions, edges and the system of each atom."""
    drawn = torch.Generator().manual_seed(seed)
    batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.long))
    pos = 1.6 * torch.randn(len(batch), 3, dtype=torch.float64, generator=drawn)
    numbers = torch.randint(1, 20, (len(batch),), generator=drawn)
    return numbers, pos, neighbours(pos, CUTOFF, batch=batch).pairs, batch


def test_schnet_is_that_of_pyg_with_its_weights() -> None:
    numbers, pos, edge_index, batch = systems([5, 1, 7])
    lengths = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=-1)
    theirs = PygSchNet(6, 6, 2, 5, CUTOFF, lambda *_: (edge_index, lengths), mean=-1.5, std=0.75).double()
    for module in theirs.modules():
        if isinstance(module, ShiftedSoftplus):
            module.shift = math.log(2)  # theirs is rounded to float32
    ours = SchNet(6, 2, 5, CUTOFF, mean=-1.5, std=0.75).double()
    weights = {"embedding.weight": functional.pad(theirs.embedding.weight, (0, 0, 0, 19))}
    found = theirs.state_dict()
    for i in range(2):
        weights[f"sources.{i}.weight"] = found[f"interactions.{i}.conv.lin1.weight"]
        for kind in ("weight", "bias"):
            for layer in (0, 2):
                weights[f"filters.{i}.{layer}.{kind}"] = found[f"interactions.{i}.mlp.{layer}.{kind}"]
            weights[f"updates.{i}.0.{kind}"] = found[f"interactions.{i}.conv.lin2.{kind}"]
            weights[f"updates.{i}.2.{kind}"] = found[f"interactions.{i}.lin.{kind}"]
            weights[f"readout.{2 * i}.{kind}"] = found[f"lin{i + 1}.{kind}"]
    missing, unknown = ours.load_state_dict(weights, strict=False)
    assert set(missing) == {"mean", "std", "centres"} and not unknown
    wanted = theirs(numbers, pos, batch).squeeze(-1)
    torch.testing.assert_close(ours(numbers, pos, edge_index, None, batch, 3), wanted, rtol=1e-12, atol=1e-12)


def painn_edge_by_edge(model: PaiNN, numbers: Tensor, pos: Tensor, edge_index: Tensor) -> Tensor:
    """The energy of one system by the equations of the paper, atom by atom and edge by edge."""
    s = [model.embedding.weight[n] for n in numbers]
    v = [s[0].new_zeros(3, model.width) for _ in numbers]
    for layer in range(len(model.messages)):
        phi = [model.messages[layer](one) for one in s]
        ds, dv = [torch.zeros_like(one) for one in s], [torch.zeros_like(one) for one in v]
        for j, i in edge_index.t().tolist():
            r = pos[i] - pos[j]
            d = r.norm().item()
            waves = torch.tensor([math.sin(n * math.pi * d / CUTOFF) / d for n in range(1, 5)], dtype=torch.float64)
            cut = 0.5 * (math.cos(math.pi * d / CUTOFF) + 1)
            parts = (phi[j] * model.filters[layer](waves) * cut).view(3, -1)
            ds[i] = ds[i] + parts[0]
            dv[i] = dv[i] + v[j] * parts[1] + torch.outer(r / d, parts[2])
        s, v = [a + b for a, b in zip(s, ds, strict=True)], [a + b for a, b in zip(v, dv, strict=True)]
        u, w = model.mixings[layer].weight.view(2, model.width, model.width)
        for i in range(len(numbers)):
            uv, wv = v[i] @ u.t(), v[i] @ w.t()
            length = (wv.square().sum(0) + 1e-8).sqrt()
            a = model.updates[layer](torch.cat([s[i], length])).view(3, -1)
            s[i] = s[i] + a[0] + a[1] * (uv * wv).sum(0)
            v[i] = v[i] + a[2] * uv
    return sum((-1.5 + 0.75 * model.readout(one) for one in s), torch.zeros(1, dtype=torch.float64))


def test_painn_is_the_sum_edge_by_edge() -> None:
    model = model_of("painn").requires_grad_(False)
    assert isinstance(model, PaiNN)
    numbers, pos, edge_index, _ = systems([6])
    wanted = painn_edge_by_edge(model, numbers, pos, edge_index)
    torch.testing.assert_close(model(numbers, pos, edge_index), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_energies_stay_and_forces_rotate_with_the_system(name: str) -> None:
    model = EnergyAndForces(model_of(name))
    numbers, pos, edge_index, batch = systems([5, 7])
    rotation = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    energy, forces = model(numbers, pos, edge_index, None, batch, 2)
    there, rotated = model(numbers, pos @ rotation + 3.0, edge_index, None, batch, 2)
    torch.testing.assert_close(there, energy, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(rotated, forces @ rotation, rtol=1e-10, atol=1e-11)
    order = torch.randperm(len(numbers))
    place = order.argsort()
    swapped, moved = model(numbers[order], pos[order], place[edge_index], None, batch[order], 2)
    torch.testing.assert_close(swapped, energy, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(moved, forces[order], rtol=1e-10, atol=1e-11)
    assert forces.abs().max() > 1e-3 and float(forces.detach().sum(0).abs().max()) < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_seen_beyond_the_cutoff(name: str) -> None:
    model = EnergyAndForces(model_of(name))
    numbers, edges = torch.tensor([8, 1]), torch.tensor([[0, 1], [1, 0]])
    alone = model(numbers, torch.zeros(2, 3, dtype=torch.float64), edges[:, :0])[0]

    def at(distance: float) -> tuple[Tensor, ...]:
        pos = torch.tensor([[0.0, 0, 0], [distance, 0, 0]], dtype=torch.float64)
        return model(numbers, pos, edges)

    for distance in (CUTOFF, CUTOFF + 0.5):
        energy, forces = at(distance)
        assert torch.equal(energy, alone) and not forces.any()
    energy, forces = at(CUTOFF - 1e-4)
    assert 0 < abs(float((energy - alone).detach())) < 1e-7 and 0 < float(forces.detach().abs().max()) < 1e-3


@pytest.mark.parametrize("name", by_default(MODELS, "schnet"))
def test_virials_are_derivatives_by_the_strain(name: str) -> None:
    model = EnergyAndForces(model_of(name), virial=True)
    numbers, pos, _, _ = systems([6])
    cell = torch.tensor([[5.0, 0, 0], [1, 5.5, 0], [0, 0.5, 6]], dtype=torch.float64)
    found = neighbours(pos, CUTOFF, cell)

    def energy(strain: Tensor) -> Tensor:
        move = torch.eye(3, dtype=torch.float64) + strain
        return model.model(numbers, pos @ move, found.pairs, found.shifts @ cell @ move).sum()

    _, _, virial = model(numbers, pos, found.pairs, found.shifts @ cell)
    torch.testing.assert_close(virial, virial.mT, rtol=1e-13, atol=1e-15)
    step = 1e-5
    for i, j in ((0, 0), (1, 2), (0, 2)):
        strain = torch.zeros(3, 3, dtype=torch.float64)
        strain[i, j] = strain[j, i] = step
        by_step = float((energy(strain) - energy(-strain)).detach()) / (2 * step) / (1 if i == j else 2)
        assert float(virial[0, i, j].detach()) == pytest.approx(by_step, rel=1e-6, abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_compiled_energies_and_forces_of_cells_that_repeat(name: str) -> None:
    """In one graph and one compilation for all sizes; in float64 and with the virial."""
    model = EnergyAndForces(model_of(name), virial=True).eval()
    run = graphweave.compile(model, fullgraph=True)
    cell = 6 * torch.eye(3, dtype=torch.float64)
    for atoms in (5, 9, 7):
        numbers, pos, _, _ = systems([atoms], atoms)
        found = neighbours(pos, CUTOFF, cell)
        given = numbers, pos, found.pairs, found.shifts @ cell
        with torch.no_grad():
            got = run(*given)
        for one, other in zip(got, model(*given), strict=True):
            assert relative_error(one, other) < 1e-12 and not one.requires_grad
    assert graphweave.counters()["compilations"] == 1


def test_a_cutoff_is_a_length() -> None:
    with pytest.raises(DataError, match="cutoff must be above 0 and finite"):
        SchNet(cutoff=math.inf)
