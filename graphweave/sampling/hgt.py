"""`HGTSampler` and `HGTLoader`: batches with as many nodes of each type, for PyG. This file needs PyG."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import (
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from graphweave.core.errors import DataError
from graphweave.sampling.hgt_draws import HGTDraws
from graphweave.sampling.hops import batch_key, checked_nodes
from graphweave.sampling.pyg import EpochSampler, num_nodes_of, relations_of


class HGTSampler(EpochSampler):
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

    def __init__(self, data: object, num_samples: object, *, seed: int = 0) -> None:
        """`data`: a PyG `HeteroData` on the CPU with `edge_index`. `num_samples`: for each step the number of nodes to
        draw of each type, or type -> such a list. DataError for anything else."""
        if not isinstance(data, HeteroData):
            raise DataError(f"expected a PyG HeteroData (got {type(data).__name__}). Pass one, or use NeighborSampler.")
        super().__init__(seed)
        self.num_nodes = {t: num_nodes_of(data[t], t) for t in data.node_types}
        self._draws = HGTDraws(relations_of(data, {}, None, None), self.num_nodes, num_samples)

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: object) -> HeteroSamplerOutput:
        """The batch of the distinct nodes `index.node`. DataError for duplicates, IndexRangeError for a node out of
        range."""
        return node_sample(index, self._sample)

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> HeteroSamplerOutput:
        """The batch of both ends of the edges `index.row` -> `index.col`, and of the negative edges asked for."""
        return edge_sample(index, self._sample, self.num_nodes, False, None, self._keyed(neg_sampling, index))

    def _sample(self, seed: Mapping[str, Tensor], seed_time: Any = None) -> HeteroSamplerOutput:
        if seed_time is not None and any(times is not None for times in seed_time.values()):
            raise DataError("HGT sampling knows no times (got input_time). Leave it out, or use NeighborSampler.")
        seeds = {t: checked_nodes(nodes, self.num_nodes[t], f"seeds of type {t!r}") for t, nodes in seed.items()}
        for t, nodes in seeds.items():
            if nodes.unique().numel() != nodes.numel():
                raise DataError(f"seeds of type {t!r} must be different nodes (got some twice). Pass seeds.unique().")
        key = batch_key(self._seed, int(self._epoch), list(seeds.values()))
        found, edges = self._draws.sample(seeds, key)
        return HeteroSamplerOutput(
            node=found,
            row={relation: of.src for relation, of in edges.items()},
            col={relation: of.dst for relation, of in edges.items()},
            edge={relation: of.edge for relation, of in edges.items()},
            batch=None,
        )


class HGTLoader(NodeLoader):
    """PyG's `HGTLoader`, with its arguments and `HGTSampler`'s batches, which need no torch-sparse.

    `is_sorted` says nothing here, since edges are sorted once in any case. `seed` is the sampler's; further arguments
    are those of PyG's `NodeLoader`. Errors are the sampler's.
    """

    def __init__(
        self, data: HeteroData, num_samples: object, input_nodes: object, is_sorted: bool = False,
        transform: Callable[..., Any] | None = None, transform_sampler_output: Callable[..., Any] | None = None,
        filter_per_worker: bool | None = None, *, seed: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            data, HGTSampler(data, num_samples, seed=seed), input_nodes, transform=transform,
            transform_sampler_output=transform_sampler_output, filter_per_worker=filter_per_worker, **kwargs,
        )  # fmt: skip
