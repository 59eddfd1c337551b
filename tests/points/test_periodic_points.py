"""Neighbours in periodic cells: against all images by brute force and ASE, and lists that are kept while atoms move."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import graphweave
from graphweave.core.errors import DataError
from graphweave.points import NeighbourList, Neighbours, displacements, neighbours
from tests.points import point_references as reference


def drawn(*sizes: int, seed: int = 0) -> Tensor:
    return torch.rand(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


CUBE = 3 * torch.eye(3, dtype=torch.float64)
SKEWED = torch.tensor([[3.0, 0, 0], [2.8, 1.5, 0], [-1.9, 2.2, 2.6]], dtype=torch.float64)
FLAT = torch.tensor([[9.0, 0, 0], [0, 0.7, 0], [0.3, 0, 5.0]], dtype=torch.float64)
LEFT_HANDED = SKEWED.flip(0)
CELLS = {"cube": CUBE, "skewed": SKEWED, "flat": FLAT, "left-handed": LEFT_HANDED}


def same(found: Neighbours, expected: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(found.pairs, expected[0]) and torch.equal(found.shifts.long(), expected[1])


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
@pytest.mark.parametrize("periodic", [(True, True, True), (True, False, True), (False, True, False), (False,) * 3])
def test_all_images_within_the_cutoff(cell: Tensor, periodic: tuple[bool, ...]) -> None:
    pos = drawn(9, 3) @ cell
    for cutoff in (0.6, 2.5):
        expected = reference.neighbours(pos, cutoff, cell, list(periodic), reach=6)
        assert same(neighbours(pos, cutoff, cell, periodic), expected)


def test_a_cell_that_is_shorter_than_the_cutoff() -> None:
    pos = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64)
    found = neighbours(pos, 3.0, torch.eye(3, dtype=torch.float64))
    assert found.pairs.shape == (2, 122)  # points of the lattice with 0 < |n| <= 3, exactly 3 among them
    assert same(found, reference.neighbours(pos, 3.0, torch.eye(3), [True] * 3, reach=4))


@pytest.mark.parametrize("dims", [1, 2, 4])
def test_any_number_of_dims(dims: int) -> None:
    cell = torch.eye(dims, dtype=torch.float64) + 0.3 * drawn(dims, dims)
    pos = drawn(7, dims) @ cell
    expected = reference.neighbours(pos, 0.8, cell, [True] * dims, reach=2)
    assert same(neighbours(pos, 0.8, cell), expected)


def test_without_a_cell_nothing_repeats() -> None:
    pos = 3 * drawn(40, 3)
    found = neighbours(pos, 1.0)
    expected = reference.radius(pos, pos, 1.0)
    assert torch.equal(found.pairs, expected[:, expected[0] != expected[1]])
    assert not found.shifts.any()


def test_rows_along_which_nothing_repeats_may_be_zero() -> None:
    cell = SKEWED.clone()
    cell[1] = 0
    pos = 3 * drawn(9, 3)
    expected = reference.neighbours(pos, 1.5, cell, [True, False, True], reach=4)
    assert same(neighbours(pos, 1.5, cell, (True, False, True)), expected)


def test_atoms_far_outside_of_their_cell() -> None:
    """Shifts lead from the positions that were given: the pairs are those of the atoms moved back."""
    pos = drawn(12, 3) @ SKEWED
    cells_away = torch.randint(-50, 50, (12, 3), generator=torch.Generator().manual_seed(0))
    moved = pos + cells_away.double() @ SKEWED
    home, away = neighbours(pos, 2.0, SKEWED), neighbours(moved, 2.0, SKEWED)
    shifts = away.shifts.long() + cells_away[away.pairs[1]] - cells_away[away.pairs[0]]
    order = sorted(zip(*away.pairs.tolist(), shifts.tolist(), strict=True))
    assert order == sorted(zip(*home.pairs.tolist(), home.shifts.long().tolist(), strict=True))
    torch.testing.assert_close(
        displacements(moved, away, SKEWED).norm(dim=1).sort().values,
        displacements(pos, home, SKEWED).norm(dim=1).sort().values,
    )


def test_every_pair_is_there_in_both_orders() -> None:
    """Also in a crystal, where many distances equal the cutoff but for rounding."""
    a = 0.1 + torch.arange(4, dtype=torch.float64) * 0.7
    pos = torch.cartesian_prod(a, a, a)
    cell = 2.8 * torch.eye(3, dtype=torch.float64)
    for cutoff in (0.7, 0.7 * math.sqrt(2), 0.7 * math.sqrt(3), 1.4):
        found = neighbours(pos, cutoff, cell)
        there = {(i, j, *s) for i, j, s in zip(*found.pairs.tolist(), found.shifts.tolist(), strict=True)}
        assert all((j, i, *(-n for n in s)) in there for i, j, *s in there)
        assert same(found, reference.neighbours(pos, cutoff, cell, [True] * 3, reach=1))


def test_several_systems() -> None:
    """One of them without atoms; each with its own cell and its own flags."""
    counts, cells = (5, 0, 1, 8), torch.stack([CUBE, FLAT, SKEWED, SKEWED])
    batch = torch.arange(4).repeat_interleave(torch.tensor(counts))
    pos = (drawn(14, 1, 3) @ cells[batch]).squeeze(1)
    flags = torch.tensor([[True] * 3, [True] * 3, [True, False, True], [False, True, True]])
    found = neighbours(pos, 2.0, cells, flags, batch)
    pairs, shifts = [], []
    for system, count in enumerate(counts):
        own = (batch == system).nonzero().view(-1)
        if count:
            some, moved = reference.neighbours(pos[own], 2.0, cells[system], flags[system].tolist(), reach=6)
            pairs.append(own[some])
            shifts.append(moved)
    assert same(found, (torch.cat(pairs, 1), torch.cat(shifts)))
    shared = neighbours(pos, 2.0, SKEWED, batch=batch)
    assert torch.equal(batch[shared.pairs[0]], batch[shared.pairs[1]])
    assert same(shared, tuple(neighbours(pos, 2.0, SKEWED.expand(4, 3, 3), batch=batch)))


def test_distances_are_differentiable_in_positions_and_cells() -> None:
    batch = torch.tensor([0, 0, 0, 1, 1])
    pos, cells = drawn(5, 3), torch.stack([CUBE, SKEWED])
    found = neighbours(pos, 2.0, cells, batch=batch)

    def energy(pos: Tensor, cells: Tensor) -> Tensor:
        return displacements(pos, found, cells, batch).square().sum(1).sqrt().exp().sum()

    assert torch.autograd.gradcheck(energy, (pos.requires_grad_(), cells.requires_grad_()))
    one = neighbours(pos, 2.0, CUBE)
    alone = displacements(pos, one, CUBE), displacements(pos, one, CUBE[None])
    torch.testing.assert_close(*alone)
    assert float(alone[0].detach().norm(dim=1).max()) <= 2.0


def test_ase_finds_the_same() -> None:
    ase = pytest.importorskip("ase.neighborlist", reason="ASE is not installed")
    pos = drawn(60, 3) @ (2 * SKEWED)
    for periodic in ((True, True, True), (True, False, True)):
        i, j, s = ase.primitive_neighbor_list("ijS", periodic, 2 * SKEWED.numpy(), pos.numpy(), 2.7)
        found = neighbours(pos, 2.7, 2 * SKEWED, periodic)
        ours = zip(*found.pairs.tolist(), found.shifts.long().tolist(), strict=True)
        assert list(ours) == sorted(zip(i.tolist(), j.tolist(), s.tolist(), strict=True))


def test_float32_positions_are_exact_numbers() -> None:
    pos, cell = (drawn(30, 3) @ SKEWED).float(), SKEWED.float()
    found, wide = neighbours(pos, 2.0, cell), neighbours(pos.double(), 2.0, cell.double())
    assert found.shifts.dtype == torch.float32
    assert same(found, (wide.pairs, wide.shifts.long()))


@pytest.mark.parametrize("count", [0, 1])
def test_no_atom_and_a_single_one(count: int) -> None:
    pos = drawn(count, 3)
    assert neighbours(pos, 1.0).pairs.shape == (2, 0)
    assert neighbours(pos, 1.0, CUBE).shifts.shape == (0, 3)
    assert neighbours(pos, 3.0, CUBE).pairs.shape == (2, 6 * count)


def test_any_number_of_threads_finds_the_same() -> None:
    cell = 12 * SKEWED
    pos = drawn(3000, 3) @ cell
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(neighbours(pos, 2.0, cell))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_random_cells(data: st.DataObject) -> None:
    seed, count = data.draw(st.integers(0, 10**6)), data.draw(st.integers(1, 5))
    cell = 4 * drawn(3, 3, seed=seed) - 2
    if torch.linalg.svdvals(cell)[-1] < 1.0:
        cell = 0.3 * cell + 2 * torch.eye(3, dtype=torch.float64)
    pos = 5 * drawn(count, 3, seed=seed + 1) - 2
    flags = [data.draw(st.booleans()) for _ in range(3)]
    cutoff = data.draw(st.sampled_from([0.3, 1.0, 1.7]))
    reach = math.ceil((9 + cutoff) / float(torch.linalg.svdvals(cell)[-1]))
    assert same(neighbours(pos, cutoff, cell, flags), reference.neighbours(pos, cutoff, cell, flags, reach))


FINE = torch.eye(3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda pos: neighbours(pos, 0.0), r"cutoff must be above 0 and finite \(got 0.0\)"),
        (lambda pos: neighbours(pos, math.inf), "cutoff must be above 0 and finite"),
        (lambda pos: neighbours(pos / 0, 1.0), "coordinates must be finite"),
        (lambda pos: neighbours(pos, 1.0, FINE / 0), "cells must be finite"),
        (lambda pos: neighbours(pos, 1.0, torch.ones(3, 3)), r"must be independent \(got .* for system 0\)"),
        (lambda pos: neighbours(pos, 1.0, FINE * 0), "must be independent"),
        (lambda pos: neighbours(pos, 1.0, FINE.double()), "pos and cell must have one dtype"),
        (lambda pos: neighbours(pos, 1.0, FINE[:2]), r"cell must be \[3, 3\] or \[1, 3, 3\].*\[2, 3\]"),
        (
            lambda pos: neighbours(pos, 1.0, FINE[None], batch=torch.tensor([0, 0, 0, 0, 2])),
            r"or \[3, 3, 3\], a cell for each system \(got \[1, 3, 3\]\)",
        ),
        (lambda pos: neighbours(pos, 1.0, FINE, [True, False]), r"\[3\] or \[1, 3\] \(got \[2\]\)"),
        (lambda pos: neighbours(pos, 1.0, batch=torch.tensor([1, 0, 0, 0, 0])), "sorted and not negative"),
        (lambda pos: neighbours(pos, 1e20, FINE), r"64 bits must count the images of atoms within the cutoff 1e\+20"),
        (lambda pos: neighbours(1e30 * pos, 1.0, FINE), "atoms that are 2.53 cells away"),
        (lambda pos: neighbours(FINE[:2], 2e-8, 1e-8 * FINE), "float32 must hold the number of cells"),
        (lambda pos: NeighbourList(1.0, 0.0), "cutoff and skin must be above 0 and finite"),
    ],
)
def test_errors(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(drawn(5, 3).float())


@pytest.mark.parametrize("cell", [None, CUBE], ids=["open", "periodic"])
def test_a_list_is_kept_while_atoms_move_little(cell: Tensor | None) -> None:
    near = NeighbourList(1.2, 0.2)
    pos = 3 * drawn(60, 3)
    moves = torch.Generator().manual_seed(3)
    for step in range(40):
        pos += 0.01 * torch.randn(60, 3, dtype=torch.float64, generator=moves)  # in place
        found = near(pos, cell)
        expected = neighbours(pos, 1.2, cell)
        assert same(found, (expected.pairs, expected.shifts.long())), step
    assert 2 <= near.searches <= 20


def test_a_list_follows_a_cell_that_is_stretched() -> None:
    near = NeighbourList(1.2, 0.3)
    places, cell = drawn(60, 3), SKEWED.clone()
    for step in range(20):
        cell = cell * torch.tensor([1.02, 0.99, 1.01], dtype=torch.float64)
        cell[0, 1] += 0.03
        pos = places @ cell
        found, expected = near(pos, cell), neighbours(pos, 1.2, cell)
        assert same(found, (expected.pairs, expected.shifts.long())), step
    assert 2 <= near.searches <= 8


def test_a_list_is_built_again_when_more_than_half_the_skin_is_gone() -> None:
    near, pos = NeighbourList(1.0, 0.5), torch.tensor([[0.0], [1.4], [4.0]], dtype=torch.float64)
    near(pos)
    pos[0] += 0.24
    near(pos)
    assert near.searches == 1
    pos[0] += 0.02
    near(pos)
    assert near.searches == 2
    near(pos, batch=torch.tensor([0, 0, 1]))
    near(pos[:2])
    assert near.searches == 4
    assert near(pos[:0]).pairs.shape == (2, 0)


@pytest.mark.parametrize("change", ["flags", "cell", "a row that does not repeat"])
def test_a_list_knows_what_it_was_built_for(change: str) -> None:
    near, pos, flags = NeighbourList(1.2, 0.2), 3 * drawn(30, 3), torch.tensor([True, True, False])
    near(pos, CUBE, flags)
    cell = CUBE.clone()
    if change == "flags":
        flags.logical_not_()
    else:
        cell[0 if change == "cell" else 2] *= 1.5
    found, expected = near(pos, cell, flags), neighbours(pos, 1.2, cell, flags)
    assert same(found, (expected.pairs, expected.shifts.long()))
    assert near.searches == (1 if change == "a row that does not repeat" else 2)


def test_forces_inside_a_compiled_function() -> None:
    """The search stays in the one graph; one compilation serves all sizes."""

    def energy(pos: Tensor, cell: Tensor) -> Tensor:
        found = neighbours(pos, 2.0, cell)
        far = displacements(pos, found, cell).square().sum(1)
        return torch.zeros(len(pos), dtype=pos.dtype).index_add(0, found.pairs[0], (far + 0.1).reciprocal()).sum()

    graphweave.reset_counters()
    compiled = graphweave.compile(energy, fullgraph=True)
    for count in (12, 31, 20):
        results = []
        for run in (energy, compiled):
            pos, cell = (3 * drawn(count, 3)).requires_grad_(), SKEWED.clone().requires_grad_()
            run(pos, cell).backward()
            results.append((pos.grad, cell.grad))
        for ours, eager in zip(*results, strict=True):
            torch.testing.assert_close(ours, eager)
    assert graphweave.counters()["compilations"] == 1
