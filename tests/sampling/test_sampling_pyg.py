"""PyG's loaders with `graphweave.sampling.NeighborSampler`: batches of homogeneous and heterogeneous data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader, NodeLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.sampler import BaseSampler

from graphweave import sampling
from graphweave.core.errors import DataError
from graphweave.sampling import NeighborSampler

NODES, EDGES = 200, 1_500


def homogeneous(nodes: int = NODES, edges: int = EDGES) -> Data:
    generator = torch.Generator().manual_seed(0)
    ends = (torch.rand(2, edges, generator=generator) ** 2 * (nodes - 10)).long()
    return Data(
        x=torch.randn(nodes, 8, generator=generator, dtype=torch.float64), edge_index=ends,
        edge_attr=torch.arange(edges), time=torch.randint(50, (nodes,), generator=generator),
        weight=torch.rand(edges, generator=generator),
    )  # fmt: skip


def heterogeneous() -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    sizes = {"user": 90, "item": 40}
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 8, generator=generator, dtype=torch.float64)
    for key in [("user", "rates", "item"), ("item", "rev", "user"), ("user", "knows", "user")]:
        ends = [torch.randint(sizes[key[i]] - 3, (300,), generator=generator) for i in (0, 2)]
        data[key].edge_index = torch.stack(ends)
        data[key].time = torch.randint(50, (300,), generator=generator)
    return data


def assert_same(a: Data | HeteroData, b: Data | HeteroData) -> None:
    for one, other in zip(a.stores, b.stores, strict=True):
        assert list(one.keys()) == list(other.keys())
        for key, value in one.items():
            equal = torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key]
            assert equal, key


@pytest.mark.parametrize("loader", ["node", "neighbor"])
def test_batches_are_parts_of_the_data(loader: str) -> None:
    data = homogeneous()
    sampler = NeighborSampler(data, [4, 3], seed=1)
    assert isinstance(sampler, BaseSampler)
    seeds = torch.arange(0, NODES, 3)
    made = (
        NodeLoader(data, sampler, input_nodes=seeds, batch_size=16)
        if loader == "node"
        else NeighborLoader(data, [9], neighbor_sampler=sampler, input_nodes=seeds, batch_size=16)
    )
    seen = []
    for batch in made:
        seen.append(batch.n_id[: batch.batch_size])
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, batch.e_id)
        assert sum(batch.num_sampled_nodes) == batch.num_nodes
        assert sum(batch.num_sampled_edges) == batch.num_edges
        assert int(torch.bincount(batch.edge_index[1], minlength=1).max()) <= 4
    assert torch.equal(torch.cat(seen), seeds)


def test_all_neighbours_give_the_seeds_what_the_whole_graph_gives() -> None:
    data = homogeneous()
    layers = [SAGEConv(8, 8).double() for _ in range(2)]

    def model(x: Tensor, edges: Tensor) -> Tensor:
        return layers[1](layers[0](x, edges).relu(), edges)

    whole = model(data.x, data.edge_index)
    for batch in NodeLoader(data, NeighborSampler(data, [-1, -1]), batch_size=64, shuffle=True):
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.testing.assert_close(out, whole[batch.input_id], rtol=1e-6, atol=1e-6)


def test_all_neighbours_of_several_relations_give_the_seeds_what_the_whole_graph_gives() -> None:
    data = heterogeneous()
    layers = [HeteroConv({key: SAGEConv(8, 8) for key in data.edge_types}).double() for _ in range(2)]

    def model(x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        hidden = {t: rows.relu() for t, rows in layers[0](x, edges).items()}
        return layers[1](hidden, edges)["item"]

    whole = model(data.x_dict, data.edge_index_dict)
    for batch in NodeLoader(data, NeighborSampler(data, [-1, -1]), input_nodes="item", batch_size=16):
        out = model(batch.x_dict, batch.edge_index_dict)[: batch["item"].batch_size]
        torch.testing.assert_close(out, whole[batch["item"].input_id], rtol=1e-6, atol=1e-6)
        for key in data.edge_types:
            ends = torch.stack([batch[key[i]].n_id[batch[key].edge_index[i // 2]] for i in (0, 2)])
            assert torch.equal(ends, data[key].edge_index[:, batch[key].e_id])


@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("links", [False, True])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_change_no_batch(kind: str, links: bool) -> None:
    data: Any = homogeneous() if kind == "homogeneous" else heterogeneous()

    def batches(workers: int, epoch: int = 0) -> list[Data | HeteroData]:
        sampler = NeighborSampler(data, [4, 3], seed=7)
        sampler.set_epoch(epoch)
        common: dict[str, Any] = {"neighbor_sampler": sampler, "batch_size": 30, "num_workers": workers}
        if links:
            of = data.edge_index[:, :90] if kind == "homogeneous" else (("user", "rates", "item"), None)
            made = LinkNeighborLoader(data, [], edge_label_index=of, neg_sampling="binary", **common)
        else:
            made = NeighborLoader(data, [], input_nodes=None if kind == "homogeneous" else "user", **common)
        return list(made)

    alone = batches(0)
    assert len(alone) > 2
    for workers in (1, 2):
        for one, other in zip(alone, batches(workers), strict=True):
            assert_same(one, other)
    with pytest.raises(AssertionError):
        for one, other in zip(alone, batches(0, epoch=1), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("mode", ["binary", "triplet"])
def test_links_and_their_negatives(mode: str) -> None:
    data = homogeneous()
    made = LinkNeighborLoader(
        data, [], neighbor_sampler=NeighborSampler(data, [3, 3]), edge_label_index=data.edge_index, batch_size=100,
        neg_sampling=dict(mode=mode, amount=2),
    )  # fmt: skip
    for batch in made:
        wanted = data.edge_index[:, batch.input_id]
        size = wanted.shape[1]
        if mode == "binary":
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :size]], wanted)
            assert batch.edge_label.tolist() == [1.0] * size + [0.0] * 2 * size
        else:
            assert torch.equal(torch.stack([batch.n_id[batch.src_index], batch.n_id[batch.dst_pos_index]]), wanted)
            assert batch.dst_neg_index.shape == (size, 2)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_negatives_follow_their_weights() -> None:
    data = homogeneous()
    weight = torch.zeros(NODES)
    weight[[3, 50]] = torch.tensor([1.0, 3.0])
    made = LinkNeighborLoader(
        data, [], neighbor_sampler=NeighborSampler(data, [1]), edge_label_index=data.edge_index, batch_size=EDGES,
        neg_sampling=dict(mode="triplet", amount=4, dst_weight=weight),
    )  # fmt: skip
    (batch,) = made
    drawn = torch.bincount(batch.n_id[batch.dst_neg_index].reshape(-1), minlength=NODES)
    assert int(drawn[3] + drawn[50]) == 4 * EDGES
    assert abs(int(drawn[3]) - EDGES) < 5 * (EDGES * 0.75) ** 0.5


def test_times_of_nodes_and_edges_are_respected() -> None:
    data = homogeneous()
    for batch in NodeLoader(data, NeighborSampler(data, [5, 5], time_attr="time"), batch_size=32):
        assert bool((data.time[batch.n_id] <= data.time[batch.input_id][batch.batch]).all())
    typed = heterogeneous()
    times = torch.arange(40)
    sampler = NeighborSampler(typed, [5, 5], time_attr="time", temporal_strategy="last")
    for batch in NodeLoader(typed, sampler, input_nodes="item", input_time=times, batch_size=16):
        for key in typed.edge_types:
            of = batch[key[2]].batch[batch[key].edge_index[1]]
            assert bool((batch[key].time <= batch["item"].seed_time[of]).all())


def test_bidirectional_batches_contain_both_directions() -> None:
    data = homogeneous()
    for batch in NodeLoader(data, NeighborSampler(data, [3, 3], subgraph_type="bidirectional"), batch_size=50):
        pairs = set(map(tuple, batch.edge_index.t().tolist()))
        assert pairs == {(v, u) for u, v in pairs}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data": 3}, "expected a PyG Data or HeteroData"),
        ({"num_neighbors": []}, "expected a list of fanouts"),
        ({"num_neighbors": {("a", "b", "c"): [3]}}, "expected a list for homogeneous data"),
        ({"data": heterogeneous(), "num_neighbors": {("user", "rates", "item"): [3]}}, "Missing number of neighbors"),
        ({"subgraph_type": "induced"}, "expected subgraph_type"),
        ({"weight_attr": "no"}, "weight_attr: no edges have"),
        ({"time_attr": "no"}, "time_attr: neither nodes nor edges"),
        ({"time_attr": "x"}, "node times must be integers"),
        ({"data": Data(x=torch.ones(3, 1))}, "expected an edge_index"),
    ],
)
def test_what_cannot_be_sampled_is_one_clear_error(change: dict[str, Any], said: str) -> None:
    arguments: dict[str, Any] = {"data": homogeneous(), "num_neighbors": [3], **change}
    with pytest.raises(DataError, match=said):
        NeighborSampler(arguments.pop("data"), arguments.pop("num_neighbors"), **arguments)


def test_loaders_called_as_pygs_give_the_samplers_batches() -> None:
    data = homogeneous()
    given: dict[str, Any] = {"batch_size": 16, "shuffle": False}
    seeds = torch.arange(0, NODES, 3)
    ours = sampling.NeighborLoader(data, [4, 3], seeds, replace=True, is_sorted=False, seed=2, **given)
    sampler = NeighborSampler(data, [4, 3], replace=True, seed=2)
    for one, other in zip(ours, NodeLoader(data, sampler, input_nodes=seeds, **given), strict=True):
        assert_same(one, other)
    links = {"edge_label_index": data.edge_index[:, :50], "neg_sampling_ratio": 1.0, **given}
    sampler = NeighborSampler(data, [4, 3], time_attr=None)
    theirs = LinkNeighborLoader(data, [4, 3], neighbor_sampler=sampler, **links)
    for one, other in zip(sampling.LinkNeighborLoader(data, [4, 3], **links), theirs, strict=True):
        assert_same(one, other)


def test_loaders_called_as_pygs_take_times_by_position_and_name() -> None:
    data = homogeneous()
    seeds = torch.arange(0, NODES, 3)
    loader = sampling.NeighborLoader(data, [-1], seeds, data.time[seeds], time_attr="time", batch_size=16)
    for batch in loader:
        assert (batch.time <= batch.time[: batch.batch_size][batch.batch]).all()
