"""The potentials of `equivariant_models.py`, written with the layers of e3nn, if that is installed."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn
from torch.nn import functional as F

from bench.equivariant_models import WAVES, radial_waves
from bench.force_models import KINDS


def _summed(rows: Tensor, index: Tensor, count: int) -> Tensor:
    return rows.new_zeros(count, *rows.shape[1:]).index_add(0, index, rows)


def _irreps(channels: int, degree: int) -> Any:
    return o3.Irreps([(channels, (d, (-1) ** d)) for d in range(degree + 1)])


def _product(first: Any, second: Any, degree: int, mode: str, *, weights: bool) -> Any:
    """The product of each part of `first` with each of `second`, as far as its degree is wanted."""
    found: list[tuple[int, Any]] = []
    ways: list[tuple[int, int, int, str, bool]] = []
    for i, (channels, a) in enumerate(first):
        for j, (_, b) in enumerate(second):
            for ir in a * b:
                if ir.l <= degree and ir.p == (-1) ** ir.l:
                    ways.append((i, j, len(found), mode, weights))
                    found.append((channels, ir))
    out, order, _ = o3.Irreps(found).sort()
    ways = [(i, j, order[k], m, w) for i, j, k, m, w in ways]
    own = {"internal_weights": False} if weights else {}
    return o3.TensorProduct(first, second, out, ways, shared_weights=not weights, **own)


class _Layer(nn.Module):
    """A convolution and its channels mixed before and behind; with products, the result also to the third power."""

    def __init__(self, given: Any, channels: int, degree: int, hidden: int, products: bool) -> None:
        super().__init__()
        irreps = _irreps(channels, degree)
        self.channels, self.products = channels, products
        self.couple = _product(given, o3.Irreps.spherical_harmonics(degree), degree, "uvu", weights=True)
        self.radial = nn.Sequential(nn.Linear(WAVES, hidden), nn.SiLU(), nn.Linear(hidden, self.couple.weight_numel))
        self.before, self.after = o3.Linear(given, given), o3.Linear(self.couple.irreps_out, irreps)
        if products:
            self.square = _product(irreps, irreps, degree, "uuu", weights=False)
            self.mix_square = o3.Linear(self.square.irreps_out, irreps)
            self.cube = _product(irreps, irreps, degree, "uuu", weights=False)
            self.mix_cube = o3.Linear(self.cube.irreps_out, irreps)

    def forward(self, x: Tensor, harmonics: Tensor, waves: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        message = self.couple(self.before(x)[src], harmonics, self.radial(waves))
        a = self.after(_summed(message, dst, len(x)) / 8)
        if self.products:
            square = self.mix_square(self.square(a, a))
            return a + square + self.mix_cube(self.cube(square, a))
        return torch.cat([F.silu(a[:, : self.channels]), a[:, self.channels :]], 1)


class E3nn(nn.Module):
    """The energy of each molecule, by layers as those of `equivariant_models.Equivariant`."""

    def __init__(self, channels: int, degree: int, layers: int, hidden: int, *, products: bool) -> None:
        super().__init__()
        self.channels = channels
        self.embedding = nn.Embedding(KINDS, channels)
        self.harmonics = o3.SphericalHarmonics(o3.Irreps.spherical_harmonics(degree), True, "component")
        given = [_irreps(channels, degree if n else 0) for n in range(layers)]
        self.layers = nn.ModuleList(_Layer(irreps, channels, degree, hidden, products) for irreps in given)
        self.readout = nn.Linear(channels, 1)

    def forward(self, z: Tensor, position: Tensor, edge_index: Tensor, molecule: Tensor, count: int) -> Tensor:
        gap = position[edge_index[1]] - position[edge_index[0]]
        harmonics, waves = self.harmonics(gap), radial_waves(gap.square().sum(-1).sqrt())
        x = self.embedding(z)
        for layer in self.layers:
            x = layer(x, harmonics, waves, edge_index)
        return _summed(self.readout(x[:, : self.channels]).squeeze(-1), molecule, count)
