"""Potentials with features that turn with the molecule: convolutions as in NequIP, and products of features as in MACE.

A feature of an atom has a row of numbers for each channel, one for each real spherical harmonic up to a degree: 1 of
degree 0, 3 of degree 1, 5 of degree 2. Two such rows are multiplied by a constant tensor of couplings, most of which
are zeros, and the product turns with the molecule as its factors do.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.force_models import CUTOFF, KINDS

WAVES = 8
"""Functions of a distance that a radial network reads."""


def spherical_harmonics(x: Tensor, degree: int) -> Tensor:
    """Real harmonics of unit vectors up to `degree` (0 to 2), each with a mean square of 1 over the sphere. [E, 3] ->
    [E, (degree + 1)^2]."""
    a, b, c = x.unbind(-1)
    rows = [torch.ones_like(a)]
    if degree > 0:
        rows += [math.sqrt(3) * t for t in (a, b, c)]
    if degree > 1:
        rows += [math.sqrt(15) * t for t in (a * b, b * c, a * c)]
        rows += [math.sqrt(5) / 2 * (3 * c * c - 1), math.sqrt(15) / 2 * (a * a - b * b)]
    return torch.stack(rows, -1)


def degrees(degree: int) -> list[slice]:
    """The columns of each degree."""
    return [slice(d * d, (d + 1) ** 2) for d in range(degree + 1)]


def couplings(degree: int) -> Tensor:
    """The mean over the sphere of the product of any three harmonics, which couples two of them to a third.
    [(degree + 1)^2] * 3, float64.

    Gauss's points along the axis and equal angles around it are exact for products of this degree. What rounding leaves
    of a zero is removed.
    """
    heights, weights = np.polynomial.legendre.leggauss(3 * degree + 1)
    angles = torch.arange(6 * degree + 2, dtype=torch.float64) * (2 * math.pi / (6 * degree + 2))
    height, angle = torch.cartesian_prod(torch.from_numpy(heights), angles).unbind(1)
    radius = (1 - height.square()).sqrt()
    values = spherical_harmonics(torch.stack([radius * angle.cos(), radius * angle.sin(), height], 1), degree)
    weight = torch.from_numpy(weights).repeat_interleave(len(angles)) / (2 * len(angles))
    mean = torch.einsum("p,pi,pj,pk->ijk", weight, values, values, values)
    return mean.where(mean.abs() > 1e-12, 0)


def paths(degree: int) -> list[tuple[int, int, int]]:
    """The degrees of two factors and of their product, wherever their coupling is not 0."""
    d = range(degree + 1)
    return [(a, b, c) for a in d for b in d for c in d if abs(a - b) <= c <= a + b and (a + b + c) % 2 == 0]


def _summed(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, index, rows)


class Convolution(nn.Module):
    """sum over edges of w(distance) * (x[src] coupled with the harmonics of the edge), with weights for each path and
    channel. [N, channels, harmonics] -> the same."""

    def __init__(self, channels: int, degree: int, hidden: int) -> None:
        super().__init__()
        self.degree, self.paths = degree, paths(degree)
        table, of = couplings(degree).to(torch.get_default_dtype()), degrees(degree)
        for n, (a, b, c) in enumerate(self.paths):
            self.register_buffer(f"coupling_{n}", table[of[a], of[b], of[c]].contiguous())
        self.radial = nn.Sequential(
            nn.Linear(WAVES, hidden), nn.SiLU(), nn.Linear(hidden, len(self.paths) * channels)
        )  # fmt: skip

    def forward(self, x: Tensor, harmonics: Tensor, waves: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        weights = self.radial(waves).unflatten(-1, (len(self.paths), x.shape[1]))
        rows, of = x[src], degrees(self.degree)
        products: list[list[Tensor]] = [[] for _ in of]
        for n, (a, b, c) in enumerate(self.paths):
            matrix = torch.einsum("ej,ijk->eik", harmonics[:, of[b]], self.get_buffer(f"coupling_{n}"))
            products[c].append(torch.einsum("eci,eik->eck", rows[..., of[a]] * weights[:, n, :, None], matrix))
        message = torch.cat([torch.stack(same).sum(0) for same in products], -1)
        return _summed(message, dst, len(x))


class Mix(nn.Module):
    """A product of the channels with a matrix for each degree."""

    def __init__(self, channels: int, degree: int) -> None:
        super().__init__()
        self.degree = degree
        self.weight = nn.Parameter(torch.randn(degree + 1, channels, channels) / math.sqrt(channels))

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.weight, degrees(self.degree), strict=True)
        return torch.cat([torch.einsum("nci,cd->ndi", x[..., of], w) for w, of in parts], -1)


class Gate(nn.Module):
    """SiLU of what does not turn; the other degrees are scaled by a sigmoid of it."""

    def forward(self, x: Tensor) -> Tensor:
        scalar = x[..., :1]
        return torch.cat([F.silu(scalar), torch.sigmoid(scalar) * x[..., 1:]], -1)


class ProductBasis(nn.Module):
    """w1 a + w2 (a coupled with a) + w3 (the latter coupled with a), with weights for each kind of atom, degree and
    channel. [N, channels, harmonics] -> the same."""

    def __init__(self, channels: int, degree: int) -> None:
        super().__init__()
        self.degree = degree
        self.register_buffer("coupling", couplings(degree).to(torch.get_default_dtype()))
        self.weights = nn.Embedding(KINDS, 3 * (degree + 1) * channels)

    def forward(self, a: Tensor, z: Tensor) -> Tensor:
        pairs = torch.einsum("nci,ncj,ijk->nck", a, a, self.coupling)
        triples = torch.einsum("nci,ncj,ijk->nck", pairs, a, self.coupling)
        weights = self.weights(z).view(len(z), 3, self.degree + 1, -1, 1)
        wide = torch.cat([weights[:, :, d].expand(-1, -1, -1, 2 * d + 1) for d in range(self.degree + 1)], -1)
        return wide[:, 0] * a + wide[:, 1] * pairs + wide[:, 2] * triples


class Equivariant(nn.Module):
    """The energy of each molecule, by layers of convolutions, with products of features behind each if asked for."""

    def __init__(self, channels: int, degree: int, layers: int, hidden: int, *, products: bool) -> None:
        super().__init__()
        self.degree = degree
        self.embedding = nn.Embedding(KINDS, channels)
        self.convolutions = nn.ModuleList(Convolution(channels, degree, hidden) for _ in range(layers))
        self.products = nn.ModuleList(ProductBasis(channels, degree) for _ in range(layers if products else 0))
        self.before = nn.ModuleList(Mix(channels, degree) for _ in range(layers))
        self.after = nn.ModuleList(Mix(channels, degree) for _ in range(layers))
        self.gate = Gate()
        self.readout = nn.Linear(channels, 1)

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        gap = position[edge_index[1]] - position[edge_index[0]]
        distance = gap.square().sum(-1).sqrt()
        harmonics, waves = spherical_harmonics(gap / distance[:, None], self.degree), radial_waves(distance)
        x = F.pad(self.embedding(z)[..., None], (0, (self.degree + 1) ** 2 - 1))
        for n, convolution in enumerate(self.convolutions):
            summed = self.after[n](convolution(self.before[n](x), harmonics, waves, edge_index) / 8)
            x = x + (self.products[n](summed, z) if self.products else self.gate(summed))
        return _summed(self.readout(x[..., 0]).squeeze(-1), molecule, count)


def radial_waves(distance: Tensor) -> Tensor:
    """Sines that are 0 at the cutoff, divided by the distance, and made smooth there. [E] -> [E, WAVES]."""
    share = distance[:, None] / CUTOFF
    steps = torch.arange(1, WAVES + 1, device=distance.device, dtype=distance.dtype) * math.pi
    smooth = (1 - share).clamp(min=0).square() * (1 + 2 * share)
    return torch.sin(steps * share) / distance[:, None] * smooth
