"""PyG without pyg-lib: its clouds of points, samplers, walks, clusters and splines, by `import graphweave.pyg`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from tests.lent import lent  # noqa: F401
from tests.support import by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_what_is_lent_says_so_and_is_taken_back() -> None:
    import torch_geometric

    from graphweave.pyg import lending

    names = ("torch_scatter", "torch_sparse", "torch_cluster", "pyg_lib")
    assert all(sys.modules[name].__version__.endswith("+graphweave") for name in names)
    assert torch_geometric.typing.WITH_KNN
    lending.take_back()
    assert not any(name in sys.modules for name in names)
    assert not torch_geometric.typing.WITH_KNN
    assert not hasattr(torch.ops.pyg, "knn")
    sys.modules["torch_scatter"] = own = type(sys)("torch_scatter")  # as if it were installed
    lending.lend()
    assert sys.modules["torch_scatter"] is own
    assert torch_geometric.typing.WITH_KNN
    del sys.modules["torch_scatter"]
    lending.take_back()
    lending.lend()


# ---------------------------------------------------------------- clouds of points


def near(x: Tensor, batch: Tensor, k: int) -> set[tuple[int, int]]:
    distance = torch.cdist(x, x).masked_fill(batch[:, None] != batch, float("inf")).fill_diagonal_(float("inf"))
    return {(int(j), i) for i in range(len(x)) for j in distance[i].topk(k, largest=False).indices}


def test_graphs_of_points() -> None:
    from torch_geometric import nn

    x, batch = features(11, 3), torch.tensor([0] * 5 + [1] * 6)
    found = nn.knn_graph(x, 3, batch)
    assert {(int(a), int(b)) for a, b in found.t()} == near(x, batch, 3)
    close = torch.cdist(x, x) <= 1.5
    pairs = nn.radius_graph(x, 1.5, batch, max_num_neighbors=100)
    want = (close & (batch[:, None] == batch)).fill_diagonal_(False).nonzero()
    assert {(int(a), int(b)) for a, b in pairs.t()} == {(int(a), int(b)) for a, b in want}
    assert nn.nearest(x, x, batch, batch).tolist() == list(range(11))
    assert len(nn.fps(x, batch, 0.5)) == 6
    assert nn.knn(x, x[:2] + 1e-4, 1).tolist() == [[0, 1], [0, 1]]
    cells = nn.voxel_grid(x, 0.5, batch)
    assert len(cells) == 11
    assert not set(cells[:5].tolist()) & set(cells[5:].tolist())


def test_torch_cluster_has_the_same_functions() -> None:
    import torch_cluster  # type: ignore[import-not-found]
    from torch_geometric import nn

    x, batch = features(9, 2), torch.tensor([0] * 4 + [1] * 5)
    assert torch.equal(torch_cluster.knn_graph(x, 2, batch), nn.knn_graph(x, 2, batch))
    assert torch.equal(torch_cluster.radius_graph(x, 1.0, batch), nn.radius_graph(x, 1.0, batch))
    angles = torch.nn.functional.normalize(x, dim=1)
    assert torch.equal(torch_cluster.knn(x, x, 2, batch, batch, cosine=True), nn.knn(angles, angles, 2, batch, batch))
    row, col = random_graph(9, 9, 20)
    walks = torch_cluster.random_walk(row, col, torch.arange(9), 4)
    steps = {(int(a), int(b)) for w in walks for a, b in pairwise(w) if a != b}
    assert steps <= {(int(a), int(b)) for a, b in zip(row, col, strict=True)}


@pytest.mark.parametrize("door", [graphweave.compile, partial(torch.compile, backend="graphweave", fullgraph=True)])
def test_compiled_layers_that_search_do_not_break(door: Callable[..., Any]) -> None:
    from torch_geometric import nn

    conv = nn.DynamicEdgeConv(torch.nn.Linear(8, 5), k=3).double()
    compiled = door(conv)
    for sizes in ((5, 6), (7, 9)):
        batch = torch.arange(2).repeat_interleave(torch.tensor(sizes))
        x = features(sum(sizes), 4, torch.float64)
        torch.testing.assert_close(compiled(x, batch), conv(x, batch))
    now = graphweave.counters()
    assert (now["compilations"], now["graph_breaks"], now["eager_fallbacks"]) == (1, 0, 0)


@pytest.mark.slow
def test_a_compiled_hierarchy_of_points() -> None:
    """As PointNet++: points are chosen and joined by distance within the model."""
    from torch_geometric import nn

    linear = torch.nn.Linear(3, 4).double()

    def f(pos: Tensor, batch: Tensor) -> Tensor:
        chosen = nn.fps(pos, batch, ratio=0.5, random_start=False)
        row, col = nn.radius(pos, pos[chosen], 1.5, batch, batch[chosen], max_num_neighbors=64)
        messages = linear(pos[col] - pos[chosen][row])
        return torch.zeros(chosen.size(0), 4, dtype=pos.dtype).index_add(0, row, messages.relu())

    compiled = graphweave.compile(f)
    for sizes in ((5, 6), (8, 9)):
        pos, batch = features(sum(sizes), 3, torch.float64), torch.arange(2).repeat_interleave(torch.tensor(sizes))
        torch.testing.assert_close(compiled(pos, batch), f(pos, batch))
    assert graphweave.counters()["graph_breaks"] == 0


def test_matchings_of_neighbours() -> None:
    from torch_geometric import nn

    row, col = random_graph(12, 12, 30)
    edge_index = torch.stack([torch.cat([row, col]), torch.cat([col, row])])
    edges = {(int(a), int(b)) for a, b in edge_index.t()}
    for weight in (None, torch.rand(60)):
        for call in (lambda f: f, graphweave.compile):
            cluster = call(lambda e, w: nn.graclus(e, w, 12))(edge_index, weight)
            for label in cluster.unique():
                members = (cluster == label).nonzero().view(-1).tolist()
                assert min(members) == label
                assert len(members) == 1 or (len(members) == 2 and tuple(members) in edges)
    heaviest = nn.graclus(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), torch.tensor([1.0, 1.0, 5.0, 5.0]), 3)
    assert heaviest.tolist() in ([0, 1, 1], [0, 0, 2])  # the latter if node 0 chooses first
    assert graphweave.counters()["graph_breaks"] == 0


@pytest.mark.filterwarnings("ignore:We do not recommend:UserWarning")
@pytest.mark.parametrize("degree", by_default((1, 2, 3), 1))
def test_spline_convolutions(degree: int) -> None:
    """The splines sum up to 1 everywhere; those of degree 1 interpolate linearly."""
    from torch_geometric.nn import SplineConv

    conv = SplineConv(4, 3, dim=2, kernel_size=[5, 4], is_open_spline=[True, False], degree=degree).double()
    row, col = random_graph(7, 7, 20)
    pseudo, x, edge_index = (
        torch.rand(20, 2, dtype=torch.float64),
        features(7, 4, torch.float64),
        torch.stack([row, col]),
    )
    with torch.no_grad():
        conv.weight.copy_(conv.weight[0].expand_as(conv.weight))
        same = conv(x, edge_index, pseudo)
        mean = torch.zeros(7, 4, dtype=torch.float64).index_add(0, col, x[row])
        mean = mean / torch.bincount(col, minlength=7).clamp(min=1)[:, None]
        torch.testing.assert_close(same, mean @ conv.weight[0] + conv.lin(x) + conv.bias)
    conv.reset_parameters()
    compiled = graphweave.compile(conv)
    torch.testing.assert_close(compiled(x, edge_index, pseudo), conv(x, edge_index, pseudo))
    assert graphweave.counters()["eager_fallbacks"] == 0  # but PyG warns of the CPU, which breaks the graph once


def test_linear_splines_interpolate() -> None:
    import pyg_lib  # type: ignore[import-not-found]

    sizes = torch.tensor([3, 4])
    basis, index = pyg_lib.ops.spline_basis(torch.tensor([[0.25, 0.5]]), sizes, torch.tensor([1, 1]), 1)
    weights = dict(zip(index[0].tolist(), basis[0].tolist(), strict=True))
    assert weights == {0 + 3 * 1: 0.25, 1 + 3 * 1: 0.25, 0 + 3 * 2: 0.25, 1 + 3 * 2: 0.25}


def test_products_of_segments_and_groups() -> None:
    import pyg_lib

    x, w, b = features(6, 3), features(2 * 3, 4).view(2, 3, 4), features(2, 4)
    want = torch.cat([x[:2] @ w[0] + b[0], x[2:] @ w[1] + b[1]])
    torch.testing.assert_close(pyg_lib.ops.segment_matmul(x, torch.tensor([0, 2, 6]), w, b), want)
    found = pyg_lib.ops.grouped_matmul([x[:2], x[2:]], list(w), list(b))
    torch.testing.assert_close(torch.cat(found), want)


# ---------------------------------------------------------------- samplers, walks and clusters


def graph(nodes: int = 30, edges: int = 120) -> Any:
    from torch_geometric.data import Data

    edge_index = torch.stack([*random_graph(nodes, nodes, edges)]).unique(dim=1)
    return Data(x=torch.arange(nodes).view(-1, 1), edge_index=edge_index, edge_attr=torch.arange(edge_index.size(1)))


@pytest.mark.parametrize("options", [{}, {"disjoint": True}, {"subgraph_type": "induced"}, {"replace": True}])
def test_neighbour_loader(options: dict[str, Any]) -> None:
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.utils import k_hop_subgraph

    data = graph()
    batch = next(
        iter(NeighborLoader(data, [-1, -1] if not options.get("replace") else [3, 2], batch_size=4, **options))
    )
    src, dst = data.edge_index[:, batch.e_id]
    assert torch.equal(batch.n_id[batch.edge_index[0]], src)
    assert torch.equal(batch.n_id[batch.edge_index[1]], dst)
    assert torch.equal(batch.x[:, 0], batch.n_id)
    if not options:
        nodes, *_ = k_hop_subgraph(torch.arange(4), 2, data.edge_index, num_nodes=30)
        assert set(batch.n_id.tolist()) == set(nodes.tolist())
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
    if options.get("disjoint"):
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])


def test_typed_neighbour_loader() -> None:
    from torch_geometric.data import HeteroData
    from torch_geometric.loader import NeighborLoader

    data = HeteroData()
    data["paper"].x, data["author"].x = torch.arange(20).view(-1, 1), torch.arange(9).view(-1, 1)
    row, col = random_graph(9, 20, 60)
    data["author", "writes", "paper"].edge_index = torch.stack([row, col])
    batch = next(iter(NeighborLoader(data, [-1, -1], input_nodes="paper", batch_size=5)))
    src, dst = data["author", "writes", "paper"].edge_index[:, batch["author", "paper"].e_id]
    found = batch["author", "paper"].edge_index
    assert torch.equal(batch["author"].n_id[found[0]], src)
    assert torch.equal(batch["paper"].n_id[found[1]], dst)
    assert len(src) == int((col < 5).sum())


def test_times_and_weights() -> None:
    from torch_geometric.loader import NeighborLoader

    data = graph()
    data.time = torch.arange(30)
    batch = next(
        iter(NeighborLoader(data, [-1, -1], input_nodes=torch.tensor([9, 20]), time_attr="time", batch_size=2))
    )
    assert bool((batch.n_id <= torch.tensor([9, 20])[batch.batch]).all())
    data.weight = (data.edge_index[0] % 2).float()
    batch = next(iter(NeighborLoader(data, [5], weight_attr="weight", batch_size=30)))
    assert bool((data.edge_index[0, batch.e_id] % 2 == 1).all())


def test_clusters_and_subgraphs() -> None:
    from torch_geometric import loader

    data = graph()
    clusters = loader.ClusterData(data, 4, log=False)
    assert sorted(clusters.partition.node_perm.tolist()) == list(range(30))
    assert all(batch.edge_index.max() < batch.num_nodes for batch in loader.ClusterLoader(clusters, batch_size=2))
    for sampler in (
        loader.GraphSAINTNodeSampler(data, 6, num_steps=2, log=False),
        loader.GraphSAINTEdgeSampler(data, 6, num_steps=2, log=False),
        loader.GraphSAINTRandomWalkSampler(data, 4, 3, num_steps=2, sample_coverage=2, log=False),
    ):
        for batch in sampler:
            nodes = batch.x[:, 0]
            inside = torch.isin(data.edge_index, nodes).all(0)
            assert sorted(batch.edge_attr.tolist()) == data.edge_attr[inside].tolist()
            assert torch.equal(nodes[batch.edge_index], data.edge_index[:, batch.edge_attr])
    for batch in loader.ShaDowKHopSampler(data, 2, 3, batch_size=5):
        roots = batch.x[batch.root_n_id, 0]
        assert len(roots) == 5
        pairs = batch.x[batch.edge_index, 0]
        assert {(int(a), int(b)) for a, b in pairs.t()} <= {(int(a), int(b)) for a, b in data.edge_index.t()}
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])


def test_walks_go_along_edges_and_favour_what_they_are_told() -> None:
    from torch_geometric.nn import Node2Vec

    # two triangles with one node in common: 0 1 2 and 2 3 4
    edges = torch.tensor([[0, 1], [1, 2], [0, 2], [2, 3], [3, 4], [2, 4]])
    edge_index = torch.cat([edges, edges.flip(1)]).t()
    back = {}
    for p in (0.01, 100.0):
        model = Node2Vec(edge_index, 8, walk_length=6, context_size=6, walks_per_node=40, p=p, q=1.0, num_nodes=5)
        walks = model.pos_sample(torch.arange(5))
        steps = torch.stack([walks[:, :-1].flatten(), walks[:, 1:].flatten()])
        assert {(int(a), int(b)) for a, b in steps.t()} <= {(int(a), int(b)) for a, b in edge_index.t()}
        back[p] = (walks[:, 2:] == walks[:, :-2]).float().mean()
    assert back[0.01] > 0.8
    assert back[100.0] < 0.2
    assert torch.isfinite(model.loss(*model.sample(torch.arange(5))))


def _walks_of_nodes() -> tuple[torch.nn.Module, list[Tensor], list[Tensor]]:
    from torch_geometric.nn import Node2Vec

    model = Node2Vec(
        random_graph(30, 30, 200), 8, walk_length=6, context_size=4, walks_per_node=2, sparse=True, num_nodes=30
    )
    return model, *zip(*(model.sample(torch.arange(at, at + 9)) for at in (0, 12)), strict=True)


def _walks_of_types() -> tuple[torch.nn.Module, list[Tensor], list[Tensor]]:
    from torch_geometric.nn import MetaPath2Vec

    path = [("author", "writes", "paper"), ("paper", "of", "author")]
    edges = {path[0]: random_graph(12, 20, 60), path[1]: random_graph(20, 12, 60)}
    sizes = {"author": 12, "paper": 20}
    model = MetaPath2Vec(
        edges, 8, path, walk_length=4, context_size=3, walks_per_node=2, sparse=True, num_nodes_dict=sizes
    )
    return model, *zip(*(model._sample(torch.arange(at, at + 5)) for at in (0, 6)), strict=True)


@pytest.mark.parametrize("make", by_default([_walks_of_nodes, _walks_of_types], _walks_of_nodes))
def test_losses_of_walks_train_a_sparse_table(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, positive, negative = make()
    model = model.double()
    compiled = graphweave.compile(model.loss)
    for walks in zip(positive, negative, strict=True):
        (got,), (want,) = (torch.autograd.grad(f(*walks), list(model.parameters())) for f in (compiled, model.loss))
        assert got.is_sparse
        torch.testing.assert_close(got.to_dense(), want.to_dense())
    found = graphweave.counters()
    assert (found["compilations"], found["graph_breaks"], found["eager_fallbacks"]) == (1, 0, 0)
