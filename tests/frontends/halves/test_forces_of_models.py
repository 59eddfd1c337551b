"""Forces of well-known models against eager mode in float64: inside one compiled function, and taken outside of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench.check import relative_error
from bench.equivariant_models import Equivariant
from bench.force_models import CUTOFF, EGNN, DimeNet, Molecules, energy_and_forces, molecules, painn, schnet
from tests.lent import lent  # noqa: F401
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")

F64 = torch.float64
TOLERANCE = 1e-10
"""Relative error in float64 against eager mode. Sums of up to 30 edges through several layers, differentiated twice."""


class OfPyg(nn.Module):
    """A model of PyG, which searches its edges itself and counts molecules by the last one's number."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        energy = self.model(z, position, molecule)
        out: Tensor = energy[0] if isinstance(energy, tuple) else energy
        return out.view(-1)


def _schnet_of_pyg() -> nn.Module:
    from torch_geometric.nn import SchNet

    return OfPyg(SchNet(6, 6, 2, 5, cutoff=CUTOFF))


def _dimenet_of_pyg() -> nn.Module:
    from torch_geometric.nn import DimeNetPlusPlus

    return OfPyg(DimeNetPlusPlus(8, 1, 2, 4, 4, 6, 3, 4, cutoff=CUTOFF))


def _visnet_of_pyg() -> nn.Module:
    from torch_geometric.nn.models import ViSNet

    return OfPyg(ViSNet(hidden_channels=8, num_heads=2, num_layers=2, num_rbf=4, cutoff=CUTOFF))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "schnet": lambda: schnet(4, 1, 3),
    "painn": lambda: painn(3, 1, 3),
    "painn of two layers": lambda: painn(4, 2, 3),
    "egnn": lambda: EGNN(6, 2),
    "dimenet": lambda: DimeNet(4, 2, 3, 2),
    "mace-like": lambda: Equivariant(4, 2, 2, 6, products=True),
    "schnet of pyg": _schnet_of_pyg,
    "dimenet++ of pyg": _dimenet_of_pyg,
    "visnet of pyg": _visnet_of_pyg,
}


@pytest.fixture(autouse=True)
def _of_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(before)


def model_of(name: str) -> nn.Module:
    """In float64, without parameters that are zero: PyG's start with zeros, behind which no gradient shows."""
    torch.manual_seed(0)
    model = MODELS[name]().double()
    for parameter in model.parameters():
        if parameter.dim() == 1 or not parameter.any():
            parameter.data = torch.randn_like(parameter) * 0.3
    return model


def batches() -> dict[str, Molecules]:
    """Batches of awkward sizes, and positions that lie in memory in other orders."""
    plain = molecules([5, 4, 7], 0, F64)
    line = torch.linspace(-3, 3, 16, dtype=F64).sin()[:, None] + 0.2 * torch.arange(16, dtype=F64)[:, None]
    far = molecules([3, 4], 2, F64)
    apart = far.position + 100 * torch.arange(7, dtype=F64)[:, None]
    return {
        "several": plain,
        "one molecule": molecules([9], 1, F64),
        "equal sizes": molecules([6, 6, 6, 6], 3, F64),
        "transposed": replace(plain, position=plain.position.t().contiguous().t()),
        "stride 0": replace(plain, position=line.expand(16, 3)),
        "no edges": replace(far, position=apart, edge_index=far.edge_index[:, :0]),
        "single atoms": molecules([1, 1, 1], 4, F64),
        "one atom": molecules([1], 5, F64),
    }


def batches_of(name: str) -> list[str]:
    """The batches on which the second derivatives of the model are defined.

    DimeNet++ of PyG takes angles from the length of a cross product, which has no second derivative where all atoms
    lie on one line: eager mode divides by the rounding error of a fused multiplication there, and by 0 without one.
    """
    return [batch for batch in batches() if (name, batch) != ("dimenet++ of pyg", "stride 0")]


def leaf(batch: Molecules) -> Tensor:
    """Positions with the strides of the batch's, by which a gradient is taken."""
    return batch.position.detach().requires_grad_()


Run = Callable[[Molecules, Tensor], tuple[Tensor, Tensor]]


def step(run: Run, model: nn.Module, batch: Molecules) -> list[Tensor]:
    """Energies, forces, and the gradients of a loss on both by positions and parameters."""
    position = leaf(batch)
    energy, forces = run(batch, position)
    loss = energy.square().sum() + 3 * forces.square().sum()
    wanted = [position, *model.parameters()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True)
    return [energy.detach(), forces.detach(), *found]


def check(run: Run, model: nn.Module, names: list[str]) -> None:
    for name in names:
        batch = batches()[name]
        want = step(lambda b, p: energy_and_forces(model, b, p), model, batch)
        largest = max(float(t.abs().max()) for t in want)
        for i, (one, other) in enumerate(zip(step(run, model, batch), want, strict=True)):
            error = relative_error(one, other, largest * 1e-6)
            assert error < TOLERANCE, f"{name}: number {i}: relative error {error:.3g}"
    counted = graphweave.counters()
    assert (counted["graph_breaks"], counted["eager_fallbacks"]) == (0, 0)


def inside(model: nn.Module) -> Run:
    @graphweave.compile
    def forces(z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Any:
        return energy_and_forces(model, Molecules(z, position, edge_index, molecule, count), position)

    return lambda b, p: forces(b.z, p, b.edge_index, b.molecule, b.count)


def outside(model: nn.Module) -> Run:
    compiled = graphweave.compile(model)
    return lambda b, p: energy_and_forces(compiled, b, p)


@pytest.mark.parametrize("name", by_default(MODELS, "painn"))
def test_inside_one_function(name: str) -> None:
    model = model_of(name)
    check(inside(model), model, batches_of(name) if name != "painn" else ["several"])


@pytest.mark.parametrize("name", by_default(MODELS, "schnet"))
def test_outside_of_the_compiled_model(name: str) -> None:
    model = model_of(name)
    check(outside(model), model, batches_of(name) if name != "schnet" else ["several", "transposed"])
