"""The native code of clusters, induced subgraphs and excluded edges neither reads nor writes beyond its arrays."""

from __future__ import annotations

import pytest

from tests.sanitizer_support import run_sanitized

PROGRAM = """
import torch
import graphweave as gw
from graphweave.sampling import BlockSampler, ClusterSampler, SAINTSampler
from tests.programs.graphs import zoo

src, dst = torch.randint(4_000, (2, 30_000), generator=torch.Generator().manual_seed(0))
for dtype in (torch.int32, torch.int64):
    graph = gw.graph((src.to(dtype), dst.to(dtype)), num_nodes=4_000)
    sampler = ClusterSampler(graph, 40, method="labels")
    sampler.sample(torch.arange(39, -1, -3))
    SAINTSampler(graph, "node", 1_500).sample(0)
    for fanout in (-1, 4):
        for replace in (False, True):
            blocks = BlockSampler(graph, [fanout, fanout], replace=replace)
            blocks.sample(torch.arange(2_000), exclude=torch.arange(0, 30_000, 2))
            blocks.sample(torch.arange(2_000), exclude=torch.arange(30_000))
    for awkward in zoo():
        if awkward.square and awkward.num_dst:
            graph = gw.graph((awkward.src.to(dtype), awkward.dst.to(dtype)), num_nodes=awkward.num_dst)
            for k in {1, awkward.num_dst}:
                ClusterSampler(graph, k, method="labels").sample(torch.arange(k))
            for fanout in (-1, 2):
                gone = torch.arange(0, awkward.src.numel(), 2)
                BlockSampler(graph, [fanout]).sample(torch.arange(awkward.num_dst), exclude=gone)
"""


BOUNDS = """
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NodeSamplerInput
from graphweave.core.errors import DataError
from graphweave.sampling.pyg import NeighborSampler

src, dst = torch.randint(500, (2, 20_000), generator=torch.Generator().manual_seed(0))
data = Data(edge_index=torch.stack([src, dst]), num_nodes=500)
data.w = torch.rand(20_000, dtype=torch.float64).sub(0.5).mul(2200).exp2().clamp(max=1e308)  # denormals, zeros, huge
for count in (7, 5_000):
    seeds = NodeSamplerInput(None, torch.arange(count) % 500)
    for fanout in (1, 30, 2**44, 2**52, 2**62, 2**63 - 1):
        for attr in (None, "w"):
            NeighborSampler(data, [fanout], weight_attr=attr).sample_from_nodes(seeds)
            try:
                NeighborSampler(data, [fanout], replace=True, weight_attr=attr).sample_from_nodes(seeds)
                assert fanout <= 30
            except DataError as error:
                assert fanout > 30 and "no memory" in str(error)
"""


@pytest.mark.slow
@pytest.mark.sanitize
def test_fanouts_and_weights_at_their_ends_stay_within_their_arrays() -> None:
    run_sanitized(BOUNDS)


@pytest.mark.slow
@pytest.mark.sanitize
def test_clusters_and_excluded_edges_stay_within_their_arrays() -> None:
    run_sanitized(PROGRAM)
