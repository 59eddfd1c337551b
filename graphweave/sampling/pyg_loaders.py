"""PyG's `NeighborLoader` and `LinkNeighborLoader` with `NeighborSampler`: a script changes one import. This file needs
PyG."""

from __future__ import annotations

from typing import Any

from torch_geometric import loader as pyg

from graphweave.sampling.hops import Strategy
from graphweave.sampling.pyg import NeighborSampler


class NeighborLoader(pyg.NeighborLoader):
    """PyG's `NeighborLoader`, with its arguments and the batches of `NeighborSampler`, which need no pyg-lib.

    `is_sorted` says nothing here, since edges are sorted once in any case. `seed` is the sampler's. Errors are the
    sampler's.
    """

    def __init__(
        self,
        data: object,
        num_neighbors: object,
        input_nodes: object = None,
        input_time: object = None,
        replace: bool = False,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        temporal_strategy: Strategy = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        *,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        sampler = NeighborSampler(
            data, num_neighbors, seed=seed, replace=replace, disjoint=disjoint, subgraph_type=subgraph_type,
            temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
        )  # fmt: skip
        super().__init__(
            data, num_neighbors, input_nodes, input_time, time_attr=time_attr, neighbor_sampler=sampler, **kwargs
        )


class LinkNeighborLoader(pyg.LinkNeighborLoader):
    """PyG's `LinkNeighborLoader`, with its arguments and the batches of `NeighborSampler`, which need no pyg-lib.

    `is_sorted` says nothing here, since edges are sorted once in any case. `seed` is the sampler's. Errors are the
    sampler's.
    """

    def __init__(
        self, data: object, num_neighbors: object, edge_label_index: object = None, edge_label: object = None,
        edge_label_time: object = None, replace: bool = False, subgraph_type: str = "directional",
        disjoint: bool = False, temporal_strategy: Strategy = "uniform", neg_sampling: object = None,
        neg_sampling_ratio: float | None = None, time_attr: str | None = None, weight_attr: str | None = None,
        *, seed: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        sampler = NeighborSampler(
            data, num_neighbors, seed=seed, replace=replace, disjoint=disjoint, subgraph_type=subgraph_type,
            temporal_strategy=temporal_strategy, time_attr=time_attr, weight_attr=weight_attr,
        )  # fmt: skip
        super().__init__(
            data, num_neighbors, edge_label_index, edge_label, edge_label_time, neg_sampling=neg_sampling,
            neg_sampling_ratio=neg_sampling_ratio, time_attr=time_attr, neighbor_sampler=sampler, **kwargs,
        )  # fmt: skip
