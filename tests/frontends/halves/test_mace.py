"""MACE of two interactions, compiled by one line: energies, forces, and gradients of a loss on both. Runs where `mace`
is installed (mace-torch 0.3 with e3nn 0.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import graphweave
from bench.check import relative_error

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore"),  # e3nn and mace warn of what PyTorch has deprecated
]

CUTOFF, SPECIES = 4.0, [1, 6, 8]


@pytest.fixture(autouse=True)
def _of_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def mace_of(correlation: int) -> Any:
    torch.serialization.add_safe_globals([slice])  # e3nn 0.4 reads its tables by `torch.load`
    o3 = pytest.importorskip("e3nn.o3", reason="needs e3nn 0.4")
    modules = pytest.importorskip("mace.modules", reason="needs mace-torch")
    torch.manual_seed(0)
    blocks = modules.interaction_classes
    return modules.MACE(
        r_max=CUTOFF, num_bessel=4, num_polynomial_cutoff=5, max_ell=2, num_interactions=2, num_elements=len(SPECIES),
        interaction_cls=blocks["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=blocks["RealAgnosticInteractionBlock"],
        hidden_irreps=o3.Irreps("8x0e + 8x1o"), MLP_irreps=o3.Irreps("8x0e"), gate=torch.nn.functional.silu,
        atomic_energies=np.array([-1.0, -3.0, -2.0]), avg_num_neighbors=6, atomic_numbers=SPECIES,
        correlation=correlation, radial_type="bessel",
    )  # fmt: skip


def batch(sizes: list[int], seed: int) -> dict[str, Any]:
    import ase
    from mace import data, tools
    from mace.tools import torch_geometric

    drawn = np.random.default_rng(seed)
    table, found = tools.AtomicNumberTable(SPECIES), []
    for size in sizes:
        places = 1.6 * drawn.normal(size=(size, 3))
        atoms = ase.Atoms(drawn.choice(SPECIES, size), positions=places, cell=20 * np.eye(3), pbc=False)
        found.append(data.AtomicData.from_config(data.config_from_atoms(atoms), z_table=table, cutoff=CUTOFF))
    loader = torch_geometric.dataloader.DataLoader(found, batch_size=len(found), shuffle=False)
    given: dict[str, Any] = next(iter(loader)).to_dict()
    return given


def step(run: Callable[..., Any], model: Any, given: dict[str, Any]) -> list[Tensor]:
    copied = {name: value.clone() if isinstance(value, Tensor) else value for name, value in given.items()}
    out = run(copied, training=True)
    loss = out["energy"].square().sum() + 3 * out["forces"].square().sum()
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return [out["energy"].detach(), out["forces"].detach(), *grads]


@pytest.mark.parametrize("correlation", [2, 3])
def test_energies_forces_and_their_gradients(correlation: int) -> None:
    model = mace_of(correlation)
    run = graphweave.compile(model)
    for seed, sizes in enumerate(([5, 4, 7], [8, 3], [6, 6, 6], [2, 3])):
        given = batch(sizes, seed)
        for one, other in zip(step(run, model, given), step(model, model, given), strict=True):
            assert relative_error(one, other, 1e-6) < 1e-10
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (1, 0, 0)
