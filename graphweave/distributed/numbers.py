"""Who owns which nodes, and the local numbers of the nodes that a part owns or reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphweave.distributed.part import PartNodes


@dataclass(frozen=True, eq=False)
class Ownership:
    """Which rank owns which nodes of one type. Nodes have a *place*: they are ordered by owner, those of one owner that
    read nodes of others behind its other ones, then by number."""

    order: Tensor
    """int64 [num_nodes]: the node at each place."""
    place: Tensor
    """int64 [num_nodes]: the place of each node."""
    begins: tuple[int, ...]
    """[num_parts + 1]: part p owns the places from begins[p] to begins[p + 1]."""

    @property
    def num_nodes(self) -> int:
        """Nodes of all parts together."""
        return self.order.numel()

    @property
    def num_parts(self) -> int:
        """Parts, of which some may own nothing."""
        return len(self.begins) - 1

    def own(self, rank: int) -> Tensor:
        """int64 [num_own]: the nodes of a part, in the order of their places."""
        return self.order[self.begins[rank] : self.begins[rank + 1]]

    def counts(self, places: Tensor) -> Tensor:
        """int64 [num_parts]: how many of the places, which must rise, each part owns."""
        return torch.searchsorted(places, torch.tensor(self.begins)).diff()

    def within(self, places: Tensor, rank: int) -> Tensor:
        """Those of the places, which must rise, that a part owns."""
        first, end = torch.searchsorted(places, torch.tensor(self.begins[rank : rank + 2])).tolist()
        return places[first:end]


def ownership(assignment: Tensor, num_parts: int, reads_others: Tensor) -> Ownership:
    """The ownership by `assignment`: integers [num_nodes] in 0..num_parts-1, the part of each node.

    `reads_others`: bool [num_nodes], whether an edge leads to the node from one of another part.
    """
    counts = torch.bincount(assignment, minlength=num_parts)
    order = torch.argsort(2 * assignment + reads_others, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel())
    return Ownership(order, place, (0, *counts.cumsum(0).tolist()))


def readers(
    pieces: Iterable[tuple[tuple[str, str, str], Tensor, Tensor]], assignment: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """By node type, whether an edge leads to each node from one of another part: bool [num_nodes]. `pieces` are edges:
    their type, sources and destinations."""
    found = {kind: torch.zeros(owner.numel(), dtype=torch.bool) for kind, owner in assignment.items()}
    for (source, _, target), src, dst in pieces:
        found[target][dst[assignment[source][src] != assignment[target][dst]]] = True
    return found


class SourceNumbers:
    """Local numbers of the nodes of one type within part `rank`. First `mark` notes the nodes that edges of the part
    read, then `halo` finds those of other parts, and after that `local` numbers nodes. It takes 9 bytes a node."""

    def __init__(self, owned: Ownership, rank: int) -> None:
        self._begin, self._end = owned.begins[rank : rank + 2]
        self._marked = torch.zeros(owned.num_nodes, dtype=torch.bool)
        self._local = torch.empty(0, dtype=torch.int64)

    def mark(self, places: Tensor) -> None:
        """Notes that the part reads the nodes at these places."""
        self._marked[places] = True

    def halo(self) -> Tensor:
        """int64 [num_halo]: the places of the marked nodes of other parts, in rising order: by owner, then by the
        owner's local number."""
        self._marked[self._begin : self._end] = False
        halo = self._marked.nonzero().flatten()
        num_own = self._end - self._begin
        self._local = torch.empty(self._marked.numel(), dtype=torch.int64)
        self._local[self._begin : self._end] = torch.arange(num_own)
        self._local[halo] = torch.arange(num_own, num_own + halo.numel())
        return halo

    def local(self, places: Tensor) -> Tensor:
        """int64: the local numbers of own and of marked nodes."""
        return self._local[places]


def part_nodes(owned: Ownership, rank: int, halos: Sequence[Tensor], data: dict[str, Tensor]) -> PartNodes:
    """The nodes of one type of part `rank`. `halos`: the places of the halo rows of every part; `data`: rows for the
    part's own nodes."""
    sent = [owned.within(halo, rank) - owned.begins[rank] for halo in halos]
    halo = halos[rank]
    counts = torch.tensor([rows.numel() for rows in sent])
    return PartNodes(
        owned.own(rank), owned.order[halo], owned.counts(halo), torch.cat(sent), counts, owned.num_nodes, data
    )
