"""Clusters: balanced partitions with few edges between them, and batches that are exactly the induced subgraphs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader
from torch_geometric.data import Data, HeteroData

import graphweave as gw
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.runtime import formats
from graphweave.runtime.index import Index
from graphweave.sampling import ClusterSampler, DataLoader, SAINTSampler
from tests.programs.graphs import EdgeList, zoo

METHODS = ["metis", "labels"]


def communities(nodes: int = 600, groups: int = 12, edges: int = 4_000) -> tuple[Tensor, Tensor]:
    """Edges in both directions, nine of ten between nodes that are equal modulo `groups`, and the group of each."""
    generator = torch.Generator().manual_seed(0)
    u = torch.randint(nodes, (edges,), generator=generator)
    within = torch.randint(nodes // groups, (edges,), generator=generator) * groups + u % groups
    v = within.where(torch.rand(edges, generator=generator) < 0.9, torch.randint(nodes, (edges,), generator=generator))
    return torch.stack([torch.cat([u, v]), torch.cat([v, u])]), torch.arange(nodes) % groups


def pyg(graph: EdgeList) -> Data:
    generator = torch.Generator().manual_seed(1)
    return Data(
        x=torch.randn(graph.num_dst, 3, generator=generator), edge_index=torch.stack([graph.src, graph.dst]),
        edge_attr=torch.randn(graph.src.numel(), 2, generator=generator), num_nodes=graph.num_dst,
        train_mask=torch.rand(graph.num_dst, generator=generator) < 0.5, name="zoo",
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("k", [1, 5, 12, 50])
def test_clusters_are_balanced_and_follow_the_communities(method: str, k: int) -> None:
    ends, groups = communities()
    sampler = ClusterSampler(gw.graph((ends[0], ends[1]), num_nodes=600), k, method=method)
    sizes = torch.bincount(sampler.labels, minlength=k)
    assert sampler.labels.shape == (600,)
    assert sampler.method == method
    assert int(sizes.max()) <= -(-600 * 1.05 // k) + (3 if method == "metis" else 0)
    assert int(sizes.min()) >= 600 // k * 0.4
    assert sampler.edge_cut == int((sampler.labels[ends[0]] != sampler.labels[ends[1]]).sum())
    share = sampler.edge_cut / ends.shape[1]
    if k == 12:
        found = int((groups[ends[0]] != groups[ends[1]]).sum()) / ends.shape[1]
        assert share < found + 0.05, "the communities were not found"
    assert share <= 0.8 * (1 - 1 / k), "about as many edges are cut as by clusters at random"


def test_label_propagation_coarsens_large_graphs() -> None:
    side = 80
    node = torch.arange(side * side)
    right, down = node[node % side < side - 1], node[node < side * (side - 1)]
    u, v = torch.cat([right, down]), torch.cat([right + 1, down + side])
    sampler = ClusterSampler(gw.graph((u, v), num_nodes=side * side), 64, method="labels")
    sizes = torch.bincount(sampler.labels, minlength=64)
    assert int(sizes.max()) <= 105
    assert sampler.edge_cut / u.numel() < 0.2  # squares of 10 x 10 nodes cut 0.09, strips of one row 0.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("graph", [g for g in zoo() if g.square and g.num_dst], ids=lambda g: g.name)
def test_a_batch_is_the_induced_subgraph(graph: EdgeList, method: str) -> None:
    data = pyg(graph)
    for k in {1, min(3, graph.num_dst), graph.num_dst}:
        sampler = ClusterSampler(data, k, method=method)
        assert torch.equal(torch.cat([sampler.nodes(c) for c in range(k)]).sort().values, torch.arange(graph.num_dst))
        for chosen in ([0], list(range(k))[::-2], list(range(k))):
            batch = sampler.sample(torch.tensor(chosen))
            member = torch.isin(sampler.labels, torch.tensor(chosen))
            assert torch.equal(batch.n_id.sort().values, member.nonzero().view(-1))
            inside = (member[graph.src] & member[graph.dst]).nonzero().view(-1)
            assert torch.equal(batch.e_id.sort().values, inside)
            assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
            for name, rows in {"x": batch.n_id, "train_mask": batch.n_id, "edge_attr": batch.e_id}.items():
                assert torch.equal(batch[name], data[name][rows]), name
            assert batch.num_nodes == batch.n_id.numel()
            assert batch.name == "zoo"
    assert "n_id" not in data, "the data was written to"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_batch_of_a_graph_is_a_graph(dtype: torch.dtype) -> None:
    ends, _ = communities()
    graph = gw.graph((ends[0].to(dtype), ends[1].to(dtype)), num_nodes=600)
    graph.ndata["x"], graph.edata["w"] = torch.randn(600, 2), torch.randn(ends.shape[1])
    sampler = ClusterSampler(graph, 12)
    batch = sampler.sample(torch.tensor([7, 3]))
    nodes, edges = batch.ndata[gw.NID], batch.edata[gw.EID]
    u, v = batch.edges()
    assert batch.idtype == nodes.dtype == edges.dtype == dtype
    assert torch.equal(nodes.long(), torch.cat([sampler.nodes(7), sampler.nodes(3)]))
    assert torch.equal(torch.stack([nodes[u], nodes[v]]).long(), ends[:, edges])
    assert torch.equal(batch.ndata["x"], graph.ndata["x"][nodes])
    assert torch.equal(batch.edata["w"], graph.edata["w"][edges])
    assert batch.num_edges() == graph.subgraph(nodes).num_edges()
    assert formats.perm(Index(v, batch.num_nodes())) is None, "edges are not sorted by destination"


def test_an_epoch_of_batches_has_every_node_once() -> None:
    ends, _ = communities()
    data = Data(edge_index=ends, num_nodes=600)
    sampler = ClusterSampler(data, 12)
    loader = DataLoader(data, torch.arange(12), sampler, batch_size=5, shuffle=True)
    epochs = [[batch.n_id for batch in loader] for _ in range(2)]
    for batches in epochs:
        assert len(batches) == len(loader) == 3
        assert torch.equal(torch.cat(batches).sort().values, torch.arange(600))
    assert not torch.equal(torch.cat(epochs[0]), torch.cat(epochs[1]))
    assert sum(1 for _ in DataLoader(data, torch.arange(12), sampler, batch_size=5, drop_last=True)) == 2


@pytest.mark.parametrize("method", METHODS)
def test_threads_change_neither_clusters_nor_batches(method: str) -> None:
    ends, _ = communities(6_000, 12, 40_000)
    graph = gw.graph((ends[0], ends[1]), num_nodes=6_000)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            sampler = ClusterSampler(graph, 12, method=method, seed=3)
            batch = sampler.sample(torch.arange(6))
            found.append([sampler.labels, batch.ndata[gw.NID], batch.edata[gw.EID], *batch.edges()])
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(one, two) for one, two in zip(found[0], other, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_clusters_are_a_function_of_the_seed(method: str) -> None:
    graph = gw.graph(tuple(communities()[0]), num_nodes=600)
    one, same, other = (ClusterSampler(graph, 12, method=method, seed=s).labels for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_without_pymetis_labels_are_propagated(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    graph = gw.graph(tuple(communities()[0]), num_nodes=600)
    found = ClusterSampler(graph, 12)
    assert found.method == "labels"
    assert torch.equal(found.labels, ClusterSampler(graph, 12, method="labels").labels)
    with pytest.raises(DataError, match=r"needs the package pymetis .* Install it"):
        ClusterSampler(graph, 12, method="metis")


def test_a_partition_is_kept_in_a_file(tmp_path: Path) -> None:
    ends, _ = communities()
    graph, path = gw.graph(tuple(ends), num_nodes=600), tmp_path / "clusters.npz"
    made = ClusterSampler(graph, 12, method="labels", path=path)
    read = ClusterSampler(Data(edge_index=ends, num_nodes=600), 12, seed=5, path=path)
    assert torch.equal(read.labels, made.labels)
    assert read.method == "labels"
    assert [p.name for p in tmp_path.iterdir()] == ["clusters.npz"]
    changed = ends.clone()
    changed[0, 17] = (changed[0, 17] + 1) % 600
    for other in (gw.graph(tuple(changed), num_nodes=600), gw.graph(tuple(ends), num_nodes=601)):
        with pytest.raises(DataError, match="partition of another graph"):
            ClusterSampler(other, 12, path=path)
    with pytest.raises(DataError, match=r"holds 12 clusters of method 'labels' \(asked for 13 of method 'any'\)"):
        ClusterSampler(graph, 13, path=path)
    with pytest.raises(DataError, match="asked for 12 of method 'metis'"):
        ClusterSampler(graph, 12, method="metis", path=path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match="holds no partition, or is damaged"):
            ClusterSampler(graph, 12, path=path)


def test_what_cannot_be_clustered_is_one_clear_error() -> None:
    graph = gw.graph(([0, 1], [1, 2]))
    for k in (0, 4, 1.5, True):
        with pytest.raises(DataError, match="num_clusters must be an integer from 1 to the number of nodes, 3"):
            ClusterSampler(graph, k)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="expected method 'metis', 'labels' or None"):
        ClusterSampler(graph, 2, method="random")
    with pytest.raises(DataError, match="expected a PyG Data or a graphweave Graph"):
        ClusterSampler(HeteroData(), 2)
    with pytest.raises(DataError, match="expected a graph of one node type and one relation"):
        ClusterSampler(gw.heterograph({("a", "r", "b"): ([0], [0])}), 1)
    with pytest.raises(DataError, match="expected an edge_index"):
        ClusterSampler(Data(x=torch.ones(3, 1)), 1)
    with pytest.raises(IndexRangeError):
        ClusterSampler(Data(edge_index=torch.tensor([[0], [3]]), num_nodes=3), 1)
    sampler = ClusterSampler(graph, 2)
    with pytest.raises(IndexRangeError, match="index 2 at position 0 is out of range for 2"):
        sampler.sample(torch.tensor([2]))
    with pytest.raises(DataError, match="clusters must be different"):
        sampler.sample(torch.tensor([1, 1]))
    with pytest.raises(DataError, match="clusters: expected one at least"):
        sampler.sample(torch.tensor([], dtype=torch.int64))


@pytest.mark.parametrize("kind", ["data", "graph"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_pytorchs_loader_change_no_batch(kind: str) -> None:
    ends, _ = communities()
    given: Any = Data(edge_index=ends, num_nodes=600) if kind == "data" else gw.graph(tuple(ends), num_nodes=600)
    for sampler in (ClusterSampler(given, 12), SAINTSampler(given, "node", 60), SAINTSampler(given, "walk", (20, 2))):
        found = []
        for workers in (0, 1, 2):
            made = TorchLoader(range(12), batch_size=5, collate_fn=sampler.sample, num_workers=workers)  # type: ignore[arg-type]
            batches = list(made)
            assert len(batches) == 3
            found.append([[b.n_id, b.e_id] if kind == "data" else [b.ndata[gw.NID], b.edata[gw.EID]] for b in batches])
        for other in found[1:]:
            for one, two in zip(found[0], other, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
