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


@pytest.mark.slow
@pytest.mark.sanitize
def test_clusters_and_excluded_edges_stay_within_their_arrays() -> None:
    run_sanitized(PROGRAM)
