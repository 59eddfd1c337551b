"""Two models of crystals with graphs of bonds: one that takes a list of graphs, and one with line graphs.

`Charged` follows Deng et al. (2023, CHGNet): atoms, bonds and angles have features; gated messages update them in turn;
`forward` takes a list of crystals, concatenates them, and gives energies, forces and stresses. `LineGraphs` follows
Choudhary and DeCost (2021, ALIGNN): edge-gated convolutions on the line graph and on the graph alternate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphweave.points import neighbours

KINDS, CUTOFF, BOND_CUTOFF = 10, 4.0, 2.8


@dataclass
class Crystal:
    """Atoms at `fraction` of the rows of `lattice`; `pairs` [2, E] with the images of their ends, [E, 3]; `angles`
    [2, T]: pairs of short edges to one atom."""

    z: Tensor
    fraction: Tensor
    lattice: Tensor
    pairs: Tensor
    images: Tensor
    angles: Tensor


def crystal(atoms: int, seed: int, side: float = 5.0) -> Crystal:
    drawn = torch.Generator().manual_seed(seed)
    fraction = torch.rand(atoms, 3, generator=drawn, dtype=torch.float64)
    skewed = torch.eye(3, dtype=torch.float64) + 0.1 * torch.rand(3, 3, generator=drawn, dtype=torch.float64)
    lattice = side * skewed
    found = neighbours(fraction @ lattice, CUTOFF, lattice)
    src, dst = found.pairs
    images = found.shifts.to(torch.float64)
    gap = (fraction[src] - fraction[dst] + images) @ lattice
    short = (gap.norm(dim=-1) < BOND_CUTOFF).nonzero().squeeze(1)
    meet = (dst[short][:, None] == dst[short]) & ~torch.eye(len(short), dtype=torch.bool)
    angles = short[meet.nonzero().t()]
    z = torch.randint(KINDS, (atoms,), generator=drawn)
    return Crystal(z, fraction, lattice, found.pairs, images, angles)


def summed(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, index, rows)


class Waves(nn.Module):
    """Sines of the distance that end smoothly at the cutoff."""

    def __init__(self, many: int, cutoff: float) -> None:
        super().__init__()
        self.cutoff = cutoff
        self.frequencies = nn.Parameter(torch.arange(1, many + 1) * (math.pi / cutoff))

    def forward(self, distance: Tensor) -> Tensor:
        share = (distance / self.cutoff).clamp(max=1.0)
        end = (1 - share.square()).pow(3)
        return end[:, None] * torch.sin(distance[:, None] * self.frequencies) / distance[:, None]


class Gated(nn.Module):
    """A network whose result is multiplied by another one's, between 0 and 1."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(inputs, width), nn.Linear(inputs, width)

    def forward(self, *parts: Tensor) -> Tensor:
        rows = torch.cat(parts, dim=-1)
        return F.silu(self.value(rows)) * torch.sigmoid(self.gate(rows))


