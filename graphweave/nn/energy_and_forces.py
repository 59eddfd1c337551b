"""Energies of a model together with forces and virials: `EnergyAndForces`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class EnergyAndForces(nn.Module):
    """E, F = -dE / d pos and, with `virial`, dE / d strain, of a model of energies such as `SchNet`.

    The strain eps [3, 3] of a system is symmetric and moves atoms and cells alike: x -> x + x eps. Its gradient divided
    by the volume of the cell is the stress, in the sign of ASE.

    Compile this module, not the model inside it: energies and their gradients are then one program. In training mode
    results have a graph, so that a loss on forces can be differentiated. In evaluation mode they have none, and calls
    under `torch.no_grad()` are the fastest. No gradient goes back to what positions were computed from.

    `model` is called as `model(numbers, pos, edge_index, offsets, batch, num_systems)`, as `Potential.forward` says.

    >>> edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> energy, forces = EnergyAndForces(SchNet(width=8))(torch.tensor([8, 1, 1]), torch.randn(3, 3), edge_index)
    >>> energy.shape, forces.shape
    (torch.Size([1]), torch.Size([3, 3]))
    """

    def __init__(self, model: nn.Module, virial: bool = False) -> None:
        super().__init__()
        self.model, self.virial = model, virial

    def forward(
        self,
        numbers: Tensor,
        pos: Tensor,
        edge_index: Tensor,
        offsets: Tensor | None = None,
        batch: Tensor | None = None,
        num_systems: int = 1,
    ) -> tuple[Tensor, ...]:
        """-> (energies [num_systems], forces [N, 3]) or, with `virial`, also virials [num_systems, 3, 3]."""
        with torch.enable_grad():
            pos = pos.detach().requires_grad_()
            if not self.virial:
                energy = self.model(numbers, pos, edge_index, offsets, batch, num_systems)
                (slope,) = torch.autograd.grad(energy.sum(), pos, create_graph=self.training)
                return self._out(energy, -slope)
            strain = pos.new_zeros(num_systems, 3, 3).requires_grad_()
            by_atom = strain[0].expand(len(pos), 3, 3) if batch is None else strain[batch]
            moved = pos + _strained(pos, by_atom)
            if offsets is not None:
                offsets = offsets + _strained(offsets, by_atom[edge_index[0]])
            energy = self.model(numbers, moved, edge_index, offsets, batch, num_systems)
            slope, virial = torch.autograd.grad(energy.sum(), (pos, strain), create_graph=self.training)
            return self._out(energy, -slope, virial)

    def _out(self, *results: Tensor) -> tuple[Tensor, ...]:
        return results if self.training else tuple(one.detach() for one in results)


def _strained(rows: Tensor, strain: Tensor) -> Tensor:
    """The displacement of each row by the symmetric part of its strain, [rows, 3] and [rows, 3, 3] -> [rows, 3]."""
    return (rows.unsqueeze(-1) * (strain + strain.mT)).sum(1) / 2
