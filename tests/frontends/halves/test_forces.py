"""Forces: gradients that a compiled function takes of an energy inside itself, and gradients of those."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave
from bench.check import relative_error
from bench.force_models import EGNN, DimeNet, Molecules, energy_and_forces, molecules, painn, schnet
from tests.support import by_default, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "schnet": lambda: schnet(4, 1, 3),
    "schnet of two layers": lambda: schnet(6, 2, 5),
    "painn": lambda: painn(4, 2, 3),
    "egnn": lambda: EGNN(6, 2),
    "dimenet": lambda: DimeNet(4, 2, 3, 2),
}
SIZES = ([5, 4, 7], [8], [6, 6, 6, 6], [3, 2], [1], [1, 1, 1])
"""Numbers of atoms: some coincide, and molecules of one atom have no edges."""


def _step(run: Callable[..., tuple[Tensor, Tensor]], model: nn.Module, batch: Molecules) -> list[Tensor]:
    """Energies, forces, and the gradients of a loss on both by positions and parameters."""
    model.zero_grad()
    position = batch.position.clone().requires_grad_()
    energy, forces = run(batch, position)
    (energy.square().sum() + 3 * forces.square().sum()).backward()
    found = [energy.detach(), forces.detach(), position.grad, *(p.grad for p in model.parameters())]
    return [t.clone() for t in found if t is not None]


def _compiled(door: str, model: nn.Module) -> Callable[..., Any]:
    @DOORS[door]
    def forces(z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Any:
        batch = Molecules(z, position, edge_index, molecule, count)
        return energy_and_forces(model, batch, position)

    return lambda batch, position: forces(batch.z, position, batch.edge_index, batch.molecule, batch.count)


@pytest.mark.parametrize("name", by_default(MODELS, "schnet"))
@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
def test_one_compilation_for_batches_of_all_sizes(door: str, name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    run = _compiled(door, model)
    for seed, sizes in enumerate(SIZES):
        batch = molecules(sizes, seed, torch.float64)
        want = _step(lambda b, p: energy_and_forces(model, b, p), model, batch)
        for one, other in zip(_step(run, model, batch), want, strict=True):
            assert relative_error(one, other) < 1e-10
    counted = graphweave.counters()
    assert (counted["graph_breaks"], counted["eager_fallbacks"]) == (0, 0)
    if door == "compile":  # a single atom has code of its own, since its rows broadcast
        assert counted["compilations"] == 2


def _energy(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    message = torch.tanh((x[dst] - x[src]) @ w) * torch.sigmoid(x[src])
    return torch.zeros_like(x).index_add(0, dst, message).square().sum(-1)


def _asks_for_the_gradient(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    energy = _energy(x, w, src, dst)
    return energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def _with_strain(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """The stress is the gradient by a strain that is zero, which the function itself makes."""
    strain = torch.zeros(3, 3, dtype=x.dtype, requires_grad=True)
    energy = _energy(x + x @ (strain + strain.t()) / 2, w, src, dst)
    return energy, torch.autograd.grad(energy.sum(), strain, create_graph=True)[0]


def _of_an_intermediate(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    place = x.detach().clone().requires_grad_()
    energy = _energy(place, w, src, dst)
    return energy, torch.autograd.grad(energy.sum(), place, create_graph=True)[0]


def _third_order(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    x.requires_grad_()
    out = _energy(x, w, src, dst)
    for _ in range(2):
        out = torch.autograd.grad(out.sin().sum(), x, create_graph=True)[0]
    return _energy(x, w, src, dst), out


ASKING = (_asks_for_the_gradient, _with_strain, _of_an_intermediate, _third_order)


@pytest.mark.parametrize("fn", by_default(ASKING, _asks_for_the_gradient, _with_strain))
@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
def test_what_asks_for_a_gradient_inside(door: str, fn: Callable[..., tuple[Tensor, Tensor]]) -> None:
    _assert_slopes_agree(fn, DOORS[door](fn))


def _assert_slopes_agree(fn: Callable[..., tuple[Tensor, Tensor]], compiled: Callable[..., Any]) -> None:
    """Compares energies, slopes and gradients of both with eager mode, on two sizes, and counts one compilation."""
    for rows, edges in ((7, 20), (5, 11)):
        x, w = torch.randn(rows, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
        found = []
        for call in (fn, compiled):
            here, weight = x.clone(), w.clone().requires_grad_()
            energy, slope = call(here, weight, *random_graph(rows, rows, edges))
            (energy.sum() + slope.square().sum()).backward()
            assert weight.grad is not None
            found.append([energy, slope, weight.grad, *([here.grad] if here.grad is not None else [])])
        assert len(found[0]) == len(found[1])
        for one, other in zip(*found, strict=True):
            assert relative_error(one.detach(), other.detach()) < 1e-11
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (1, 0, 0)


def _leaves_it_to_the_caller(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """MACE does so: callers of its compiled model are to say that positions require gradients."""
    if not torch.compiler.is_compiling():
        x.requires_grad_()
    energy = _energy(x, w, src, dst)
    (slope,) = torch.autograd.grad([energy], [x], [torch.ones_like(energy)], create_graph=True, allow_unused=True)
    return energy, slope


def test_an_argument_by_which_a_gradient_is_taken_requires_one() -> None:
    _assert_slopes_agree(_leaves_it_to_the_caller, graphweave.compile(_leaves_it_to_the_caller))


def test_no_gradient_is_lost_behind_a_graph_break() -> None:
    """The energy was computed from an argument that required no gradient, as eager mode would say."""

    def fn(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> Tensor | None:
        energy = _energy(x, w, src, dst).sum()
        torch._dynamo.graph_break()
        (slope,) = torch.autograd.grad(energy, x, allow_unused=True)
        return slope

    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        graphweave.compile(fn)(torch.randn(7, 3, dtype=torch.float64), w, *random_graph(7, 7, 20))


def _serves(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """Without a graph of the gradient: the energy is given beside its forces."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        energy = _energy(x, w, src, dst)
        (slope,) = torch.autograd.grad(energy.sum(), x)
    return energy, -slope


