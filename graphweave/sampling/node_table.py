"""Local numbers of the nodes that a batch has found, of one node type."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.runtime.threads import num_threads
from graphweave.sampling.native import RawTable, address, library

_ABSENT = torch.iinfo(torch.int64).max
_FEWEST_SLOTS = 1 << 10


class NodeTable:
    """Numbers nodes in the order in which they are found: the seeds first, each with a number of its own.

    A node that is among the seeds several times is known by its first number. With `trees`, equal nodes of different
    trees are different. Memory: 16 bytes for each slot of a hash table at most half full, or 8 bytes for each node of
    the graph if that is less.
    """

    def __init__(self, num_nodes: int, seeds: Tensor, trees: Tensor | None, num_trees: int) -> None:
        """`seeds` int64 [k], in range; `trees` int64 [k], each below `num_trees`, or None for one tree of all."""
        if num_nodes * max(num_trees, 1) >= _ABSENT:
            raise DataError(
                f"expected fewer than 2^63 pairs of a tree and a node (got {num_trees} trees and {num_nodes} nodes)."
                " Pass fewer seeds."
            )
        self._num_nodes = num_nodes
        self._num_keys = num_nodes * (num_trees if trees is not None else 1)
        self._slots = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self.chunks = [seeds]
        """int64 [found at this hop], the seeds first."""
        self.tree_chunks = None if trees is None else [trees]
        self.count = seeds.numel()

    def number(self, nodes: Tensor, drawn_by: Tensor, trees: Tensor | None) -> Tensor:
        """[edges]: the number of nodes[e] in the tree trees[drawn_by[e]]. Nodes that are new become part of the last
        chunk."""
        self._reserve(self.count + nodes.numel())
        local = torch.empty_like(nodes)
        found = torch.empty_like(nodes)
        found_trees = None if trees is None else torch.empty_like(nodes)
        addresses = map(address, (nodes, trees, drawn_by))
        outputs = map(address, (local, found, found_trees))
        added = library().gw_table_number(
            self._raw(), *addresses, nodes.numel(), self.count, *outputs, num_threads()
        )  # fmt: skip
        self._append(found[:added], None if found_trees is None else found_trees[:added])
        return local

    def last(self) -> tuple[Tensor, Tensor | None]:
        """The nodes of the last chunk, and their trees."""
        return self.chunks[-1], None if self.tree_chunks is None else self.tree_chunks[-1]

    def all(self) -> tuple[Tensor, Tensor | None]:
        """All nodes, and their trees."""
        return torch.cat(self.chunks), None if self.tree_chunks is None else torch.cat(self.tree_chunks)

    def next_hop(self) -> None:
        """Begins a new chunk."""
        empty = torch.empty(0, dtype=torch.int64, device="cpu")
        self.chunks.append(empty)
        if self.tree_chunks is not None:
            self.tree_chunks.append(empty)

    def _append(self, nodes: Tensor, trees: Tensor | None) -> None:
        self.chunks[-1] = torch.cat([self.chunks[-1], nodes]) if self.chunks[-1].numel() else nodes
        if self.tree_chunks is not None and trees is not None:
            self.tree_chunks[-1] = torch.cat([self.tree_chunks[-1], trees]) if self.tree_chunks[-1].numel() else trees
        self.count += nodes.numel()

    def _reserve(self, entries: int) -> None:
        """Makes room for that many nodes."""
        if self._slots and (self._keys is None or self._slots >= 2 * entries):
            return
        wanted = max(_FEWEST_SLOTS, 1 << (4 * entries - 1).bit_length())
        dense = self._num_keys <= 2 * wanted
        self._slots = max(self._num_keys, 1) if dense else wanted
        self._keys = None if dense else torch.full((wanted,), -1, dtype=torch.int64, device="cpu")
        self._values = torch.full((self._slots,), _ABSENT, dtype=torch.int64, device="cpu")
        first = 0
        for i, nodes in enumerate(self.chunks):
            trees = None if self.tree_chunks is None else self.tree_chunks[i]
            library().gw_table_fill(self._raw(), address(nodes), address(trees), nodes.numel(), first)
            first += nodes.numel()

    def _raw(self) -> RawTable:
        return RawTable(address(self._keys), address(self._values), self._slots, self._num_nodes)
