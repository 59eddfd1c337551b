"""`dgl.dataloading`: DGL's samplers and loaders by its names, over those of `graphweave.sampling`.

A sampler of DGL gets its graph with each call. The native one behind it is made when a graph is first seen, and kept
for the next call with that graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.dgl import negative_sampler as negative_sampler
from graphweave.dgl import subgraph_samplers
from graphweave.dgl.batch import batch
from graphweave.dgl.block import DGLBlock
from graphweave.dgl.graph import DGLGraph
from graphweave.dgl.sampler_base import DGLBlockSampler, DGLSampler, drawn_key, long_ids, with_fields
from graphweave.graph import transform
from graphweave.graph.argument_types import Device, IdsByType
from graphweave.graph.graph import Graph
from graphweave.graph.structure import Structure
from graphweave.sampling.blocks import Fanout
from graphweave.sampling.loader import move_batch

Sampler, BlockSampler = DGLSampler, DGLBlockSampler
ClusterGCNSampler = subgraph_samplers.ClusterGCNSampler
LaborSampler = subgraph_samplers.LaborSampler
SAINTSampler = subgraph_samplers.DegreeSAINTSampler
ShaDowKHopSampler = subgraph_samplers.ShaDowKHopSampler


class LayerSampler(DGLBlockSampler):
    """Draws, for each layer, incoming edges of the nodes that the layer is to compute: `sample(g, seeds)` gives (input
    nodes, output nodes, blocks).

    `fanouts`: a number of edges for each layer, the first layer first, or relation -> number; -1 for all. `prob`: a
    field of edges to which chances are proportional. `mask`: a field of edges, 0 for those that are never drawn.
    `replace`: whether an edge may be drawn again. The first block's sources, the last block's destinations and the
    edges of all blocks have the fields of the graph, and '_ID' holds their numbers there. Other arguments of DGL decide
    nothing.

    DataError for `edge_dir` "out", and for `prob` and `mask` together. Every call draws anew, from PyTorch's generator.
    """

    def __init__(
        self, fanouts: Sequence[Fanout], edge_dir: str = "in", prob: str | None = None, mask: str | None = None,
        replace: bool = False, prefetch_node_feats: object = None, prefetch_labels: object = None,
        prefetch_edge_feats: object = None, output_device: Device | None = None, fused: bool = True,
    ) -> None:  # fmt: skip
        if edge_dir != "in":
            raise DataError(f"edge_dir must be 'in' (got {edge_dir!r}). Pass dgl.reverse(g) to draw outgoing edges.")
        if prob is not None and mask is not None:
            raise DataError(f"expected prob or mask (got {prob!r} and {mask!r}). Pass one of them.")
        super().__init__(prefetch_node_feats, prefetch_labels, prefetch_edge_feats, output_device)
        self.fanouts, self.prob, self.replace = list(fanouts), prob or mask, replace
        self._made: tuple[Any, sampling.BlockSampler] | None = None

    def sample_blocks(
        self, g: DGLGraph, seed_nodes: object, exclude_eids: object = None
    ) -> tuple[IdsByType, IdsByType, list[DGLBlock]]:
        """(input nodes, output nodes, blocks) of `seed_nodes`, ids or type -> ids. `exclude_eids`: edges that no block
        has."""
        inputs, outputs, blocks = self._of(g).sample(long_ids(seed_nodes), drawn_key(), exclude=exclude_eids)
        found = [with_fields(g, block, i == 0, i == len(blocks) - 1) for i, block in enumerate(blocks)]
        if self.output_device is not None:
            found = [block.to(self.output_device) for block in found]
        return inputs, outputs, found

    def _of(self, g: DGLGraph) -> sampling.BlockSampler:
        if self._made is None or self._made[0] is not g:
            seed = int(torch.randint(2**31, ()))
            self._made = g, sampling.BlockSampler(g, self.fanouts, seed=seed, replace=self.replace, prob=self.prob)
        return self._made[1]


NeighborSampler = MultiLayerNeighborSampler = LayerSampler


class MultiLayerFullNeighborSampler(LayerSampler):
    """`NeighborSampler` with all incoming edges in each of `num_layers` layers."""

    def __init__(self, num_layers: int, **options: Any) -> None:
        super().__init__([-1] * num_layers, **options)


class DGLEdgePredictionSampler(DGLSampler):
    """Made by `as_edge_prediction_sampler`, which says what the batches are."""

    def __init__(self, sampler: DGLBlockSampler, **options: Any) -> None:
        self.sampler, self.options = sampler, options
        self._made: tuple[Any, Any] | None = None

    def sample(self, g: DGLGraph, seed_edges: object) -> tuple[Any, ...]:
        """The batch of `seed_edges`, numbers, or relation -> numbers."""
        if self._made is None or self._made[0] is not g:
            self._made = g, sampling.as_edge_prediction_sampler(_OfGraph(self.sampler, g), **self.options)
        inputs, *graphs, blocks = self._made[1].sample(long_ids(seed_edges), drawn_key())
        return (inputs, *(_with_methods(x) for x in graphs), blocks)


EdgePredictionSampler = DGLEdgePredictionSampler


class _OfGraph:
    """A sampler of DGL's form with its graph, as `graphweave.sampling` takes it."""

    def __init__(self, sampler: DGLBlockSampler, graph: DGLGraph) -> None:
        self.graph, self._sampler = graph, sampler

    def sample(
        self, seeds: Mapping[str, Tensor], epoch: int = 0, exclude: object = None
    ) -> tuple[IdsByType, IdsByType, list[DGLBlock]]:
        """(input nodes, output nodes, blocks). A graph of one type has no names of types."""
        alone = len(self.graph.ntypes) == 1
        return self._sampler.sample(self.graph, seeds[self.graph.ntypes[0]] if alone else seeds, exclude)