class Charged(nn.Module):
    """Energies [graphs], forces of each crystal, stresses [graphs, 3, 3] of a list of crystals."""

    degrees: Tensor

    def __init__(self, width: int = 6, layers: int = 2, waves: int = 4, degrees: int = 3) -> None:
        super().__init__()
        self.kinds = nn.Embedding(KINDS, width)
        self.far, self.near = Waves(waves, CUTOFF), Waves(waves, BOND_CUTOFF)
        self.bonds, self.angles = nn.Linear(waves, width), nn.Linear(degrees, width)
        self.atom_weights, self.bond_weights = nn.Linear(waves, width, False), nn.Linear(waves, width, False)
        self.atom_layers = nn.ModuleList(Gated(3 * width, width) for _ in range(layers))
        self.bond_layers = nn.ModuleList(Gated(4 * width, width) for _ in range(layers - 1))
        self.angle_layers = nn.ModuleList(Gated(4 * width, width) for _ in range(layers - 1))
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.register_buffer("degrees", torch.arange(degrees))

    def forward(self, crystals: list[Crystal]) -> tuple[Tensor, list[Tensor], Tensor]:
        places, strains, volumes, gaps = [], [], [], []
        pairs, angles, owner, atoms, edges = [], [], [], 0, 0
        for number, one in enumerate(crystals):
            strain = torch.zeros(3, 3, dtype=one.lattice.dtype, requires_grad=True)
            lattice = one.lattice @ (torch.eye(3, dtype=strain.dtype) + strain)
            place = one.fraction @ lattice
            src, dst = one.pairs
            gaps.append(place[src] - place[dst] + one.images @ lattice)
            pairs.append(one.pairs + atoms)
            angles.append(one.angles + edges)
            owner.append(torch.full_like(one.z, number))
            places.append(place)
            strains.append(strain)
            volumes.append(torch.linalg.det(lattice))
            atoms, edges = atoms + len(one.z), edges + one.pairs.shape[1]
        z, system = torch.cat([one.z for one in crystals]), torch.cat(owner)
        rows = self.atoms(z, torch.cat(gaps), torch.cat(pairs, 1), torch.cat(angles, 1))
        energy = summed(self.energy(rows).squeeze(-1), system, len(crystals))
        slopes = torch.autograd.grad(energy.sum(), [*places, *strains], create_graph=True)
        stress = torch.stack([s / v for s, v in zip(slopes[len(crystals) :], volumes, strict=True)])
        return energy, [-slope for slope in slopes[: len(crystals)]], stress

    def atoms(self, z: Tensor, gap: Tensor, pairs: Tensor, angles: Tensor) -> Tensor:
        """Features of atoms after all layers."""
        (src, dst), (one, two) = pairs, angles
        distance = gap.square().sum(-1).sqrt()
        cosine = (gap[one] * gap[two]).sum(-1) / (distance[one] * distance[two])
        turn = torch.cos(torch.acos(0.999 * cosine)[:, None] * self.degrees)
        far, near = self.far(distance), self.near(distance)
        v, e, a = self.kinds(z), self.bonds(far), self.angles(turn)
        by_edge, by_bond = self.atom_weights(far), self.bond_weights(near)
        for i, layer in enumerate(self.atom_layers):
            v = v + summed(layer(v[src], v[dst], e) * by_edge, dst, len(z))
            if i < len(self.bond_layers):
                weight, middle = by_bond[one] * by_bond[two], v[dst[one]]
                e = e + summed(self.bond_layers[i](e[one], e[two], a, middle) * weight, one, len(distance))
                a = a + self.angle_layers[i](e[one], e[two], a, middle)
        return v


class EdgeGated(nn.Module):
    """Bresson and Laurent (2017), equation 11, with residual edges."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.src_gate, self.dst_gate, self.edge_gate = (nn.Linear(width, width) for _ in range(3))
        self.src, self.dst = nn.Linear(width, width), nn.Linear(width, width)
        self.nodes, self.edges = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, pairs: Tensor, x: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        src, dst = pairs
        gate = self.src_gate(x)[src] + self.dst_gate(x)[dst] + self.edge_gate(e)
        share = torch.sigmoid(gate)
        received = summed(share * self.src(x)[src], dst, len(x)) / (summed(share, dst, len(x)) + 1e-6)
        return x + F.silu(self.nodes(self.dst(x) + received)), e + F.silu(self.edges(gate))


class LineGraphs(nn.Module):
    """Energies and forces of a batch, by the gradient by the vectors along edges."""

    def __init__(self, width: int = 6, line_layers: int = 2, layers: int = 1, waves: int = 4) -> None:
        super().__init__()
        self.kinds, self.waves = nn.Embedding(KINDS, width), Waves(waves, CUTOFF)
        self.bonds, self.angles = nn.Linear(waves, width), nn.Linear(3, width)
        self.on_lines = nn.ModuleList(EdgeGated(width) for _ in range(line_layers))
        self.on_atoms = nn.ModuleList(EdgeGated(width) for _ in range(line_layers + layers))
        self.energy = nn.Linear(width, 1)

    def forward(
        self, z: Tensor, gap: Tensor, pairs: Tensor, angles: Tensor, system: Tensor, count: int
    ) -> list[Tensor]:
        gap = gap.detach().requires_grad_()
        distance = gap.square().sum(-1).sqrt()
        one, two = angles
        cosine = -(gap[one] * gap[two]).sum(-1) / (distance[one] * distance[two])
        x, y = self.kinds(z), self.bonds(self.waves(distance))
        a = self.angles(torch.stack([cosine, cosine.square(), cosine.pow(3)], dim=-1))
        for i, on_atoms in enumerate(self.on_atoms):
            if i < len(self.on_lines):
                y, a = self.on_lines[i](angles, y, a)
            x, y = on_atoms(pairs, x, y)
        energy = summed(self.energy(x).squeeze(-1), system, count)
        (slope,) = torch.autograd.grad(energy.sum(), gap, create_graph=True)
        return [energy, summed(slope, pairs[1], len(z)) - summed(slope, pairs[0], len(z))]
