"""SchNet: the energy of atoms by continuous-filter convolutions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphweave.nn.cf_conv import ShiftedSoftplus
from graphweave.nn.potential import Potential, sum_edges


class SchNet(Potential):
    """h_i <- h_i + V2 ssp(V1 sum over edges e = j -> i of (W h_j) * f(d_e) c(d_e) + b1) + b2, `layers` times.

    The filter f is a network of two layers on `bases` Gaussians of the length d_e, whose centres lie evenly in
    [0, cutoff]; c is the cosine cutoff and ssp the softplus, shifted to be 0 at 0. Energies depend on lengths alone, so
    they stay the same, and forces rotate, when a system is rotated. Source: Schütt et al., "SchNet: A continuous-filter
    convolutional neural network for modeling quantum interactions", NIPS 2017, section 4; the filter ends in a linear
    layer with the cutoff behind it, as in SchNetPack and PyG.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> SchNet(width=8)(torch.tensor([8, 1, 1]), torch.randn(3, 3), edge_index).shape
    torch.Size([1])
    """

    centres: Tensor

    def __init__(
        self, width: int = 64, layers: int = 3, bases: int = 50, cutoff: float = 5.0, mean: float = 0.0,
        std: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(width, cutoff, ShiftedSoftplus(), mean, std)
        self.filters = nn.ModuleList(_two_layers(bases, width) for _ in range(layers))
        self.sources = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(_two_layers(width, width) for _ in range(layers))
        self.register_buffer("centres", torch.arange(float(bases)))  # in units of the distance between them

    def atoms(self, h: Tensor, src: Tensor, dst: Tensor, gap: Tensor, distance: Tensor) -> Tensor:
        """See `Potential`."""
        per_length = (len(self.centres) - 1) / self.cutoff
        bases = torch.exp(-0.5 * (per_length * distance.unsqueeze(-1) - self.centres).square())
        smooth = self.smooth_cutoff(distance)
        for network, source, update in zip(self.filters, self.sources, self.updates, strict=True):
            h = h + update(sum_edges(source(h)[src] * (network(bases) * smooth), dst, len(h)))
        return h


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), ShiftedSoftplus(), nn.Linear(width, width))
