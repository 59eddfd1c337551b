"""Small models of the energy of molecules, of which forces are derivatives: SchNet, PaiNN, EGNN and DimeNet in brief.

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

    def with_edges(self, edge_index: Tensor) -> Molecules:
        return Molecules(self.z, self.position, edge_index, self.molecule, self.count)


def molecules(sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float32) -> Molecules:
    """Random molecules of these numbers of atoms, with an edge in each direction between any two close ones."""
    drawn = torch.Generator().manual_seed(seed)
    total = sum(sizes)
    molecule = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long))
    position = torch.randn(total, 3, generator=drawn, dtype=torch.float64) * 1.8
    near = (torch.cdist(position, position) < CUTOFF) & (molecule[:, None] == molecule) & ~torch.eye(total, dtype=bool)
    z = torch.randint(KINDS, (total,), generator=drawn)
    return Molecules(z, position.to(dtype), near.nonzero().t().contiguous(), molecule, len(sizes))


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


class SchNet(nn.Module):
    """Schuett et al. (2017): messages are rows of the source times a filter, a network of the distance."""

    def __init__(self, width: int = 64, layers: int = 3, bases: int = 50) -> None:
        super().__init__()
        self.kinds, self.energy = nn.Embedding(KINDS, width), _Energy(width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(bases, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.sources = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.register_buffer("centres", torch.linspace(0, CUTOFF, bases))

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        (src, dst), (_, distance) = edge_index, _distances(position, edge_index)
        bases = torch.exp(-10 * (distance[:, None] - self.centres).square())
        smooth = _smooth(distance)[:, None]
        h = self.kinds(z)
        for network, source, update in zip(self.filters, self.sources, self.updates, strict=True):
            messages = source(h)[src] * (network(bases) * smooth)
            h = h + update(_summed(messages, dst, len(z)))
        out: Tensor = self.energy(h, molecule, count)
        return out


class PaiNN(nn.Module):
    """Schuett et al. (2021): atoms have scalars and vectors, and messages carry both."""

    def __init__(self, width: int = 64, layers: int = 3, bases: int = 20) -> None:
        super().__init__()
        self.width, self.kinds, self.energy = width, nn.Embedding(KINDS, width), _Energy(width)
        self.messages = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width)) for _ in range(layers)
        )
        self.filters = nn.ModuleList(nn.Linear(bases, 3 * width) for _ in range(layers))
        self.mixings = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 3 * width)) for _ in range(layers)
        )
        self.register_buffer("waves", torch.arange(1, bases + 1) * (math.pi / CUTOFF))

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        src, dst = edge_index
        gap, distance = _distances(position, edge_index)
        bases = torch.sin(distance[:, None] * self.waves) / distance[:, None]
        smooth, way = _smooth(distance)[:, None], (gap / distance[:, None])[:, :, None]
        h = self.kinds(z)
        vectors = h.new_zeros(len(z), 3, self.width)
        for message, network, mixing, update in zip(
            self.messages, self.filters, self.mixings, self.updates, strict=True
        ):
            scalar, along, turned = (message(h)[src] * (network(bases) * smooth)).split(self.width, dim=-1)
            h = h + _summed(scalar, dst, len(z))
            vectors = vectors + _summed(vectors[src] * turned[:, None] + along[:, None] * way, dst, len(z))
            one, other = mixing(vectors).split(self.width, dim=-1)
            length = (other.square().sum(1) + 1e-8).sqrt()
            a, b, c = update(torch.cat([h, length], dim=-1)).split(self.width, dim=-1)
            h, vectors = h + a + b * (one * other).sum(1), vectors + c[:, None] * one
        out: Tensor = self.energy(h, molecule, count)
        return out


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

    def __init__(self, width: int = 64, layers: int = 3, bases: int = 6, angles: int = 4) -> None:
        super().__init__()
        self.kinds, self.energy = nn.Embedding(KINDS, width), _Energy(width)
        self.start = nn.Linear(2 * width + bases, width)
        self.before = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.turns = nn.ModuleList(nn.Linear(bases * angles, width, bias=False) for _ in range(layers))
        self.after = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.register_buffer("waves", torch.arange(1, bases + 1) * (math.pi / CUTOFF))
        self.register_buffer("turned", torch.arange(angles))

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        src, dst = edge_index
        gap, distance = _distances(position, edge_index)
        bases = torch.sin(distance[:, None] * self.waves) / distance[:, None] * _smooth(distance)[:, None]
        before, after = _pairs(edge_index, len(z))
        across = torch.linalg.cross(gap[before], gap[after], dim=-1).square().sum(-1).clamp(min=1e-12).sqrt()
        angle = torch.atan2(across, (gap[before] * gap[after]).sum(-1))
        by_angle = (bases[before][:, :, None] * torch.cos(angle[:, None] * self.turned)[:, None]).flatten(1)
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