def as_edge_prediction_sampler(
    sampler: DGLBlockSampler, exclude: object = None, reverse_eids: object = None, reverse_etypes: object = None,
    negative_sampler: object = None, prefetch_labels: object = None,
) -> DGLEdgePredictionSampler:  # fmt: skip
    """A sampler for a `DataLoader` whose indices are edges: a batch is (input nodes, pair graph, blocks), or (input
    nodes, pair graph, negative pair graph, blocks), as `graphweave.sampling.as_edge_prediction_sampler` says.

    `negative_sampler`: a function of the graph and the batch's edges, such as `negative_sampler.Uniform(k)`.
    """
    return DGLEdgePredictionSampler(
        sampler, exclude=exclude, reverse_eids=reverse_eids, reverse_etypes=reverse_etypes,
        negative_sampler=negative_sampler,
    )  # fmt: skip


class BatchLoader:
    """Batches of `indices` that `graph_sampler` makes of `graph`: nodes, or type -> nodes.

    `shuffle`: whether each iteration has another order, from PyTorch's generator. `drop_last`: whether the last batch
    is left out if it is smaller. `device`: where blocks and numbers are moved. Sampling is native and takes all
    threads, so `num_workers` and the other arguments of DGL decide nothing.
    """

    def __init__(
        self,
        graph: DGLGraph,
        indices: object,
        graph_sampler: DGLSampler,
        device: Device | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        batch_size: int = 1,
        drop_last: bool = False,
        shuffle: bool = False,
        **ignored: object,
    ) -> None:
        if use_ddp:
            raise DataError("use_ddp=True is not supported. Pass each rank its own part of the indices.")
        given = indices if isinstance(indices, Mapping) else {None: indices}
        self._types = list(given)
        parts = [torch.as_tensor(x).view(-1) for x in given.values()]
        self._rows = torch.cat([x.long() for x in parts])
        self._type_of = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(x) for x in parts]))
        self.graph, self.graph_sampler, self.device = graph, graph_sampler, device
        self.batch_size, self.drop_last, self.shuffle = batch_size, drop_last, shuffle

    def __len__(self) -> int:
        count = len(self._rows)
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self._rows)) if self.shuffle else torch.arange(len(self._rows))
        for chosen in order.split(self.batch_size)[: len(self)]:
            made = self.graph_sampler.sample(self.graph, self._seeds(chosen))
            yield made if self.device is None else move_batch(made, self.device)

    def _seeds(self, chosen: Tensor) -> IdsByType:
        if self._types == [None]:
            return self._rows[chosen]
        types = self._type_of[chosen]
        return {self._types[t]: self._rows[chosen[types == t]] for t in types.unique().tolist()}


DataLoader = BatchLoader


class NodeCollator:
    """Makes batches of lists of nodes of `nids`, for a `torch.utils.data.DataLoader` over `dataset`.

    `nids`: seed nodes, or type -> nodes. `graph_sampler`: a sampler of blocks. Source: DGL's loader before 0.9.
    """

    def __init__(self, g: DGLGraph, nids: object, graph_sampler: DGLBlockSampler) -> None:
        self.g, self.nids, self.graph_sampler = g, nids, graph_sampler
        pairs = [(t, int(x)) for t, ids in nids.items() for x in ids] if isinstance(nids, Mapping) else None
        self.dataset: Any = nids if pairs is None else pairs

    def collate(self, items: Sequence[Any]) -> tuple[IdsByType, IdsByType, list[DGLBlock]]:
        """(input nodes, output nodes, blocks) of some items of `dataset`."""
        if isinstance(items[0], tuple):
            seeds: Any = {t: torch.tensor([x for kind, x in items if kind == t]) for t in dict(items)}
        else:
            seeds = torch.as_tensor([int(x) for x in items])
        found: tuple[IdsByType, IdsByType, list[DGLBlock]] = self.graph_sampler.sample_blocks(self.g, seeds)
        return found


class GraphDataLoader(data.DataLoader[Any]):
    """PyTorch's loader of a set of graphs, or of tuples of graphs and numbers, whose batches are batched graphs.

    `collate_fn`: makes a batch of a list of items, in place of this. Other arguments are PyTorch's.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        collate_fn: Callable[[list[Any]], object] | None = None,
        use_ddp: bool = False,
        ddp_seed: int = 0,
        **options: Any,
    ) -> None:
        if use_ddp:
            raise DataError("use_ddp=True is not supported. Pass a torch.utils.data.DistributedSampler as sampler.")
        super().__init__(dataset, collate_fn=collate_fn or _collated, **options)


def _collated(items: list[Any]) -> object:
    first = items[0]
    if isinstance(first, Structure):
        return batch(items)
    if isinstance(first, Mapping):
        return {name: _collated([item[name] for item in items]) for name in first}
    if isinstance(first, (tuple, list)):
        return [_collated(list(column)) for column in zip(*items, strict=True)]
    return data.default_collate(items)


def _with_methods(g: Graph) -> DGLGraph:
    """A graph of `graphweave.sampling` with DGL's methods."""
    return transform.shared(DGLGraph, g)
