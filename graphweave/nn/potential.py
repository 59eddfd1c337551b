"""Parts that models of atoms' energy share: vectors along edges, a smooth cutoff, and sums over a system's atoms.

The models are plain PyTorch: they take edges as an index tensor, as `graphweave.points.neighbours` finds them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from graphweave.core.errors import DataError

MAX_ATOMIC_NUMBER = 118


class Potential(nn.Module):
    """E_s = sum over the atoms i of system s of (mean + std readout(h_i)), where h_i is what a subclass computes.

    `cutoff`: the length from which on atoms do not see each other. Every message has the factor `smooth_cutoff`, so
    energies and forces are continuous where atoms pass it. `mean` and `std`, the energy of an atom and its spread in
    the training data, are buffers. A system without atoms has the energy 0, and an atom without neighbours one that
    depends on its number alone.

    >>> class Pairs(Potential):
    ...     def atoms(self, h, src, dst, gap, distance):
    ...         return h + sum_edges(h[src] * self.smooth_cutoff(distance), dst, len(h))
    >>> model = Pairs(8, cutoff=5.0, activation=nn.SiLU(), mean=0.0, std=1.0)
    >>> model(torch.tensor([8, 1]), torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]])).shape
    torch.Size([1])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, width: int, cutoff: float, activation: nn.Module, mean: float, std: float) -> None:
        super().__init__()
        if not 0 < cutoff < math.inf:
            raise DataError(f"cutoff must be above 0 and finite (got {cutoff}). Pass the largest distance.")
        self.width, self.cutoff = width, float(cutoff)
        self.embedding = nn.Embedding(MAX_ATOMIC_NUMBER + 1, width)
        self.readout = nn.Sequential(nn.Linear(width, width // 2), activation, nn.Linear(width // 2, 1))
        self.register_buffer("mean", torch.tensor([float(mean)]))
        self.register_buffer("std", torch.tensor([float(std)]))

    def forward(
        self,
        numbers: Tensor,
        pos: Tensor,
        edge_index: Tensor,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        num_systems: int = 1,
    ) -> Tensor:
        """-> energies [num_systems].

        `numbers` [N] int64 atomic numbers, `pos` [N, 3]. `edge_index` [2, E]: the edges j -> i, in both directions, of
        all atoms that are closer than the cutoff; further ones count nothing. `offsets` [E, 3] is added to
        pos[i] - pos[j] where the edge passes into another cell: `found.shifts @ cell`, if edge_index is `found.pairs`
        of `graphweave.points.neighbours`. `batch` [N]: the system of each atom, if there are several.
        """
        src, dst = edge_index[0], edge_index[1]
        gap = pos[dst] - pos[src]
        if offsets is not None:
            gap = gap + offsets
        h = self.atoms(self.embedding(numbers), src, dst, gap, gap.square().sum(-1).sqrt())
        energies = self.mean + self.std * self.readout(h).squeeze(-1)
        if batch is None:
            return energies.sum(0, keepdim=True)
        return energies.new_zeros(num_systems).index_add(0, batch, energies)

    def atoms(self, h: Tensor, src: Tensor, dst: Tensor, gap: Tensor, distance: Tensor) -> Tensor:
        """Rows of atoms [N, width], from `h` [N, width] of their numbers alone, vectors `gap` [E, 3] and lengths
        [E]."""
        raise NotImplementedError

    def smooth_cutoff(self, distance: Tensor) -> Tensor:
        """(cos(pi d / cutoff) + 1) / 2, and 0 from the cutoff on. [E] -> [E, 1]."""
        falls = 0.5 * (torch.cos(distance * (math.pi / self.cutoff)) + 1) * (distance < self.cutoff)
        return falls.unsqueeze(-1)

    def extra_repr(self) -> str:
        return f"width={self.width}, cutoff={self.cutoff}"


def sum_edges(messages: Tensor, dst: Tensor, atoms: int) -> Tensor:
    """The sum of the messages to each atom, [E, ...] -> [N, ...]."""
    return messages.new_zeros(atoms, *messages.shape[1:]).index_add(0, dst, messages)
