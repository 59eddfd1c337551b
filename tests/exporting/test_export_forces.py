"""`graphweave.export` of potentials: libraries that give energies, and forces as their derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from bench.force_models import Molecules, molecules, painn, schnet
from graphweave.exporting.capture import capture_whole
from graphweave.exporting.library import LoadedModel

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Potential(nn.Module):
    """Energies and forces. `cells` is read for the number of molecules alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, pos: Tensor, edge_index: Tensor, molecule: Tensor, cells: Tensor) -> dict[str, Tensor]:
        pos.requires_grad_()
        energy = self.model(z, pos, edge_index, molecule, cells.size(0))
        (slope,) = torch.autograd.grad(energy.sum(), pos)
        return {"energy": energy, "forces": -slope}


def given(batch: Molecules) -> Given:
    return batch.z, batch.position.clone(), batch.edge_index, batch.molecule, torch.zeros(batch.count)


@pytest.fixture(scope="module", params=[schnet, pytest.param(painn, marks=pytest.mark.slow)])
def potential(request: pytest.FixtureRequest) -> Potential:
    torch.manual_seed(5)
    return Potential(request.param(8))


@pytest.fixture(scope="module")
def library(potential: Potential, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    exported = gw.export(potential, given(molecules([6, 8, 3])), tmp_path_factory.mktemp("potential") / "model")
    source = (exported.folder / "sources/model.cpp").read_text()
    assert "= distinct_of(run, " in source, "lengths are computed once for both directions"
    return exported.load()


@pytest.mark.parametrize("sizes", [[6, 8, 3], [1], [1, 1], [2, 12, 5, 1], [21] * 9, []])
def test_energies_and_forces_leave_python(potential: Potential, library: LoadedModel, sizes: list[int]) -> None:
    batch = molecules(sizes, seed=len(sizes))
    want = potential(*given(batch))
    for got, expected in zip(library(*given(batch)), want.values(), strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-4, atol=1e-5)


def test_edges_without_a_reverse_are_pairs_of_their_own(potential: Potential, library: LoadedModel) -> None:
    """The example has each edge in both directions; another graph may have it in one, or several times."""
    z, pos, edge_index, molecule, cells = given(molecules([5, 4], seed=3))
    one_way = edge_index[:, edge_index[0] < edge_index[1]]
    edges = torch.cat([one_way, one_way[:, :3], one_way[:, -2:].flip(0)], 1)
    want = potential(z, pos, edges, molecule, cells)
    for got, expected in zip(library(z, pos.detach(), edges, molecule, cells), want.values(), strict=True):
        torch.testing.assert_close(got, expected.detach(), rtol=1e-4, atol=1e-5)


def test_an_export_leaves_the_weights_as_they_were() -> None:
    model = Potential(schnet(4))
    first, *others = model.parameters()
    first.requires_grad_(False)
    capture_whole(model, given(molecules([3, 2])), {})
    assert not first.requires_grad and all(p.requires_grad and p.grad is None for p in others)
