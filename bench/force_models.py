"""Models of the energy of molecules, of which forces are derivatives: those of `graphweave.nn`, and two more in brief.

Each is called as `model(z, position, edge_index, molecule, count)` with the kind of each atom, its position, edges
between atoms, the molecule of each atom and the number of molecules, and gives the energy of each molecule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphweave.nn import PaiNN, SchNet
from graphweave.points import neighbours

CUTOFF = 5.0
"""Atoms that are closer than this are joined by edges."""
KINDS = 20
"""Kinds of atoms."""


@dataclass(frozen=True, slots=True)
class Molecules:
    """A batch: the kind and the position of each atom, edges, the molecule of each atom, and how many there are."""

    z: Tensor
    position: Tensor
    edge_index: Tensor
    molecule: Tensor
    count: int
    offsets: Tensor | None = None
    """The vector that is added along each edge, [E, 3], where cells repeat."""


def molecules(sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float32) -> Molecules:
    """Random molecules of these numbers of atoms, with an edge in each direction between any two close ones."""
    drawn = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    molecule = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long))
    position = torch.randn(total, 3, generator=drawn, dtype=torch.float64) * 1.8
    other = ~torch.eye(total, dtype=torch.bool)
    near = (torch.cdist(position, position) < CUTOFF) & (molecule[:, None] == molecule) & other
    z = torch.randint(KINDS, (total,), generator=drawn)
    return Molecules(z, position.to(dtype), near.nonzero().t().contiguous(), molecule, len(sizes))


def crystal(sides: tuple[int, int, int], spacing: float, *, repeats: bool) -> Molecules:
    """Atoms near the points of a grid, as one system: a cell that repeats in all directions, or a cluster."""
    drawn = torch.Generator().manual_seed(0)
    grid = torch.cartesian_prod(*(torch.arange(float(n)) for n in sides)) * spacing
    position = grid + 0.3 * torch.randn(grid.shape, generator=drawn)
    cell = spacing * torch.diag(torch.tensor(sides, dtype=position.dtype))
    found = neighbours(position, CUTOFF, cell if repeats else None)
    z, molecule = torch.randint(KINDS, (len(grid),), generator=drawn), torch.zeros(len(grid), dtype=torch.long)
    return Molecules(z, position, found.pairs, molecule, 1, found.shifts @ cell if repeats else None)


def energy_and_forces(model: Callable[..., Tensor], batch: Molecules, position: Tensor) -> tuple[Tensor, Tensor]:
    """The energies, and the forces on atoms at `position`, of which gradients can be taken again."""
    energy = model(batch.z, position, batch.edge_index, batch.molecule, batch.count)
    (slope,) = torch.autograd.grad(energy.sum(), position, create_graph=True)
    return energy, -slope


def _distances(position: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
    gap = position[edge_index[1]] - position[edge_index[0]]
    return gap, gap.square().sum(-1).sqrt()


def _smooth(distance: Tensor) -> Tensor:
    """A cosine that falls to 0 at the cutoff."""
    return 0.5 * (torch.cos(distance * (math.pi / CUTOFF)) + 1) * (distance < CUTOFF)


def _summed(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, index, rows)


class _Energy(nn.Module):
    """The energy of a molecule as a sum over its atoms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.readout = nn.Sequential(nn.Linear(width, width // 2), nn.SiLU(), nn.Linear(width // 2, 1))

    def forward(self, atoms: Tensor, molecule: Tensor, count: int) -> Tensor:
        return _summed(self.readout(atoms).squeeze(-1), molecule, count)


class NnPotential(nn.Module):
    """A potential of `graphweave.nn`, called like the models here. `offsets` [E, 3] is for cells that repeat."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int,
        offsets: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        out: Tensor = self.model(z, position, edge_index, offsets, molecule, count)
        return out


def schnet(width: int = 64, layers: int = 3, bases: int = 50) -> nn.Module:
    """SchNet of `graphweave.nn`."""
    return NnPotential(SchNet(width, layers, bases, CUTOFF))


def painn(width: int = 64, layers: int = 3, bases: int = 20) -> nn.Module:
    """PaiNN of `graphweave.nn`."""
    return NnPotential(PaiNN(width, layers, bases, CUTOFF))


class EGNN(nn.Module):
    """Satorras et al. (2021): messages are networks of both ends and the distance, and move the positions."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.kinds, self.energy = nn.Embedding(KINDS, width), _Energy(width)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
            for _ in range(layers)
        )
        self.moves = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1)) for _ in range(layers)
        )
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width)) for _ in range(layers)
        )

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        src, dst = edge_index
        h = self.kinds(z)
        for message, move, update in zip(self.messages, self.moves, self.updates, strict=True):
            gap = position[dst] - position[src]
            m = message(torch.cat([h[src], h[dst], gap.square().sum(-1, keepdim=True)], dim=-1))
            position = position + 0.1 * _summed(gap * torch.tanh(move(m)), dst, len(z))
            h = h + update(torch.cat([h, _summed(m, dst, len(z))], dim=-1))
        out: Tensor = self.energy(h, molecule, count)
        return out


class DimeNet(nn.Module):
    """Gasteiger et al. (2020): edges have messages, and read those of the edges before them by the angle between."""

    waves: Tensor
    orders: Tensor

    def __init__(self, width: int = 64, layers: int = 3, bases: int = 6, angles: int = 4) -> None:
        super().__init__()
        self.kinds, self.energy = nn.Embedding(KINDS, width), _Energy(width)
        self.start = nn.Linear(2 * width + bases, width)
        self.before = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.turns = nn.ModuleList(nn.Linear(bases * angles, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("waves", torch.arange(1, bases + 1) * (math.pi / CUTOFF))
        self.register_buffer("orders", torch.arange(angles))

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        src, dst = edge_index
        gap, distance = _distances(position, edge_index)
        bases = torch.sin(distance[:, None] * self.waves) / distance[:, None] * _smooth(distance)[:, None]
        before, after = _pairs(edge_index, len(z))
        across = torch.linalg.cross(gap[before], gap[after], dim=-1).square().sum(-1).clamp(min=1e-12).sqrt()
        angle = torch.atan2(across, (gap[before] * gap[after]).sum(-1))
        by_angle = (bases[before][:, :, None] * torch.cos(angle[:, None] * self.orders)[:, None]).flatten(1)
        h = self.kinds(z)
        edges = F.silu(self.start(torch.cat([h[src], h[dst], bases], dim=-1)))
        for old, turn, new in zip(self.before, self.turns, self.after, strict=True):
            messages = F.silu(old(edges))[before] * turn(by_angle)
            edges = edges + F.silu(new(_summed(messages, after, len(src))))
        out: Tensor = self.energy(_summed(edges, dst, len(z)), molecule, count)
        return out


def _pairs(edge_index: Tensor, atoms: int) -> tuple[Tensor, Tensor]:
    """All pairs of an edge to an atom and an edge from it that does not lead back."""
    src, dst = edge_index
    by_end = torch.argsort(dst, stable=True)
    degree = torch.zeros(atoms, dtype=torch.long).index_add(0, dst, torch.ones_like(dst))
    first, many = (degree.cumsum(0) - degree)[src], degree[src]
    after = torch.repeat_interleave(torch.arange(len(src)), many)
    before = by_end[torch.arange(len(after)) - (many.cumsum(0) - many)[after] + first[after]]
    other = src[before] != dst[after]
    return before[other], after[other]
