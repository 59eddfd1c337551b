"""PaiNN: the energy of atoms by messages of scalars and vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphweave.nn.potential import Potential, sum_edges


class PaiNN(Potential):
    """Atoms have scalars h_i and vectors v_i [3, width], which are 0 at first; `layers` times a message and an update.

    Message, over edges e = j -> i: (a, b, c)_e = phi(h_j) * (F r(d_e) + f) cut(d_e), h_i <- h_i + sum of a_e,
    v_i <- v_i + sum of v_j * b_e + u_e c_e, with the unit vector u_e from j to i and
    r_n(d) = sin(n pi d / cutoff) / d, n = 1 .. `bases`. Update: (a, b, c)_i = psi(h_i, |V v_i|),
    h_i <- h_i + a_i + b_i <U v_i, V v_i>, v_i <- v_i + c_i U v_i. phi and psi are networks of two layers with SiLU.
    Energies are invariant and vectors rotate with the system, since vectors are only added, scaled and mixed over
    channels. Source: Schütt, Unke and Gastegger, "Equivariant message passing for the prediction of tensorial
    properties and molecular spectra", ICML 2021, section 4 (equations 7 to 10).

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> PaiNN(width=8)(torch.tensor([8, 1, 1]), torch.randn(3, 3), edge_index).shape
    torch.Size([1])
    """

    orders: Tensor

    def __init__(
        self, width: int = 64, layers: int = 3, bases: int = 20, cutoff: float = 5.0, mean: float = 0.0,
        std: float = 1.0,
    ) -> None:  # fmt: skip
        super().__init__(width, cutoff, nn.SiLU(), mean, std)
        self.messages = nn.ModuleList(_two_layers(width, width) for _ in range(layers))
        self.filters = nn.ModuleList(nn.Linear(bases, 3 * width) for _ in range(layers))
        self.mixings = nn.ModuleList(nn.Linear(width, 2 * width, bias=False) for _ in range(layers))
        self.updates = nn.ModuleList(_two_layers(2 * width, width) for _ in range(layers))
        self.register_buffer("orders", torch.arange(1.0, bases + 1))

    def atoms(self, h: Tensor, src: Tensor, dst: Tensor, gap: Tensor, distance: Tensor) -> Tensor:
        """See `Potential`."""
        bases = torch.sin((math.pi / self.cutoff * distance).unsqueeze(-1) * self.orders) / distance.unsqueeze(-1)
        smooth, unit = self.smooth_cutoff(distance), (gap / distance.unsqueeze(-1)).unsqueeze(-1)
        v = h.new_zeros(len(h), 3, self.width)
        for message, network, mixing, update in zip(
            self.messages, self.filters, self.mixings, self.updates, strict=True
        ):
            a, b, c = (message(h)[src] * (network(bases) * smooth)).split(self.width, dim=-1)
            h = h + sum_edges(a, dst, len(h))
            v = v + sum_edges(v[src] * b.unsqueeze(1) + unit * c.unsqueeze(1), dst, len(h))
            uv, vv = mixing(v).split(self.width, dim=-1)
            length = (vv.square().sum(1) + 1e-8).sqrt()  # differentiable where a vector is 0
            a, b, c = update(torch.cat([h, length], dim=-1)).split(self.width, dim=-1)
            h, v = h + a + b * (uv * vv).sum(1), v + c.unsqueeze(1) * uv
        return h


def _two_layers(inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, 3 * width))
