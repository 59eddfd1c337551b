"""Clusters of atoms with the energies and exact forces of a classical potential, made and not downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.graph_set import take_graphs
from graphweave.data.split import random_split
from graphweave.points import neighbours

BOLTZMANN = 8.617333e-5
"""eV per kelvin."""


class AtomBatch(NamedTuple):
    """Some systems as one: `batch` [N] is the system of each atom, `edge_index` [2, E] has both directions of each
    pair, `energy` is [S] and `forces` [N, 3]."""

    numbers: Tensor
    pos: Tensor
    edge_index: Tensor
    batch: Tensor
    energy: Tensor
    forces: Tensor


@dataclass(frozen=True, eq=False)
class AtomSet:
    """Systems of atoms one after the other: system i has the atoms from ptr[i] to ptr[i + 1].

    `numbers` [N] int64 atomic numbers; `pos` [N, 3] in angstroms; `energy` [S] in eV; `forces` [N, 3] in eV per
    angstrom. Edges join atoms of a system that are closer than `cutoff`. The masks are [S] bool.
    """

    numbers: Tensor
    pos: Tensor
    ptr: Tensor
    energy: Tensor
    forces: Tensor
    cutoff: float
    train_mask: Tensor
    val_mask: Tensor
    test_mask: Tensor
    name: str

    @property
    def sizes(self) -> Tensor:
        """The number of atoms of each system, [S]."""
        return self.ptr.diff()

    @cached_property
    def edge_index(self) -> Tensor:
        """int64 [2, E], sorted by the first row."""
        systems = torch.arange(len(self.energy)).repeat_interleave(self.sizes)
        return neighbours(self.pos, self.cutoff, batch=systems).pairs

    @cached_property
    def _edge_ptr(self) -> Tensor:
        """System i has the edges from _edge_ptr[i] to _edge_ptr[i + 1]."""
        return torch.searchsorted(self.edge_index[0].contiguous(), self.ptr)

    def batch(self, systems: Tensor) -> AtomBatch:
        """The systems with the numbers `systems` [B], in this order."""
        atoms, edge_index, number = take_graphs(self.ptr, self._edge_ptr, self.edge_index, systems)
        return AtomBatch(
            self.numbers[atoms], self.pos[atoms], edge_index, number, self.energy[systems], self.forces[atoms]
        )


@dataclass(frozen=True, slots=True)
class PairPotential:
    """An element whose atoms have an energy by pairs. `of(r)` gives the energy of a pair in eV at the distance r in
    angstroms, and its derivative."""

    of: Callable[[Tensor], tuple[Tensor, Tensor]]
    number: int
    nearest: float
    """The distance of least energy."""
    cutoff: float
    """Pairs that are further apart have less than a hundredth of the least energy."""
    warmest: float
    """Kelvin at which small clusters are still together after they were made."""

    def energy_and_forces(self, pos: Tensor) -> tuple[Tensor, Tensor]:
        """[S, n, 3] -> energies [S] and forces [S, n, 3], by the formula of the derivative."""
        gap = pos.unsqueeze(-2) - pos.unsqueeze(-3)
        alone = torch.eye(pos.shape[-2], dtype=torch.bool)
        distance = gap.norm(dim=-1).masked_fill(alone, self.nearest)
        energy, slope = (one.masked_fill(alone, 0) for one in self.of(distance))
        return energy.sum((-1, -2)) / 2, -((slope / distance).unsqueeze(-1) * gap).sum(-2)


def _lennard_jones(r: Tensor) -> tuple[Tensor, Tensor]:
    """4 eps ((sigma / r)^12 - (sigma / r)^6) of argon: eps = 120 K, sigma = 3.4 (Rahman, "Correlations in the motion
    of atoms in liquid argon", 1964)."""
    eps, square = 120 * BOLTZMANN, (3.4 / r).square()
    sixth = square * square * square
    return 4 * eps * (sixth.square() - sixth), -24 * eps * (2 * sixth.square() - sixth) / r


def _morse(r: Tensor) -> tuple[Tensor, Tensor]:
    """D (e^2 - 2 e), e = exp(-a (r - r0)), of copper: D = 0.3429 eV, a = 1.3588, r0 = 2.866 (Girifalco and Weizer,
    "Application of the Morse potential function to cubic metals", 1959)."""
    depth, steep = 0.3429, 1.3588
    e = torch.exp(-steep * (r - 2.866))
    return depth * (e.square() - 2 * e), -2 * depth * steep * (e.square() - e)


PAIR_POTENTIALS = {
    "lennard-jones": PairPotential(_lennard_jones, 18, 3.4 * 2 ** (1 / 6), 8.5, 25.0),
    "morse": PairPotential(_morse, 29, 2.866, 7.0, 600.0),
}
"""Classical potentials by name: argon by Lennard-Jones, copper by Morse."""


def atom_clusters(potential: str = "lennard-jones", *, each: int = 80, seed: int = 0) -> AtomSet:
    """`each` clusters of every size from 6 to 15 atoms at random temperatures, in float32, split 60/20/20.

    Clusters begin as random points in a ball, are cooled to a minimum of the energy, and then move in a heat bath
    (overdamped Langevin dynamics) of a temperature between 0 and the potential's warmest. Energies and forces are
    computed from the formula in float64. DataError for a potential that is not one of `PAIR_POTENTIALS`.
    """
    if potential not in PAIR_POTENTIALS:
        raise DataError(f"potential must be one of {', '.join(PAIR_POTENTIALS)} (got {potential!r}). Name one of them.")
    pair, drawn = PAIR_POTENTIALS[potential], torch.Generator().manual_seed(seed)
    made = [_warm(pair, _cold(pair, each, atoms, drawn), drawn) for atoms in range(6, 16)]
    found = [pair.energy_and_forces(pos) for pos in made]
    sizes = torch.tensor([pos.shape[1] for pos in made]).repeat_interleave(each)
    pos = torch.cat([one.flatten(0, 1) for one in made]).float()
    return AtomSet(
        torch.full((len(pos),), pair.number), pos, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
        torch.cat([energy for energy, _ in found]).float(),
        torch.cat([forces.flatten(0, 1) for _, forces in found]).float(), pair.cutoff,
        *random_split(torch.zeros(len(sizes)), seed), f"{potential} clusters",
    )  # fmt: skip


def _cold(pair: PairPotential, count: int, atoms: int, drawn: torch.Generator) -> Tensor:
    """Clusters near a minimum of the energy, float64 [count, atoms, 3]: steepest descent, in shorter and shorter
    steps."""
    towards = torch.randn(count, atoms, 3, dtype=torch.float64, generator=drawn)
    lengths = torch.rand(count, atoms, 1, dtype=torch.float64, generator=drawn) ** (1 / 3)
    pos = towards / towards.norm(dim=-1, keepdim=True) * lengths * (0.65 * pair.nearest * atoms ** (1 / 3))
    for step in range(150):
        pos = pos + _drift(pair, pos, 0.25, 0.1 / (1 + step / 20))
    return pos


def _warm(pair: PairPotential, pos: Tensor, drawn: torch.Generator) -> Tensor:
    """The same clusters after 100 steps in a heat bath, each at a temperature of its own."""
    share = torch.rand(len(pos), 1, 1, dtype=torch.float64, generator=drawn)
    noise = (2 * 0.125 / _stiffness(pair) * BOLTZMANN * pair.warmest * share).sqrt()
    for _ in range(100):
        moved = torch.randn(pos.shape, dtype=pos.dtype, generator=drawn)
        pos = pos + _drift(pair, pos, 0.125, 0.1) + noise * moved
    return pos


def _drift(pair: PairPotential, pos: Tensor, mobility: float, bound: float) -> Tensor:
    """How far forces move atoms at a mobility in units of one over the stiffness of a pair, but at most `bound` times
    the distance of the nearest atoms: two of them may lie on each other."""
    _, forces = pair.energy_and_forces(pos)
    length = forces.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return forces / length * (length * (mobility / _stiffness(pair))).clamp(max=bound * pair.nearest)


def _stiffness(pair: PairPotential) -> float:
    """The second derivative of the energy of a pair at its minimum."""
    h = 1e-4 * pair.nearest
    ends = torch.tensor([pair.nearest - h, pair.nearest + h], dtype=torch.float64)
    return float(pair.of(ends)[1].diff()) / (2 * h)
