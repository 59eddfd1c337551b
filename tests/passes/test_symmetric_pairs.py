"""Values that are the same in both directions of an edge are computed once for both."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from bench.check import relative_error
from bench.force_models import molecules
from graphweave.nn import EnergyAndForces, SchNet
from tests.support import by_default

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def _undirected(atoms: int, count: int) -> Tensor:
    """Different edges in both directions."""
    one, other = torch.combinations(torch.arange(atoms))[torch.randperm(atoms * (atoms - 1) // 2)[:count]].unbind(1)
    order = torch.randperm(2 * len(one))
    return torch.stack([torch.cat([one, other]), torch.cat([other, one])])[:, order]


def _any(atoms: int, count: int) -> Tensor:
    """Edges in one direction, with some that repeat, and loops."""
    some = torch.randint(atoms, (2, count))
    return torch.cat([some, some[:, : count // 3], some[:, :2].flip(0), torch.arange(2).expand(2, 2)], 1)


def _of_lengths(pos: Tensor, x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    gap = pos[dst] - pos[src]
    length = (gap.square().sum(-1, keepdim=True) + 1).sqrt()
    network = torch.tanh(torch.sin(length * torch.arange(1.0, 5, dtype=pos.dtype)) @ w[:4]) @ w
    return torch.zeros_like(x).index_add(0, dst, x[src] * network).square()


def _with_vectors(pos: Tensor, x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """Odd values, with products and without, that meet even ones and others."""
    src, dst = edge_index
    gap = pos[dst] - pos[src]
    wide = torch.tanh(gap.square() @ w[:3])
    odd = (gap @ w[:3]) * wide - (gap * 2) @ w[3:6]
    message = odd * x[src] + torch.where(wide > 0.1, x[dst] * (pos[src] + pos[dst]).sum(-1, keepdim=True), 0)
    return torch.zeros_like(x).index_add(0, dst, message / (2 + wide)).square()


ENERGIES = (_of_lengths, _with_vectors)


@pytest.mark.parametrize("energy", by_default(ENERGIES, _of_lengths))
def test_forces_and_their_gradients_on_any_graph(energy: Callable[..., Tensor]) -> None:
    def step(pos: Tensor, x: Tensor, w: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        out = energy(pos, x, w, edge_index)
        (slope,) = torch.autograd.grad(out.sum(), pos, create_graph=True)
        return out, slope

    torch.manual_seed(0)
    compiled = graphweave.compile(step)
    for n, edge_index in enumerate((_undirected(9, 20), _undirected(12, 5), _any(9, 14), _undirected(9, 20)[:, :0])):
        values = [torch.randn(12 - n % 2, k, dtype=torch.float64) for k in (3, 6)]
        values.append(torch.randn(6, 6, dtype=torch.float64))
        found = []
        calls: tuple[Callable[..., tuple[Tensor, Tensor]], ...] = (step, compiled)
        for call in calls:
            given = [t.clone().requires_grad_() for t in values]
            out, slope = call(*given, edge_index)
            grads = torch.autograd.grad(out.sum() + slope.square().sum(), given)
            found.append([out, slope, *grads])
        for one, other in zip(*found, strict=True):
            assert relative_error(other.detach(), one.detach()) < 1e-11
    counted = graphweave.counters()
    assert (counted["graph_breaks"], counted["eager_fallbacks"]) == (0, 0)


@pytest.mark.parametrize("has_reverses", by_default((True, False), True))
def test_products_are_of_pairs_only_where_edges_have_reverses(has_reverses: bool) -> None:
    model = EnergyAndForces(SchNet(8, 1, 6)).eval()
    b = molecules([9, 12, 7])
    edge_index = b.edge_index if has_reverses else b.edge_index[:, b.edge_index[0] < b.edge_index[1]]
    said = graphweave.explain(model, b.z, b.position, edge_index, None, b.molecule, b.count).text("ir")
    of_pairs = re.findall(r"^%\d+: P_\w+\[.*\] f32 = matmul", said, re.MULTILINE)
    assert bool(of_pairs) == has_reverses
