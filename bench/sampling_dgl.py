"""DGL's neighbour sampler on the graph of `bench.sampling`, by the Python of DGL's own environment."""

from __future__ import annotations

from typing import Any

import dgl
import torch
from torch import Tensor

from bench.seeds import FANOUTS, drawn
from bench.steps import Step


def step_of(peer: str, arrays: dict[str, Tensor], nodes: int, **_: Any) -> Step:
    src, dst = arrays["edge_index"]
    graph = dgl.graph((src, dst), num_nodes=nodes).formats("csc")
    graph.create_formats_()
    sampler, seeds = dgl.dataloading.NeighborSampler(list(FANOUTS)), drawn(nodes)
    return lambda: torch.tensor([sum(b.num_edges() for b in sampler.sample_blocks(graph, next(seeds))[2])])


def drawn_edges(step: Step) -> dict[str, float]:
    """The mean number of edges of a batch."""
    return {"edges": sum(int(step()) for _ in range(4)) / 4}
