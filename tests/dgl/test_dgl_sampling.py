"""DGL's samplers under DGL's names: walks, neighbours, negative edges, PinSAGE, and batches of edges."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave.dgl as dgl
from graphweave.core.errors import DataError


@pytest.fixture
def g() -> Any:
    torch.manual_seed(0)
    out = dgl.rand_graph(30, 160)
    out.ndata["x"], out.edata["w"] = torch.randn(30, 2), torch.rand(160)
    return out


@pytest.fixture
def shop() -> Any:
    """Users 0 .. 9 buy items 0 .. 5; an item is bought by the users that buy it."""
    torch.manual_seed(1)
    users, items = torch.randint(10, (40,)), torch.randint(6, (40,))
    return dgl.heterograph({("user", "buys", "item"): (users, items), ("item", "sold to", "user"): (items, users)})


def edges(g: Any, etype: Any = None) -> set[tuple[int, int]]:
    u, v = g.edges(etype=etype)
    return set(zip(u.tolist(), v.tolist(), strict=True))


# ---------------------------------------------------------------- walks


def test_walks_follow_edges_and_say_which(g: Any) -> None:
    traces, eids, types = dgl.sampling.random_walk(g, [0, 5, 5], length=6, return_eids=True)
    assert traces.shape == (3, 7) and eids.shape == (3, 6) and types.tolist() == [0] * 7
    u, v = g.find_edges(eids[eids >= 0])
    there = eids >= 0
    assert torch.equal(u, traces[:, :-1][there]) and torch.equal(v, traces[:, 1:][there])


def test_walks_along_metapaths_know_their_types(shop: Any) -> None:
    traces, types = dgl.sampling.random_walk(shop, torch.arange(10), metapath=["buys", "sold to", "buys"])
    assert [shop.ntypes[t] for t in types.tolist()] == ["user", "item", "user", "item"]
    bought = edges(shop, "buys")
    assert all((a, b) in bought for a, b in traces[:, :2].tolist() if b >= 0)


def test_walks_end_by_chance_and_at_dead_ends(g: Any) -> None:
    torch.manual_seed(3)
    traces, _ = dgl.sampling.random_walk(g, torch.zeros(4000, dtype=torch.long), length=2, restart_prob=0.25)
    assert (traces[:, 1] >= 0).all() and 0.70 < (traces[:, 2] >= 0).double().mean() < 0.80
    path = dgl.graph(([0, 1], [1, 2]))
    assert dgl.sampling.random_walk(path, [0], length=4)[0].tolist() == [[0, 1, 2, -1, -1]]
    assert dgl.sampling.node2vec_random_walk(path, [0], 0.5, 2.0, 4).tolist() == [[0, 1, 2, -1, -1]]


def test_node2vec_prefers_what_its_two_numbers_say() -> None:
    """At 1, come from 0: back to 0 has the weight 1 / p, 2 (joined with 0) 1, 3 (not joined) 1 / q."""
    g = dgl.graph(([0, 1, 1, 1, 0], [1, 0, 2, 3, 2]))
    torch.manual_seed(0)
    traces, eids = dgl.sampling.node2vec_random_walk(
        g, torch.zeros(40_000, dtype=torch.long), p=2.0, q=0.25, walk_length=2, return_eids=True
    )
    last = traces[traces[:, 1] == 1][:, 2]
    share = torch.bincount(last, minlength=4).double() / len(last)
    torch.testing.assert_close(share, torch.tensor([0.5, 0.0, 1.0, 4.0]).double() / 5.5, atol=0.012, rtol=0)
    u, _ = g.find_edges(eids[:, 0])
    assert torch.equal(u, traces[:, 0])


def test_packed_walks_are_the_walks() -> None:
    traces, types = torch.tensor([[3, 1, -1], [2, -1, -1], [0, 4, 5]]), torch.tensor([0, 1, 0])
    nodes, kinds, lengths, offsets = dgl.sampling.pack_traces(traces, types)
    assert nodes.tolist() == [3, 1, 2, 0, 4, 5] and kinds.tolist() == [0, 1, 0, 0, 1, 0]
    assert lengths.tolist() == [2, 1, 3] and offsets.tolist() == [0, 2, 3]


def test_walks_without_a_length_are_refused(g: Any) -> None:
    with pytest.raises(DataError, match="expected metapath or length"):
        dgl.sampling.random_walk(g, [0])
    with pytest.raises(DataError, match="must be a number"):
        dgl.sampling.random_walk(g, [0], length=2, restart_prob=torch.tensor([0.1, 0.2]))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="p and q must be positive"):
        dgl.sampling.node2vec_random_walk(g, [0], 0.0, 1.0, 2)


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("way", ["in", "out"])
def test_sampled_neighbours_are_edges_of_the_seeds(g: Any, way: str) -> None:
    out = dgl.sampling.sample_neighbors(g, [2, 9, 11], 3, edge_dir=way)
    assert out.num_nodes() == 30 and torch.equal(out.ndata["x"], g.ndata["x"])
    degrees, whole = (x.in_degrees() if way == "in" else x.out_degrees() for x in (out, g))
    want = torch.zeros(30, dtype=whole.dtype)
    want[[2, 9, 11]] = whole[[2, 9, 11]].clamp(max=3)
    assert torch.equal(degrees, want)
    assert torch.equal(torch.stack(out.edges()), torch.stack(g.find_edges(out.edata[dgl.EID])))
    assert torch.equal(out.edata["w"], g.edata["w"][out.edata[dgl.EID]])


def test_neighbours_of_types(shop: Any) -> None:
    out = dgl.sampling.sample_neighbors(shop, {"item": [0, 1]}, {"buys": 2, "sold to": 2}, copy_ndata=False)
    assert out.num_edges("sold to") == 0 and int(out.in_degrees(etype="buys").max()) == 2
    assert edges(out, "buys") <= edges(shop, "buys")


@pytest.mark.parametrize("way", ["in", "out"])
@pytest.mark.parametrize("ascending", [False, True])
def test_the_strongest_edges_of_each_node(g: Any, way: str, ascending: bool) -> None:
    out = dgl.sampling.select_topk(g, 2, "w", nodes=[1, 4, 7], edge_dir=way, ascending=ascending)
    want: list[int] = []
    for v in (1, 4, 7):
        ids: Tensor = g.in_edges(v, form="eid") if way == "in" else g.out_edges(v, form="eid")
        order = g.edata["w"][ids].argsort(descending=not ascending)[:2]
        want += ids[order].tolist()
    assert sorted(out.edata[dgl.EID].tolist()) == sorted(want)


def test_all_edges_are_the_strongest_of_no_limit(g: Any) -> None:
    assert dgl.sampling.select_topk(g, -1, "w").num_edges() == 160
    with pytest.raises(DataError, match="edge_dir must be"):
        dgl.sampling.select_topk(g, 1, "w", edge_dir="both")


def test_neighbours_of_pinsage_are_those_that_walks_visit(shop: Any) -> None:
    sampler = dgl.sampling.PinSAGESampler(shop, "item", "user", 3, 0.5, 200, 4)
    out = sampler(torch.tensor([0, 2]))
    assert out.num_nodes() == 6 and int(out.in_degrees().max()) <= 4
    assert set(out.edges()[1].tolist()) == {0, 2} and int(out.edata["weights"].min()) >= 1
    with pytest.raises(DataError, match="expected a relation from 'item' to 'item'"):
        dgl.sampling.PinSAGESampler(shop, "item", "item", 1, 0.5, 1, 1)


# ---------------------------------------------------------------- negative edges, batches of edges


def test_negative_pairs_are_no_edges(g: Any) -> None:
    u, v = dgl.sampling.global_uniform_negative_sampling(g, 50)
    pairs = set(zip(u.tolist(), v.tolist(), strict=True))
    assert len(pairs) == len(u) == 50 and not pairs & edges(g) and all(a != b for a, b in pairs)
    u, v = dgl.dataloading.negative_sampler.Uniform(3)(g, torch.tensor([4, 8]))
    assert u.tolist() == [x for x in g.find_edges(torch.tensor([4, 8]))[0].tolist() for _ in range(3)] and len(v) == 6


def test_batches_of_edges_do_not_see_themselves(g: Any) -> None:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.NeighborSampler([-1]), exclude="self",
        negative_sampler=dgl.dataloading.negative_sampler.Uniform(2),
    )  # fmt: skip
    loader = dgl.dataloading.DataLoader(g, torch.arange(160), sampler, batch_size=64, shuffle=True)
    seen: list[int] = []
    for inputs, positive, negative, (block,) in loader:
        seen += positive.edata[dgl.EID].tolist()
        assert negative.num_edges() == 2 * positive.num_edges()
        assert torch.equal(positive.ndata[dgl.NID], block.dstdata[dgl.NID])
        assert torch.equal(block.srcdata["x"], g.ndata["x"][inputs])
        assert not set(block.edata[dgl.EID].tolist()) & set(positive.edata[dgl.EID].tolist())
        positive.ndata["h"] = block.dstdata["x"]
        positive.apply_edges(dgl.function.u_dot_v("h", "h", "score"))  # type: ignore[attr-defined]
        a, b = g.find_edges(positive.edata[dgl.EID])
        want = (g.ndata["x"][a] * g.ndata["x"][b]).sum(1, keepdim=True)
        torch.testing.assert_close(positive.edata["score"], want)
    assert sorted(seen) == list(range(160))


def test_batches_of_edges_of_relations(shop: Any) -> None:
    sampler = dgl.dataloading.as_edge_prediction_sampler(
        dgl.dataloading.MultiLayerFullNeighborSampler(1), exclude="reverse_types",
        reverse_etypes={"buys": "sold to", "sold to": "buys"},
    )  # fmt: skip
    _, positive, (block,) = sampler.sample(shop, {"buys": torch.tensor([3, 5, 9])})
    assert positive.num_edges("buys") == 3
    assert not {3, 5, 9} & set(block.edges["sold to"].data[dgl.EID].tolist())


def test_samplers_of_ones_own(g: Any) -> None:
    class Half(dgl.dataloading.BlockSampler):  # type: ignore[misc, name-defined]
        def sample_blocks(self, g: Any, seed_nodes: Any, exclude_eids: Any = None) -> Any:
            near = dgl.sampling.sample_neighbors(g, seed_nodes, 2)
            block = dgl.to_block(near, seed_nodes)
            return block.srcdata[dgl.NID], seed_nodes, [block]

    for inputs, outputs, (block,) in dgl.dataloading.DataLoader(g, torch.arange(12), Half(), batch_size=5):
        assert block.num_dst_nodes() == len(outputs) and block.num_src_nodes() == len(inputs)
    with pytest.raises(NotImplementedError, match=r"has no sample\(g, indices\)"):
        dgl.dataloading.Sampler().sample(g, torch.arange(3))


# ---------------------------------------------------------------- subgraphs and LABOR


def test_clusters_are_kept_in_a_file(g: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "clusters.pkl")
    sampler = dgl.dataloading.ClusterGCNSampler(g, 5, cache_path=path)
    batches = list(dgl.dataloading.DataLoader(g, torch.arange(5), sampler, batch_size=2))
    nodes = torch.cat([batch.ndata[dgl.NID] for batch in batches])
    assert sorted(nodes.tolist()) == list(range(30))
    of = {int(v): i for i, batch in enumerate(batches) for v in batch.ndata[dgl.NID]}
    u, v = g.edges()
    assert sum(batch.num_edges() for batch in batches) == sum(
        of[a] == of[b] for a, b in zip(u.tolist(), v.tolist(), strict=True)
    )
    torch.testing.assert_close(batches[0].ndata["x"], g.ndata["x"][batches[0].ndata[dgl.NID]])
    again = dgl.dataloading.ClusterGCNSampler(g, 5, cache_path=path).sample(g, torch.tensor([0, 1]))
    assert torch.equal(again.ndata[dgl.NID], batches[0].ndata[dgl.NID])
    with pytest.raises(DataError, match="balance_ntypes"):
        dgl.dataloading.ClusterGCNSampler(g, 5, cache_path=path, balance_edges=True)


@pytest.mark.parametrize(("mode", "budget"), [("node", 8), ("edge", 6), ("walk", (3, 2))])
def test_saint_draws_by_degree_and_induces(g: Any, mode: str, budget: Any) -> None:
    sampler = dgl.dataloading.SAINTSampler(mode, budget)
    counts = torch.zeros(30)
    for sub in dgl.dataloading.DataLoader(g, torch.arange(400), sampler):
        kept = sub.ndata[dgl.NID]
        counts[kept] += 1
        inside = [(a, b) for a, b in zip(*[x.tolist() for x in g.edges()], strict=True) if {a, b} <= set(kept.tolist())]
        found = [(int(kept[a]), int(kept[b])) for a, b in zip(*[x.tolist() for x in sub.edges()], strict=True)]
        assert sorted(found) == sorted(inside)
    if mode == "node":
        chance = g.out_degrees().double().clamp(min=1)
        want = 1 - (1 - chance / chance.sum()) ** 8
        torch.testing.assert_close(counts.double() / 400, want, atol=0.1, rtol=0)
    with pytest.raises(DataError, match="'walk'"):
        dgl.dataloading.SAINTSampler("path", 3)


def test_shadow_is_the_subgraph_of_what_is_drawn(g: Any) -> None:
    sampler = dgl.dataloading.ShaDowKHopSampler([3, 2])
    nodes, seeds, sub = sampler.sample(g, torch.tensor([4, 9]))
    assert nodes[:2].tolist() == seeds.tolist() == [4, 9] and torch.equal(sub.ndata[dgl.NID], nodes)
    assert len(nodes) <= 2 + 4 + 6 * 3
    assert edges(sub) == {
        (int((nodes == a).nonzero()), int((nodes == b).nonzero()))
        for a, b in edges(g) if a in nodes.tolist() and b in nodes.tolist()
    }  # fmt: skip
    all_of, _, whole = dgl.dataloading.ShaDowKHopSampler([-1]).sample(
        g, torch.tensor([4]), exclude_eids=torch.arange(80)
    )
    assert not torch.isin(whole.edata[dgl.EID], torch.arange(80)).any()
    u, v = g.edges()
    assert set(all_of.tolist()) == {4, *u[80:][v[80:] == 4].tolist()}


def test_labor_takes_the_sources_with_the_smallest_numbers(g: Any) -> None:
    torch.manual_seed(0)
    sampler = dgl.dataloading.LaborSampler([2, 3])
    seeds = torch.tensor([3, 7, 20])
    inputs, outputs, blocks = sampler.sample(g, seeds)
    assert torch.equal(outputs, seeds) and torch.equal(blocks[0].srcdata[dgl.NID], inputs)
    assert torch.equal(blocks[1].srcdata[dgl.NID], blocks[0].dstdata[dgl.NID])
    torch.testing.assert_close(blocks[0].srcdata["x"], g.ndata["x"][inputs])
    for block, fanout in zip(blocks, (2, 3), strict=True):
        eids = block.edata[dgl.EID]
        src, dst = g.find_edges(eids)
        a, b = block.edges()
        assert torch.equal(block.srcdata[dgl.NID][a], src) and torch.equal(block.dstdata[dgl.NID][b], dst)
        degree = g.in_degrees(block.dstdata[dgl.NID])
        assert torch.equal(block.in_degrees(), degree.clamp(max=fanout)) and len(eids.unique()) == len(eids)


def test_labor_shares_sources_and_is_fair() -> None:
    """Seeds with the same 40 neighbours draw the same 5 in a batch; over batches, each is drawn equally often."""
    torch.manual_seed(0)
    src = torch.arange(40).repeat(30)
    g = dgl.graph((src, torch.arange(40, 70).repeat_interleave(40)))
    counts = torch.zeros(70)
    sampler = dgl.dataloading.LaborSampler([5])
    for _ in range(600):
        inputs, _, _ = sampler.sample(g, torch.arange(40, 70))
        assert len(inputs) == 30 + 5
        counts[inputs[30:]] += 1
    share = counts[:40] / 600
    assert ((share - 0.125).abs() < 0.065).all() and not counts[40:].any()
    with pytest.raises(DataError, match="importance_sampling must be 0"):
        dgl.dataloading.LaborSampler([5], importance_sampling=1)


def test_labor_over_relations(shop: Any) -> None:
    sampler = dgl.dataloading.LaborSampler([{"buys": 2, "sold to": 1}])
    inputs, outputs, (block,) = sampler.sample(shop, {"item": torch.tensor([0, 3])}, {"buys": torch.arange(10)})
    assert set(inputs) == {"user", "item"} and outputs["item"].tolist() == [0, 3]
    eids = block.edges["buys"].data[dgl.EID]
    u, v = shop.find_edges(eids, etype="buys")
    assert (eids >= 10).all() and set(v.tolist()) <= {0, 3} and set(u.tolist()) <= set(inputs["user"].tolist())


def test_a_collator_makes_blocks_of_its_items(g: Any, shop: Any) -> None:
    full = dgl.dataloading.MultiLayerFullNeighborSampler(1)
    collator = dgl.dataloading.NodeCollator(g, torch.tensor([5, 8, 2]), full)
    loader = torch.utils.data.DataLoader(collator.dataset, batch_size=2, collate_fn=collator.collate)
    assert [outputs.tolist() for _, outputs, _ in loader] == [[5, 8], [2]]
    typed = dgl.dataloading.NodeCollator(shop, {"item": torch.tensor([1, 2]), "user": torch.tensor([4])}, full)
    _, outputs, _ = typed.collate([typed.dataset[i] for i in range(3)])
    assert {t: x.tolist() for t, x in outputs.items()} == {"item": [1, 2], "user": [4]}
