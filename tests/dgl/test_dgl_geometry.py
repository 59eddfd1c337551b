"""`dgl.geometry`, graphs of points as modules, and METIS's parts under DGL's names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import graphweave.dgl as dgl
from graphweave.core.errors import DataError

geometry: Any = dgl.geometry


def test_points_are_far_from_those_before() -> None:
    torch.manual_seed(0)
    points = torch.randn(3, 20, 2, dtype=torch.float64)
    found = geometry.farthest_point_sampler(points, 7, start_idx=4)
    for rows, order in zip(points, found.tolist(), strict=True):
        assert order[0] == 4
        for i in range(1, 7):
            nearest = torch.cdist(rows, rows[order[:i]]).amin(1)
            assert order[i] == int(nearest.argmax())
    line = torch.tensor([[[0.0], [1.0], [2.0], [3.0]]])
    assert geometry.farthest_point_sampler(line, 4, start_idx=0).tolist() == [[0, 3, 1, 2]]
    firsts = {int(geometry.farthest_point_sampler(line, 1)) for _ in range(80)}
    assert firsts == {0, 1, 2, 3}
    for bad in ((line[0], 2), (line, 5), (line, 0)):
        with pytest.raises(DataError, match="expected points"):
            geometry.farthest_point_sampler(*bad)
    with pytest.raises(DataError, match="from 0 to 3"):
        geometry.farthest_point_sampler(line, 1, start_idx=4)


@pytest.mark.parametrize("weighted", [False, True])
def test_neighbours_are_matched_until_nothing_fits(weighted: bool) -> None:
    torch.manual_seed(1)
    for nodes, pairs in ((1, 0), (6, 0), (12, 30), (40, 60)):
        g = dgl.add_reverse_edges(
            dgl.graph((torch.randint(nodes, (pairs,)), torch.randint(nodes, (pairs,))), num_nodes=nodes)
        )
        label = geometry.neighbor_matching(g, torch.rand(g.num_edges()) if weighted else None, relabel_idx=False)
        ends = set(zip(*[x.tolist() for x in g.edges()], strict=True))
        groups = [(label == v).nonzero().flatten().tolist() for v in label.unique().tolist()]
        alone = {group[0] for group in groups if len(group) == 1}
        assert all(len(group) == 1 or (len(group) == 2 and tuple(group) in ends) for group in groups)
        assert not any(u in alone and v in alone and u != v for u, v in ends), "two neighbours are left alone"
    numbered = geometry.neighbor_matching(g)
    assert numbered.unique().tolist() == list(range(int(numbered.max()) + 1))


def test_the_heaviest_neighbour_is_matched() -> None:
    star = dgl.graph(([0, 0, 0, 1, 2, 3], [1, 2, 3, 0, 0, 0]))
    weight = torch.tensor([1.0, 9.0, 1.0, 1.0, 9.0, 1.0])
    for seed in range(8):
        torch.manual_seed(seed)
        if int(torch.randperm(4)[0]) == 0:  # the center is visited first
            torch.manual_seed(seed)
            label = geometry.neighbor_matching(star, weight)
            assert label[0] == label[2]
            break
    else:
        pytest.fail("no seed visits the center first")


def test_graphs_of_points_as_modules() -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 3)
    for module, graph in (
        (dgl.nn.KNNGraph(3)(x), dgl.knn_graph(x, 3)),
        (dgl.nn.SegmentedKNNGraph(2)(x, [4, 5]), dgl.segmented_knn_graph(x, 2, [4, 5])),
        (dgl.nn.RadiusGraph(1.2)(x), dgl.radius_graph(x, 1.2)),
    ):
        assert torch.equal(torch.stack(module.edges()), torch.stack(graph.edges())) and graph.num_edges()


def test_parts_cover_the_graph() -> None:
    torch.manual_seed(0)
    g = dgl.add_reverse_edges(dgl.rand_graph(24, 60))
    g.ndata["x"], g.edata["w"] = torch.randn(24, 2), torch.arange(g.num_edges())
    of = dgl.metis_partition_assignment(g, 3)
    assert of.shape == (24,) and of.unique().tolist() == [0, 1, 2]
    src, dst = g.edges()
    for hops in (0, 1, 2):
        parts = dgl.transforms.metis_partition(g, 3, extra_cached_hops=hops)
        for part, sub in parts.items():
            nodes = sub.ndata[dgl.NID]
            inner = set((of == part).nonzero().flatten().tolist())
            read, known = inner, inner
            for _ in range(hops):
                read, known = known, known | {int(u) for u, v in zip(src, dst, strict=True) if int(v) in known}
            kept = {e for e in range(len(src)) if int(dst[e]) in read and int(src[e]) in known}
            assert set(nodes.tolist()) == known and set(sub.edata[dgl.EID].tolist()) == kept
            assert set(nodes[sub.ndata["inner_node"].bool()].tolist()) == inner
            torch.testing.assert_close(sub.ndata["x"], g.ndata["x"][nodes])
            assert torch.equal(sub.edata["w"], sub.edata[dgl.EID])
    with pytest.raises(DataError, match="reshuffle"):
        dgl.metis_partition(g, 3, reshuffle=True)
    with pytest.raises(DataError, match="balance"):
        dgl.metis_partition(g, 3, balance_edges=True)


def test_small_names_that_scripts_ask_for() -> None:
    from graphweave.dgl._ffi.base import DGLError
    from graphweave.dgl.frame import zero_initializer

    assert DGLError is dgl.base.DGLError and dgl.__version__ == "2.1.0"
    assert not zero_initializer((2, 3), torch.float32, "cpu", slice(0, 2)).any()
    assert dgl.backend.asnumpy(torch.ones(2, requires_grad=True)).tolist() == [1.0, 1.0]
    assert dgl.backend.astype(torch.ones(2), torch.int64).dtype == torch.int64
