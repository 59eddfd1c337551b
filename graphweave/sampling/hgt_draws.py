"""HGSampling: draws with as many nodes of each type, many of them joined."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.graph.relation import CanonicalEtype
from graphweave.sampling.adjacency import Adjacency
from graphweave.sampling.hops import HopEdges, draw, fold_numbers
from graphweave.sampling.induced import Numbering, edges_between
from graphweave.sampling.native import RawChoice


class HGTDraws:
    """The draws of `HGTSampler`, whose docstring says what they are, from edges that are grouped by destination."""

    def __init__(
        self, relations: Mapping[CanonicalEtype, Adjacency], num_nodes: Mapping[str, int], num_samples: object
    ) -> None:
        """DataError for `num_samples` that are no lists of numbers of nodes."""
        self._relations = relations
        self._num_samples = _checked_samples(num_samples, list(num_nodes))
        self._numberings = {t: Numbering(count) for t, count in num_nodes.items()}

    def sample(self, seeds: Mapping[str, Tensor], key: int) -> tuple[dict[str, Tensor], dict[CanonicalEtype, HopEdges]]:
        """The nodes of the batch of `seeds` by type, and all edges between them. `key` decides all draws."""
        none = torch.empty(0, dtype=torch.int64, device="cpu")
        with ExitStack() as stack:
            types = {
                t: _TypeOfBatch([seeds.get(t, none)], stack.enter_context(numbering.of(seeds.get(t, none))))
                for t, numbering in self._numberings.items()
            }
            for of in types.values():
                stack.callback(of.clear)
            self._draw(types, seeds, key)
            found = {t: torch.cat(of.chunks) for t, of in types.items()}
            edges = {
                relation: edges_between(graph, types[relation[0]].numbers, found[relation[2]])
                for relation, graph in self._relations.items()
            }
        return found, edges

    def _draw(self, types: Mapping[str, _TypeOfBatch], seeds: Mapping[str, Tensor], key: int) -> None:
        for t, nodes in seeds.items():
            self._add_neighbours(types, t, nodes)
        for step in range(len(next(iter(self._num_samples.values())))):
            for number, (t, of) in enumerate(types.items()):
                found = of.drawn(self._num_samples[t][step], fold_numbers(key, [step, number]))
                if found.numel():
                    self._add_neighbours(types, t, found)

    def _add_neighbours(self, types: Mapping[str, _TypeOfBatch], t: str, nodes: Tensor) -> None:
        """Enters what leads to `nodes` of type t in the budgets."""
        for relation, graph in self._relations.items():
            if relation[2] != t:
                continue
            found = draw(graph, nodes, None, RawChoice(-1, 0, False, False), 0)
            degree = torch.bincount(found.dst, minlength=nodes.numel()).double()
            types[relation[0]].add(found.src, 1 / degree[found.dst])


@dataclass(eq=False)
class _TypeOfBatch:
    """The nodes of one type in a batch, and the budget of those outside it."""

    chunks: list[Tensor]
    """int64 [found] for the seeds and for each step."""
    numbers: Tensor
    """int64 [num_nodes]: the number of a node in the batch, -1 for others."""
    outside: Tensor | None = None
    """int64 [k]: the nodes with a budget, in rising order."""
    budget: Tensor | None = None
    """float64 [k]"""

    def add(self, nodes: Tensor, shares: Tensor) -> None:
        """Adds to the budget of each of the nodes; those in the batch have none."""
        new = self.numbers[nodes] < 0
        nodes, shares = nodes[new], shares[new]
        if not nodes.numel():
            return
        if self.outside is not None and self.budget is not None:
            nodes, shares = torch.cat([self.outside, nodes]), torch.cat([self.budget, shares])
        self.outside, place = nodes.unique(return_inverse=True)
        self.budget = torch.bincount(place, shares, minlength=self.outside.numel())

    def drawn(self, count: int, key: int) -> Tensor:
        """int64 [at most count]: nodes drawn from the budget, in rising order, which become part of the batch."""
        if self.outside is None or self.budget is None or not self.outside.numel() or not count:
            return torch.empty(0, dtype=torch.int64, device="cpu")
        taken = torch.ones(self.outside.numel(), dtype=torch.bool, device="cpu")
        if self.outside.numel() > count:
            # Each node waits exponentially, at the rate of its weight; the first ones are a draw without replacement
            # (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).
            generator = torch.Generator().manual_seed(key)
            uniform = torch.rand(self.outside.numel(), generator=generator, dtype=torch.float64, device="cpu")
            waiting = -torch.log1p(-uniform) / self.budget**2
            taken.zero_()[waiting.topk(count, largest=False).indices] = True
        found = self.outside[taken]
        self.outside, self.budget = self.outside[~taken], self.budget[~taken]
        first = sum(chunk.numel() for chunk in self.chunks)
        self.numbers[found] = torch.arange(first, first + found.numel(), device="cpu")
        self.chunks.append(found)
        return found

    def clear(self) -> None:
        """Takes all nodes but the seeds out of the table."""
        for chunk in self.chunks[1:]:
            self.numbers[chunk] = -1


def _checked_samples(given: Any, types: list[str]) -> dict[str, list[int]]:
    found = given if isinstance(given, Mapping) else dict.fromkeys(types, given)
    if missing := sorted(set(types) - found.keys()):
        raise DataError(f"num_samples: node types {', '.join(missing)} have none. Give a list for each type.")
    for t in types:
        fine = isinstance(found[t], (list, tuple)) and all(
            isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in found[t]
        )
        if not fine or not found[t]:
            raise DataError(
                f"num_samples of type {t!r}: expected a list of numbers of nodes, one for each step (got {found[t]!r})."
                " Pass for example [512, 512]."
            )
    if len({len(found[t]) for t in types}) > 1:
        listed = ", ".join(f"{t}: {len(found[t])}" for t in types)
        raise DataError(f"num_samples: expected lists of equal length (got {listed}). Give one number for each step.")
    return {t: list(found[t]) for t in types}
