"""Layers whose features turn with a molecule: harmonics of edges, coupled with features by constant tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench.check import relative_error
from bench.equivariant_models import WAVES, Convolution, Equivariant, couplings, paths, spherical_harmonics
from bench.force_models import Molecules, energy_and_forces, molecules
from tests.support import by_default, random_graph

F64 = torch.float64
MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: Equivariant(3, 1, 1, 4, products=False),
    "convolutions of degree 2": lambda: Equivariant(4, 2, 2, 6, products=False),
    "products": lambda: Equivariant(3, 1, 2, 4, products=True),
    "products of degree 2": lambda: Equivariant(4, 2, 2, 6, products=True),
}
SIZES = ([5, 4, 7], [8], [6, 6, 6, 6], [3, 2])


@pytest.fixture(autouse=True)
def _of_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


def test_harmonics_are_orthonormal_and_their_couplings_few() -> None:
    degree = 2
    table = couplings(degree)
    # the harmonic of degree 0 is 1, so that coupled with it are the mean products of two harmonics
    torch.testing.assert_close(table[0], torch.eye(9))
    assert torch.count_nonzero(table).item() == 83
    assert len(paths(degree)) == 11


def test_energies_do_not_turn_and_forces_do() -> None:
    rotation = torch.linalg.qr(torch.randn(3, 3))[0]
    batch = molecules([5, 4], 0, F64)
    model = Equivariant(4, 2, 2, 6, products=True)
    energy, forces = energy_and_forces(model, batch, batch.position.clone().requires_grad_())
    turned_energy, turned_forces = energy_and_forces(model, batch, (batch.position @ rotation).requires_grad_())
    torch.testing.assert_close(turned_energy, energy)
    torch.testing.assert_close(turned_forces, forces @ rotation)


def _step(run: Callable[..., tuple[Tensor, Tensor]], model: nn.Module, batch: Molecules) -> list[Tensor]:
    position = batch.position.clone().requires_grad_()
    energy, forces = run(batch, position)
    loss = energy.square().sum() + 3 * forces.square().sum()
    return [energy.detach(), forces.detach(), *torch.autograd.grad(loss, [position, *model.parameters()])]


def _compiled(model: nn.Module) -> Callable[..., Any]:
    @graphweave.compile
    def forces(z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Any:
        return energy_and_forces(model, Molecules(z, position, edge_index, molecule, count), position)

    return lambda batch, position: forces(batch.z, position, batch.edge_index, batch.molecule, batch.count)


def _assert_steps_agree(model: nn.Module) -> None:
    """Compares steps on batches of several sizes with eager mode, and counts one compilation for all."""
    run = _compiled(model)
    for seed, sizes in enumerate(SIZES):
        batch = molecules(sizes, seed, F64)
        want = _step(lambda b, p: energy_and_forces(model, b, p), model, batch)
        for one, other in zip(_step(run, model, batch), want, strict=True):
            assert relative_error(one, other) < 1e-10
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_forces_and_their_gradients(name: str, fresh_compiler: None) -> None:
    _assert_steps_agree(MODELS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("products", [False, True])
def test_layers_of_e3nn(products: bool, fresh_compiler: None) -> None:
    pytest.importorskip("e3nn")
    from bench.e3nn_models import E3nn

    _assert_steps_agree(E3nn(3, 1, 1, 4, products=products))


@pytest.mark.parametrize("degree", by_default((1, 2), 1))
def test_a_convolution_is_one_kernel_that_stores_no_message(degree: int, fresh_compiler: None) -> None:
    nodes, edges = 9, 40
    conv = Convolution(4, degree, 6)
    unit = nn.functional.normalize(torch.randn(edges, 3), dim=1)
    harmonics, waves = spherical_harmonics(unit, degree), torch.randn(edges, WAVES)
    x = torch.randn(nodes, 4, (degree + 1) ** 2)
    given = x, harmonics, waves, random_graph(nodes, nodes, edges)
    with torch.no_grad():
        told = graphweave.explain(conv, *given)
        torch.testing.assert_close(graphweave.compile(conv)(*given), conv(*given))
    (graph,) = told.graphs
    assert [kernel.does for kernel in graph.kernels] == ["rows of edge_index: sum over edges of edge_index"]
    assert not graph.fallbacks


def test_short_sums_inside_of_vectors(fresh_compiler: None) -> None:
    """Sums over the components of a tensor, for all channels at once, are written out."""
    components, channels, nodes, edges = (5, 9), 16, 6, 20
    src, dst = random_graph(nodes, nodes, edges)

    def contract(*given: Tensor) -> list[Tensor]:
        half = len(given) // 2
        pairs = zip(given[:half], given[half:], strict=True)
        rows = [(x[src] * y[:, None]).sum(-1).tanh() for x, y in pairs]
        return [torch.zeros(nodes, channels).index_add(0, dst, r) for r in rows]

    given = [torch.randn(nodes, channels, n) for n in components] + [torch.randn(edges, n) for n in components]
    with torch.no_grad():
        for one, other in zip(graphweave.compile(contract)(*given), contract(*given), strict=True):
            torch.testing.assert_close(one, other)
