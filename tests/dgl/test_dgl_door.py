"""DGL's package under DGL's names: graphs that change, transforms, walks, near points, blocks and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch

import graphweave.dgl as dgl
from graphweave.core.errors import DataError, IndexRangeError
from tests import fresh_process


def edges(g: Any, etype: Any = None) -> list[tuple[int, int]]:
    u, v = g.edges(etype=etype)
    return list(zip(u.tolist(), v.tolist(), strict=True))


@pytest.fixture
def triangle() -> Any:
    g = dgl.graph(([0, 1, 2, 0], [1, 2, 0, 1]))
    g.ndata["x"], g.edata["w"] = torch.arange(3.0), torch.tensor([1.0, 2.0, 3.0, 5.0])
    return g


# ---------------------------------------------------------------- the door itself


def test_scripts_and_packages_find_the_door_as_dgl() -> None:
    """Also the parts of modules from which packages import. One process, which the imports take most of."""
    script = (
        "import graphweave.dgl as ours; ours.install(force=True)\n"
        "import dgl, dgl.function as fn, dgl.nn.pytorch as dglnn\n"
        "from dgl.nn.pytorch.conv import SAGEConv\n"
        "from dgl.nn.functional import edge_softmax\n"
        "assert dgl.graph is ours.graph and dglnn.SAGEConv is SAGEConv and callable(edge_softmax)\n"
        "from dgl.nn.pytorch.conv.cfconv import CFConv, ShiftedSoftplus\n"
        "from dgl.nn.pytorch.conv.gatconv import GATConv, Identity, edge_softmax, expand_as_pair\n"
        "from dgl.nn.pytorch.conv.graphconv import *\n"
        "from dgl.ops.edge_softmax import edge_softmax as softmax\n"
        "from dgl.ops.segment import segment_reduce\n"
        "from dgl.subgraph import khop_in_subgraph, node_subgraph\n"
        "from dgl.dataloading.negative_sampler import Uniform\n"
        "from dgl.dataloading.pytorch import GraphDataLoader\n"
        "from dgl.dataloading.neighbor import MultiLayerNeighborSampler\n"
        "import dgl, dgl.ops, dgl.nn.pytorch.conv.sageconv as sage\n"
        "assert softmax is edge_softmax and dgl.ops.edge_softmax is softmax and EdgeWeightNorm and GraphConv\n"
        "assert sage.SAGEConv is dgl.nn.SAGEConv is dgl.nn.pytorch.conv.sageconv.SAGEConv\n"
        "import graphweave.dgl.nn.pytorch.conv.cfconv as ours\n"
        "assert ours.CFConv is CFConv\n"
    )
    fresh_process.checked(script)


def test_a_part_of_a_module_says_what_it_lacks() -> None:
    from graphweave.dgl.nn.pytorch.conv import cfconv

    with pytest.raises(AttributeError, match=r"dgl\.nn\.pytorch\.conv\.cfconv has no 'Missing': docs/dgl\.md lists"):
        cfconv.Missing  # noqa: B018


def test_every_part_of_a_module_has_names() -> None:
    from graphweave.dgl.submodules import _MADE

    assert [name for name, module in _MADE.items() if not dir(module)] == []


def test_every_name_can_be_loaded() -> None:
    from graphweave.dgl import _NAMES
    from graphweave.dgl.transforms import CLASSES

    assert [name for name in (*_NAMES, *CLASSES) if not callable(getattr(dgl, name)) and not name.isupper()] == []


def test_what_is_missing_is_said() -> None:
    with pytest.raises(AttributeError, match=r"docs/dgl\.md lists"):
        dgl.no_such_name  # noqa: B018


# ---------------------------------------------------------------- structure that changes


def test_edges_and_nodes_are_added_and_removed(triangle: Any) -> None:
    triangle.add_edges([2, 3], [3, 1], {"w": torch.tensor([7.0, 8.0])})
    assert triangle.num_nodes() == 4 and triangle.edata["w"].tolist() == [1, 2, 3, 5, 7, 8]
    assert triangle.ndata["x"].tolist() == [0, 1, 2, 0], "fields of new nodes are zeros"
    triangle.remove_nodes(0)
    assert edges(triangle) == [(0, 1), (1, 2), (2, 0)] and triangle.edata["w"].tolist() == [2, 7, 8]
    triangle.remove_edges([0])
    assert edges(triangle) == [(1, 2), (2, 0)]
    with pytest.raises(IndexRangeError, match="out of range for 2 edges"):
        triangle.remove_edges([2])
    assert edges(triangle) == [(1, 2), (2, 0)], "a refused change changes nothing"


def test_a_clone_does_not_change_with_its_graph(triangle: Any) -> None:
    copy = triangle.clone()
    triangle.add_edges(0, 2)
    assert copy.num_edges() == 4 and triangle.num_edges() == 5


# ---------------------------------------------------------------- edges counted, turned, joined


def test_parallel_edges_become_one(triangle: Any) -> None:
    simple, place = dgl.to_simple(triangle, copy_edata=True, writeback_mapping=True, aggregator="sum")
    assert edges(simple) == [(0, 1), (1, 2), (2, 0)]
    assert simple.edata["count"].tolist() == [2, 1, 1] and simple.edata["w"].tolist() == [6, 2, 3]
    assert place.tolist() == [0, 1, 2, 0]
    assert dgl.to_simple(triangle, copy_edata=True, aggregator="mean").edata["w"].tolist() == [3, 2, 3]
    assert not dgl.to_simple(triangle).is_multigraph and triangle.is_multigraph


def test_reversed_edges_follow_the_others() -> None:
    g = dgl.graph(([0, 1, 1], [1, 1, 2]))
    both = dgl.add_reverse_edges(g, copy_edata=True)
    assert edges(both) == [(0, 1), (1, 1), (1, 2), (1, 0), (2, 1)], "a self-loop has no other direction"
    assert both.edata[dgl.EID].tolist() == [0, 1, 2, 0, 2]
    with pytest.raises(DataError, match="ignore_bipartite"):
        dgl.add_reverse_edges(dgl.heterograph({("a", "r", "b"): ([0], [1])}))


@pytest.mark.parametrize("backtracking", [True, False])
def test_line_graph_is_networkxs(backtracking: bool) -> None:
    random = networkx.gnp_random_graph(9, 0.4, seed=1, directed=True)
    g = dgl.from_networkx(random)
    line, names = dgl.line_graph(g, backtracking=backtracking), edges(g)
    found = {(names[e], names[f]) for e, f in edges(line)}
    expected = set(networkx.line_graph(random).edges)
    assert found == {(e, f) for e, f in expected if backtracking or e[0] != f[1]}


@pytest.mark.parametrize("k", [0, 1, 3])
def test_walks_of_k_edges_are_counted(k: int) -> None:
    g = dgl.rand_graph(7, 20)
    power = torch.from_numpy(np.linalg.matrix_power(g.adj_external(scipy_fmt="csr").toarray(), k)).float()
    torch.testing.assert_close(dgl.khop_adj(g, k), power)
    walks = dgl.khop_graph(g, k)
    assert walks.num_edges() == int(power.sum()) and edges(walks) == sorted(edges(walks))


def test_metapaths_are_walked_once() -> None:
    g = dgl.heterograph({("a", "r", "b"): ([0, 0, 1], [0, 1, 1]), ("b", "s", "a"): ([0, 1, 1], [1, 1, 0])})
    reached = dgl.metapath_reachable_graph(g, ["r", "s"])
    assert edges(reached) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    with pytest.raises(DataError, match="does not start at"):
        dgl.metapath_reachable_graph(g, ["r", "r"])


def test_what_lies_within_two_hops() -> None:
    g = dgl.graph(([0, 1, 2, 3], [1, 2, 3, 4]))
    near, seeds = dgl.khop_in_subgraph(g, 3, 2)
    assert near.ndata[dgl.NID].tolist() == [1, 2, 3] and edges(near) == [(0, 1), (1, 2)] and seeds.tolist() == [2]
    far, _ = dgl.khop_out_subgraph(g, [0], 2)
    assert far.edata[dgl.EID].tolist() == [0, 1]
    both, _ = dgl.khop_in_subgraph(dgl.graph(([0, 1, 2], [1, 0, 1])), 0, 1)
    assert edges(both) == [(0, 1), (1, 0)], "all edges between the nodes, also those that lead away"


def test_nodes_without_edges_are_left_out_of_all_graphs_alike() -> None:
    one = dgl.graph(([1], [3]), num_nodes=9)
    two = dgl.graph(([3], [6]), num_nodes=9)
    first, second = dgl.compact_graphs([one, two], always_preserve=torch.tensor([8]))
    assert first.ndata[dgl.NID].tolist() == second.ndata[dgl.NID].tolist() == [1, 3, 6, 8]
    assert edges(first) == [(0, 1)] and edges(second) == [(1, 2)]


# ---------------------------------------------------------------- orders and distances


@pytest.mark.parametrize("algorithm", ["rcmk", "metis", "custom"])
def test_renumbered_graphs_are_the_same(algorithm: str, triangle: Any) -> None:
    config = {"k": 2, "nodes_perm": [2, 0, 1]}
    g = dgl.reorder_graph(triangle, algorithm, permute_config=config)
    old = g.ndata[dgl.NID]
    renamed = sorted((int(old[u]), int(old[v]), w) for (u, v), w in zip(edges(g), g.edata["w"].tolist(), strict=True))
    expected = zip(edges(triangle), triangle.edata["w"].tolist(), strict=True)
    assert renamed == sorted((u, v, w) for (u, v), w in expected)
    assert torch.equal(g.ndata["x"], triangle.ndata["x"][old]) and edges(g) == sorted(edges(g), key=lambda e: e[0])


def test_an_order_that_is_none_is_refused(triangle: Any) -> None:
    with pytest.raises(DataError, match="each number below 3 once"):
        dgl.reorder_graph(triangle, "custom", permute_config={"nodes_perm": [0, 0, 1]})
    with pytest.raises(DataError, match="lacks 'k'"):
        dgl.reorder_graph(triangle, "metis")


def test_edges_of_a_tag_lie_together() -> None:
    g = dgl.graph(([0, 0, 0, 1], [0, 1, 2, 2]))
    sorted_ = dgl.sort_csr_by_tag(g, torch.tensor([1, 0, 0]))
    assert edges(sorted_) == [(0, 1), (0, 2), (0, 0), (1, 2)]
    assert sorted_.ndata["_TAG_OFFSET"].tolist() == [[0, 2, 3], [0, 1, 1], [0, 0, 0]]


def test_shortest_walks_are_networkxs() -> None:
    random = networkx.gnp_random_graph(12, 0.15, seed=4, directed=True)
    g = dgl.from_networkx(random)
    dist, paths = dgl.shortest_dist(g, return_paths=True)
    for u in range(12):
        lengths = networkx.single_source_shortest_path_length(random, u)
        assert dist[u].tolist() == [lengths.get(v, -1) for v in range(12)]
        for v in range(12):
            walk = [e for e in paths[u, v].tolist() if e >= 0]
            assert len(walk) == max(int(dist[u, v]), 0)
            at = u
            for e in walk:
                assert edges(g)[e][0] == at
                at = edges(g)[e][1]
            assert not walk or at == v
    assert torch.equal(dgl.shortest_dist(g, root=3), dist[3])


def test_labels_of_two_distances() -> None:
    g = dgl.add_reverse_edges(dgl.graph(([0, 1, 1, 2], [1, 2, 3, 3])))
    assert dgl.double_radius_node_labeling(g, 0, 2).tolist() == [1, 2, 1, 3]


# ---------------------------------------------------------------- near points


@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_nearest_points_send_edges(exclude_self: bool) -> None:
    x = torch.randn(2, 8, 3, generator=torch.Generator().manual_seed(0))
    g = dgl.knn_graph(x, 3, exclude_self=exclude_self)
    for b in range(2):
        distance = torch.cdist(x[b], x[b])
        for v in range(8):
            order = [u for u in distance[v].argsort().tolist() if not (exclude_self and u == v)]
            assert sorted(g.predecessors(8 * b + v).tolist()) == sorted(8 * b + u for u in order[:3])


def test_a_set_of_few_points_has_few_edges() -> None:
    with pytest.warns(dgl.base.DGLWarning, match="lowered to 1"):
        assert dgl.knn_graph(torch.zeros(2, 3), 5, exclude_self=True).num_edges() == 2
    with pytest.warns(dgl.base.DGLWarning, match="lowered to 1"):
        assert dgl.knn_graph(torch.zeros(1, 3), 5).num_edges() == 1
    with pytest.warns(dgl.base.DGLWarning, match="lowered to 2"):
        sets = dgl.segmented_knn_graph(torch.randn(5, 3), 3, [2, 3])
    assert sets.batch_num_nodes().tolist() == [2, 3] and sets.batch_num_edges().tolist() == [4, 6]


def test_points_within_a_radius() -> None:
    x = torch.randn(9, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    g, distance = dgl.radius_graph(x, 1.0, get_distances=True)
    near = (torch.cdist(x, x) <= 1) & ~torch.eye(9, dtype=torch.bool)
    assert sorted(edges(g)) == sorted(map(tuple, near.nonzero().tolist()))
    (gradient,) = torch.autograd.grad(distance.sum(), x)
    assert bool(gradient.isfinite().all())


# ---------------------------------------------------------------- traversals


def test_layers_of_a_breadth_first_search_are_networkxs() -> None:
    random = networkx.gnp_random_graph(20, 0.1, seed=2, directed=True)
    g = dgl.from_networkx(random)
    assert [sorted(x.tolist()) for x in dgl.bfs_nodes_generator(g, 0)] == [
        sorted(layer) for layer in networkx.bfs_layers(random, 0)
    ]
    reached = [len(x) for x in dgl.bfs_nodes_generator(g, 0)][1:]
    assert [len(x) for x in dgl.bfs_edges_generator(g, 0)] == reached, "one edge for each node"


def test_a_topological_order_needs_no_cycle(triangle: Any) -> None:
    layers = dgl.topological_nodes_generator(dgl.graph(([0, 0, 1, 2], [1, 2, 3, 3])))
    assert [x.tolist() for x in layers] == [[0], [1, 2], [3]]
    with pytest.raises(DataError, match="without cycles"):
        dgl.topological_nodes_generator(triangle)


def test_a_depth_first_search_goes_and_comes_back() -> None:
    g = dgl.graph(([0, 1, 0, 2], [1, 2, 2, 0]))
    layers, labels = dgl.dfs_labeled_edges_generator(g, 0, has_reverse_edge=True, has_nontree_edge=True)
    steps = [(int(e), int(label)) for e, label in zip(layers, labels, strict=True)]
    assert steps == [(0, 0), (1, 0), (3, 2), (1, 1), (0, 1), (2, 2)]
    assert [x.tolist() for x in dgl.dfs_edges_generator(g, 0)] == [[0], [1]]


# ---------------------------------------------------------------- transforms


def test_transforms_follow_each_other(triangle: Any) -> None:
    g = dgl.Compose([dgl.ToSimple(), dgl.AddReverse(), dgl.AddSelfLoop()])(triangle)
    assert g.num_edges() == 3 + 3 + 3 and "x" in g.ndata
    assert "AddSelfLoop" in repr(dgl.Compose([dgl.AddSelfLoop()]))


def test_weights_of_graph_convolution() -> None:
    g = dgl.GCNNorm()(dgl.graph(([0, 1, 2], [0, 0, 1])))
    torch.testing.assert_close(g.edata["w"], torch.tensor([0.5, 2**-0.5, 0.0]))


@pytest.mark.parametrize("name", ["PPR", "HeatKernel", "GDC"])
def test_diffusions_are_their_series(name: str) -> None:
    g = dgl.graph(([0, 1, 2, 2], [1, 2, 3, 0]))
    a = g.adj_external(transpose=True, scipy_fmt="csr").toarray()
    one = np.eye(4)
    made = {
        "PPR": (dgl.PPR(alpha=0.3, eps=-1.0), sum(0.3 * 0.7**k * np.linalg.matrix_power(a, k) for k in range(90))),
        "HeatKernel": (dgl.HeatKernel(t=0.5, eps=-1.0), sum(
            np.linalg.matrix_power(0.5 * (a - one), k) / float(np.prod(range(1, k + 1))) for k in range(20))),
        "GDC": (dgl.GDC([0.5, 0.2, 0.3], eps=-1.0), 0.5 * one + 0.2 * a + 0.3 * a @ a),
    }  # fmt: skip
    transform, expected = made[name]
    out = transform(g)
    dense = torch.zeros(4, 4)
    u, v = out.edges()
    dense[v, u] = out.edata["w"]
    torch.testing.assert_close(dense, torch.from_numpy(expected).float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_chances_of_nothing_and_of_everything(p: float, triangle: Any) -> None:
    assert dgl.DropEdge(p)(triangle).num_edges() == 4 * (1 - p)
    assert dgl.DropNode(p)(triangle).num_nodes() == 3 * (1 - p)
    assert float(dgl.FeatMask(p, edge_feat_names=["w"])(triangle).edata["w"].sum()) == 11 * (1 - p)
    with pytest.raises(DataError, match="chance p from 0 to 1"):
        dgl.DropEdge(1.5)


def test_positions_of_nodes() -> None:
    ring = dgl.add_reverse_edges(dgl.graph((torch.arange(6), (torch.arange(6) + 1) % 6)))
    vectors, values = dgl.laplacian_pe(ring, 3, return_eigval=True)
    laplacian = torch.eye(6) - ring.adj().to_dense() / 2
    torch.testing.assert_close(laplacian @ vectors, vectors * values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dgl.random_walk_pe(ring, 2), torch.tensor([[0.0, 0.5]]).repeat(6, 1))
    pe = dgl.svd_pe(ring, 6)
    torch.testing.assert_close(pe[:, :6] @ pe[:, 6:].t(), ring.adj().to_dense(), rtol=1e-4, atol=1e-4)
    with pytest.raises(DataError, match="padding=True"):
        dgl.laplacian_pe(ring, 6)


# ---------------------------------------------------------------- blocks


def test_a_block_reads_its_sources_first_rows() -> None:
    g = dgl.graph(([0, 1, 2, 3], [1, 2, 2, 0]))
    g.ndata["x"] = torch.randn(4, 3)
    block = dgl.to_block(dgl.in_subgraph(g, [2]), torch.tensor([2]))
    assert block.srcdata[dgl.NID].tolist() == [2, 1] and block.num_dst_nodes() == 1
    assert torch.equal(block.srcdata["x"], g.ndata["x"][[2, 1]])
    layer = dgl.nn.SAGEConv(3, 2, "mean")
    torch.testing.assert_close(layer(block, block.srcdata["x"])[0], layer(g, g.ndata["x"])[2])
    with pytest.raises(DataError, match="dst_nodes lacks node 2"):
        dgl.to_block(g, torch.tensor([0, 1]))


def test_sides_can_be_named() -> None:
    block = dgl.create_block(([0, 1], [0, 0]), num_src_nodes=3, num_dst_nodes=1)
    assert block.num_nodes("SRC/_N") == 3 and block.num_nodes("DST/_N") == 1


# ---------------------------------------------------------------- batches


def test_batches_of_sampled_blocks() -> None:
    torch.manual_seed(0)
    g = dgl.rand_graph(40, 300)
    g.ndata["x"], g.ndata["y"], g.edata["w"] = torch.randn(40, 3), torch.arange(40), torch.rand(300)
    loader = dgl.dataloading.DataLoader(
        g, torch.arange(25), dgl.dataloading.NeighborSampler([4, -1]), batch_size=10, shuffle=True
    )
    seen = []
    for inputs, outputs, (first, second) in loader:
        seen += outputs.tolist()
        assert torch.equal(first.srcdata["x"], g.ndata["x"][inputs]) and torch.equal(second.dstdata["y"], outputs)
        assert int(first.in_degrees().max()) <= 4 and torch.equal(second.in_degrees(), g.in_degrees(outputs))
        assert torch.equal(first.edata["w"], g.edata["w"][first.edata[dgl.EID]])
    assert len(loader) == 3 and sorted(seen) == list(range(25)) and seen != list(range(25))


def test_all_neighbours_give_what_the_graph_gives() -> None:
    g, x = dgl.rand_graph(30, 90), torch.randn(30, 5)
    one, two = dgl.nn.SAGEConv(5, 4, "mean"), dgl.nn.GATConv(4, 2, 2, allow_zero_in_degree=True)
    sampler = dgl.dataloading.MultiLayerFullNeighborSampler(2)
    inputs, outputs, (first, second) = sampler.sample(g, torch.tensor([3, 7, 11]))
    h = two(second, one(first, x[inputs]))
    torch.testing.assert_close(h, two(g, one(g, x))[outputs])


def test_batches_of_graphs() -> None:
    items = [(dgl.rand_graph(n, 2 * n), n) for n in (3, 4, 5)]
    graphs, numbers = next(iter(dgl.dataloading.GraphDataLoader(items, batch_size=3)))
    assert graphs.batch_num_nodes().tolist() == numbers.tolist() == [3, 4, 5]
    with pytest.raises(DataError, match="edge_dir must be 'in'"):
        dgl.dataloading.NeighborSampler([3], edge_dir="out")


# ---------------------------------------------------------------- files


def test_files_hold_graphs_labels_and_formats(tmp_path: Path, triangle: Any) -> None:
    path = tmp_path / "graphs.bin"
    dgl.save_graphs(path, [triangle, dgl.rand_graph(3, 5)], {"y": torch.tensor([1, 0])}, formats="csc")
    (loaded,), labels = dgl.load_graphs(path, [0])
    assert edges(loaded) == edges(triangle) and labels["y"].tolist() == [1, 0]
    assert torch.equal(loaded.edata["w"], triangle.edata["w"]) and loaded.formats()["created"] == ["csc"]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"graphs\.bin"):
        dgl.load_graphs(path)
