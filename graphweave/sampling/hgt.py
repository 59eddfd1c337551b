"""`HGTSampler` and `HGTLoader`: batches with as many nodes of each type, for PyG. This file needs PyG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from graphweave.core.errors import DataError
from graphweave.sampling.hops import batch_key, checked_nodes, checked_seed, draw, folded
from graphweave.sampling.induced import Numbering, edges_between
from graphweave.sampling.native import RawChoice
from graphweave.sampling.pyg import KeyedNegatives, num_nodes_of, relations_of


class HGTSampler(BaseSampler):
    """HGSampling (Hu et al., "Heterogeneous Graph Transformer", 2020, section 4.1 and algorithms 1 and 2): batches with
    about as many nodes of each type, many of them joined.

    Each node type has a budget: B[s] is the sum, over the relations and over the edges from s to a node v of the batch,
    of 1 / (v's incoming edges of that relation), for nodes s outside the batch. In step l and for each type in turn, in
    the order of `data.node_types`, `num_samples[type][l]` nodes are drawn from its budget without replacement, with
    probabilities B[s]^2 / sum B^2 for the first and the same among those left for each further one; all of them if
    they are no more. Drawn nodes enter the batch, and the sources of their incoming edges enter the budgets; a node
    without incoming edges adds nothing. The batch has all edges of `data` between its nodes, those of each relation
    sorted by destination.

    `NodeLoader(data, sampler, input_nodes=(type, nodes), ...)` and `LinkLoader(data, sampler, ...)` take it, and
    `HGTLoader` below makes one. PyG's own `HGTLoader` takes none and needs torch-sparse. A batch is a function of
    `seed`, the epoch (`set_epoch`) and the batch's seeds, as with `NeighborSampler`.
    """

    def __init__(self, data: Any, num_samples: Any, *, seed: int = 0) -> None:
        """`data`: a PyG `HeteroData` on the CPU with `edge_index`. `num_samples`: for each step the number of nodes to
        draw of each type, or type -> such a list. DataError for anything else."""
        if not isinstance(data, HeteroData):
            raise DataError(f"expected a PyG HeteroData (got {type(data).__name__}). Pass one, or use NeighborSampler.")
        self.num_nodes = {t: num_nodes_of(data[t], t) for t in data.node_types}
        self._relations = relations_of(data, {}, None, None)
        self._num_samples = _checked_samples(num_samples, data.node_types)
        self._numberings = {t: Numbering(count) for t, count in self.num_nodes.items()}
        self._seed = checked_seed(seed)
        self._epoch = torch.zeros(1, dtype=torch.int64, device="cpu").share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Begins epoch number `epoch`, whose draws differ from other epochs'. Workers that run already see it, too."""
        self._epoch.fill_(epoch)

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> HeteroSamplerOutput:
        """The batch of the distinct nodes `index.node`. DataError for duplicates, IndexRangeError for a node out of
        range."""
        return node_sample(index, self._sample)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> HeteroSamplerOutput:
        """The batch of both ends of the edges `index.row` -> `index.col`, and of the negative edges asked for."""
        if neg_sampling is not None:
            key = batch_key(self._seed, int(self._epoch), [index.row.long(), index.col.long()])
            neg_sampling = KeyedNegatives(neg_sampling, key)
        return edge_sample(index, self._sample, self.num_nodes, False, None, neg_sampling)

    @property
    def edge_permutation(self) -> None:
        """None: edges have the numbers of the data."""
        return None

    def _sample(self, seed: Mapping[str, Tensor], seed_time: Any = None) -> HeteroSamplerOutput:
        if seed_time is not None and any(times is not None for times in seed_time.values()):
            raise DataError("HGT sampling knows no times (got input_time). Leave it out, or use NeighborSampler.")
        seeds = {t: checked_nodes(nodes, self.num_nodes[t], f"seeds of type {t!r}") for t, nodes in seed.items()}
        for t, nodes in seeds.items():
            if nodes.unique().numel() != nodes.numel():
                raise DataError(f"seeds of type {t!r} must be different nodes (got some twice). Pass seeds.unique().")
        key = batch_key(self._seed, int(self._epoch), list(seeds.values()))
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
        return HeteroSamplerOutput(
            node=found,
            row={relation: of.src for relation, of in edges.items()},
            col={relation: of.dst for relation, of in edges.items()},
            edge={relation: of.edge for relation, of in edges.items()},
            batch=None,
        )

    def _draw(self, types: Mapping[str, _TypeOfBatch], seeds: Mapping[str, Tensor], key: int) -> None:
        for t, nodes in seeds.items():
            self._add_neighbours(types, t, nodes)
        for step in range(len(next(iter(self._num_samples.values())))):
            for number, (t, of) in enumerate(types.items()):
                found = of.drawn(self._num_samples[t][step], folded(key, [step, number]))
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


class HGTLoader(NodeLoader):
    """PyG's `HGTLoader`, with its arguments and `HGTSampler`'s batches, which need no torch-sparse.

    `is_sorted` says nothing here, since edges are sorted once in any case. `seed` is the sampler's; further arguments
    are those of PyG's `NodeLoader`. Errors are the sampler's.
    """

    def __init__(
        self, data: HeteroData, num_samples: Any, input_nodes: Any, is_sorted: bool = False,
        transform: Callable[..., Any] | None = None, transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None, *, seed: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            data, HGTSampler(data, num_samples, seed=seed), input_nodes, transform=transform,
            transform_sampler_output=transform_sampler_output, filter_per_worker=filter_per_worker, **kwargs,
        )  # fmt: skip


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