@pytest.mark.parametrize("grad_enabled", [False, True])
@pytest.mark.parametrize("door", by_default(DOORS, "compile"))
def test_inference_with_forces(door: str, grad_enabled: bool) -> None:
    compiled, w = DOORS[door](_serves), torch.randn(3, 3, dtype=torch.float64)
    for rows, edges in ((7, 20), (5, 11)):
        x, index = torch.randn(rows, 3, dtype=torch.float64), random_graph(rows, rows, edges)
        with torch.set_grad_enabled(grad_enabled):
            for one, other in zip(compiled(x, w, *index), _serves(x, w, *index), strict=True):
                assert relative_error(one.detach(), other.detach()) < 1e-12
    counted = graphweave.counters()
    assert (counted["compilations"], counted["graph_breaks"], counted["eager_fallbacks"]) == (1, 0, 0)


def _lengths_of_zero(x: Tensor, w: Tensor, src: Tensor, dst: Tensor) -> tuple[Tensor, Tensor]:
    """A self-loop has no direction: the derivative of its length is no number unless a mask keeps it out."""
    squared = (x[dst] - x[src]).square().sum(-1, keepdim=True)
    masked = torch.where(squared > 0, squared, 1.0).sqrt() * (squared > 0)
    message = nn.functional.silu(1000 * masked @ w[:1]) + squared.sqrt() * (src == 0)[:, None]
    energy = torch.zeros_like(x).index_add(0, dst, message).sum(-1)
    return energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def test_as_many_edges_as_atoms_as_features() -> None:
    """Sizes that are equal in the first call are not taken for one, and an index is checked against its own rows."""
    compiled = graphweave.compile(_asks_for_the_gradient)
    for atoms, edges in ((3, 3), (7, 7), (7, 3), (4, 9)):
        x, w = torch.randn(atoms, 3, dtype=torch.float64), torch.randn(3, 3, dtype=torch.float64)
        index, found = random_graph(atoms, atoms, edges), []
        for call in (_asks_for_the_gradient, compiled):
            here, weight = x.clone(), w.clone().requires_grad_()
            energy, slope = call(here, weight, *index)
            (energy.sum() + slope.square().sum()).backward()
            found.append([energy.detach(), slope.detach(), here.grad, weight.grad])
        for one, other in zip(*found, strict=True):
            assert relative_error(other, one) < 1e-11
    index[1, 4] = 7  # a row of the second and third batch
    with pytest.raises(IndexError, match="7"):
        compiled(x, w, *index)


def test_lengths_of_zero_and_large_activations_are_as_in_eager_mode() -> None:
    compiled, index = graphweave.compile(_lengths_of_zero), random_graph(7, 7, 30)
    index[:, :2] = torch.tensor([[0, 3], [0, 3]])
    start = torch.randn(7, 3, dtype=torch.float64)
    found = []
    for call in (_lengths_of_zero, compiled):
        x, w = start.clone().requires_grad_(), torch.eye(3, dtype=torch.float64).requires_grad_()
        energy, slope = call(x, w, *index)
        (energy.sum() + slope[1:].square().sum()).backward()
        found.append([energy.detach(), slope.detach(), x.grad, w.grad])
    assert found[0][1].isnan().any()
    assert found[0][1].isfinite().any()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10, equal_nan=True)
