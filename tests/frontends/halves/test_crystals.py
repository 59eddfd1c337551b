"""Models of crystals in the manner of CHGNet and ALIGNN, with forces and stresses, against eager mode in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphweave
from bench.check import relative_error
from tests.frontends.halves.crystal_models import Charged, Crystal, LineGraphs, crystal

pytestmark = pytest.mark.usefixtures("fresh_compiler")

TOLERANCE = 1e-10
"""Relative error in float64 against eager mode."""


def step(run: Callable[..., Any], model: nn.Module, *given: Any) -> list[Tensor]:
    """Results, and gradients by parameters of a loss on all of them."""
    results = pytree.tree_leaves(run(*given))
    loss = sum((t * torch.arange(1, t.numel() + 1).view(t.shape).to(t.dtype).cos()).sum() for t in results)
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return [*(t.detach() for t in results), *grads]


def same(run: Callable[..., Any], model: nn.Module, *given: Any) -> None:
    got, want = step(run, model, *given), step(model, model, *given)
    largest = max(float(t.abs().max()) for t in want)
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        error = relative_error(one, other, largest * 1e-6)
        assert error < TOLERANCE, f"number {i}: relative error {error:.3g}"
    counted = graphweave.counters()
    assert (counted["graph_breaks"], counted["eager_fallbacks"]) == (0, 0)


def made(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().double()


def crystals(*sizes: int, seed: int = 0) -> list[Crystal]:
    return [crystal(n, 10 * seed + i) for i, n in enumerate(sizes)]


@pytest.mark.slow
def test_a_list_of_graphs_is_compiled_once_for_each_length() -> None:
    """The loop over the list is unrolled, so that a list of another length is another program."""
    model = made(Charged)
    run = graphweave.compile(model)
    for seed, sizes in enumerate([(5, 7), (6, 4), (6, 6)]):
        same(run, model, crystals(*sizes, seed=seed))
    assert graphweave.counters()["compilations"] == 1
    same(run, model, crystals(5, 7, 6, seed=1))  # all have angles; a first list without some costs one more
    same(run, model, crystals(5, 6, 4, seed=1))
    same(run, model, crystals(3, 4, 5))
    assert graphweave.counters()["compilations"] == 2
    same(run, model, crystals(4, 5, seed=7))
    assert graphweave.counters()["compilations"] == 2


@pytest.mark.slow
def test_crystals_without_angles_and_without_bonds() -> None:
    model = made(Charged)
    run = graphweave.compile(model)
    alone = crystal(1, 3, side=20.0)
    assert alone.pairs.shape[1] == 0
    for given in ([crystal(5, 0), alone], [crystal(2, 1, side=8.0), crystal(4, 2)], [alone]):
        same(run, model, given)


def batch(*parts: Crystal) -> tuple[Any, ...]:
    """What `LineGraphs` takes."""
    gaps, pairs, angles, system, atoms, edges = [], [], [], [], 0, 0
    for i, one in enumerate(parts):
        src, dst = one.pairs
        gaps.append((one.fraction[src] - one.fraction[dst] + one.images) @ one.lattice)
        pairs.append(one.pairs + atoms)
        angles.append(one.angles + edges)
        system.append(torch.full_like(one.z, i))
        atoms, edges = atoms + len(one.z), edges + len(src)
    z = torch.cat([one.z for one in parts])
    return z, torch.cat(gaps), torch.cat(pairs, 1), torch.cat(angles, 1), torch.cat(system), len(parts)


@pytest.mark.slow
def test_convolutions_of_graphs_and_of_their_line_graphs() -> None:
    model = made(LineGraphs)
    run = graphweave.compile(model)
    for seed, sizes in enumerate([(4, 6, 5), (5, 3), (6, 6, 3, 4)]):
        same(run, model, *batch(*crystals(*sizes, seed=seed)))
    assert graphweave.counters()["compilations"] == 1
