"""Parts that samplers of `dgl.dataloading` share: base classes, seeds, and the fields of the blocks they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from graphweave.dgl.block import DST, DGLBlock
from graphweave.dgl.graph import DGLGraph
from graphweave.graph import transform
from graphweave.graph.argument_types import Device, IdsByType
from graphweave.graph.frame import EID, NID, Frame
from graphweave.graph.graph import Graph


class DGLSampler:
    """A sampler that a `DataLoader` asks for batches: a class of one's own defines `sample(g, indices)`."""

    def sample(self, g: DGLGraph, indices: object) -> Any:
        """The batch of `indices`. NotImplementedError where a class does not define it."""
        raise NotImplementedError(f"{type(self).__name__} has no sample(g, indices). Define it.")


class DGLBlockSampler(DGLSampler):
    """A sampler of blocks: a class of one's own defines `sample_blocks(g, seed_nodes, exclude_eids)`, which returns
    (input nodes, output nodes, blocks). What DGL prefetches is read where it is used."""

    def __init__(
        self, prefetch_node_feats: object = None, prefetch_labels: object = None, prefetch_edge_feats: object = None,
        output_device: Device | None = None,
    ) -> None:  # fmt: skip
        self.output_device = output_device

    def sample_blocks(self, g: DGLGraph, seed_nodes: object, exclude_eids: object = None) -> Any:
        """The batch of `seed_nodes`. NotImplementedError where a class does not define it."""
        raise NotImplementedError(f"{type(self).__name__} has no sample_blocks(g, seed_nodes). Define it.")

    def sample(self, g: DGLGraph, seed_nodes: object, exclude_eids: object = None) -> Any:
        """`sample_blocks`."""
        return self.sample_blocks(g, seed_nodes, exclude_eids)


def with_fields(g: DGLGraph, block: Graph, first: bool, last: bool) -> DGLBlock:
    """A block of the graph with the fields of its edges, its sources (`first`) and its destinations (`last`)."""
    out = transform.shared(DGLBlock, block)
    for t, frame in out.node_frames.items():
        if last if t.endswith(DST) else first:
            _take(frame, g.node_frames[t.removesuffix(DST)], NID)
    for (start, name, end), frame in out.edge_frames.items():
        _take(frame, g.edge_frames[start, name, end.removesuffix(DST)], EID)
    return out


def _take(frame: Frame, whole: Frame, ids: str) -> None:
    rows = frame[ids].long()
    for name, x in whole.items():
        if name != ids:
            frame[name] = x[rows]


def long_ids(seeds: object) -> IdsByType:
    """Seeds as int64 ids, or type -> ids."""
    if isinstance(seeds, Mapping):
        return {t: torch.as_tensor(x).long().view(-1) for t, x in seeds.items()}
    return torch.as_tensor(seeds).long().view(-1)


def drawn_key() -> int:
    """A number of an epoch, so that each call draws anew."""
    return int(torch.randint(2**31, ()))
