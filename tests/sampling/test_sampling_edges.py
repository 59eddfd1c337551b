"""DGL's loaders: nodes and edges in batches, excluded edges, and one space of nodes for both kinds of pairs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

import graphweave as gw
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.sampling import (
    BlockSampler,
    DataLoader,
    NegativeSampler,
    RandomWalker,
    as_edge_prediction_sampler,
)
from tests.programs.graphs import EdgeList, zoo

NODES, EDGES = 300, 3_000
RATES, RATED, KNOWS = ("user", "rates", "item"), ("item", "rated", "user"), ("user", "knows", "user")


def homogeneous(dtype: torch.dtype = torch.int64) -> gw.Graph:
    """Edge e and edge e + EDGES / 2 are each other's reverse."""
    u, v = torch.randint(NODES, (2, EDGES // 2), generator=torch.Generator().manual_seed(0), dtype=dtype)
    graph = gw.graph((torch.cat([u, v]), torch.cat([v, u])), num_nodes=NODES)
    graph.edata["w"] = torch.arange(EDGES) * 2.0
    return graph


REVERSE = (torch.arange(EDGES) + EDGES // 2) % EDGES


def heterogeneous() -> gw.Graph:
    generator = torch.Generator().manual_seed(0)
    u, i = torch.randint(80, (700,), generator=generator), torch.randint(40, (700,), generator=generator)
    a, b = torch.randint(80, (2, 500), generator=generator)
    counts = {"user": 80, "item": 40, "shop": 3}
    return gw.heterograph({RATES: (u, i), RATED: (i, u), KNOWS: (a, b)}, counts)


def flat(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, gw.Graph):
        ends = [end for key in batch.canonical_etypes for end in batch.all_edges(etype=key)]
        return [*ends, *(v for frame in batch._frames() for v in frame.values())]
    return [t for part in (batch.values() if isinstance(batch, dict) else batch) for t in flat(part)]


def same(one: Any, other: Any) -> bool:
    a, b = flat(one), flat(other)
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def star(times: int, exclude: list[int], fanout: int, weights: list[float] | None, **options: Any) -> Tensor:
    """[times, fanout]: what each of `times` seeds, which all have an edge from each of six nodes, draws."""
    src, dst = torch.arange(6).repeat(times), 6 + torch.arange(times).repeat_interleave(6)
    graph = gw.graph((src, dst), num_nodes=6 + times)
    if weights is not None:
        graph.edata["p"] = torch.tensor(weights).repeat(times)
    sampler = BlockSampler(graph, [fanout], prob=None if weights is None else "p", **options)
    gone = torch.tensor([i * 6 + e for i in range(times) for e in exclude])
    _, _, (block,) = sampler.sample(6 + torch.arange(times), exclude=gone)
    return (block.edata[gw.EID] % 6).view(times, fanout)


def chi_square(seen: list[int], share: list[float]) -> float:
    total = sum(seen)
    statistic = sum((got - total * p) ** 2 / (total * p) for got, p in zip(seen, share, strict=True))
    return float(chi2.sf(statistic, len(seen) - 1))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fanouts_are_drawn_from_the_edges_that_are_left(seed: int) -> None:
    left = [0, 2, 3, 5]
    drawn = Counter(map(tuple, star(6_000, [4, 1], 2, None, seed=seed).tolist()))
    pairs = list(combinations(left, 2))
    assert drawn.keys() == set(pairs)
    assert chi_square([drawn[pair] for pair in pairs], [1 / 6] * 6) > 1e-4

    again = star(6_000, [4, 1], 3, None, seed=seed, replace=True).reshape(-1).tolist()
    assert set(again) == set(left)
    assert chi_square([again.count(e) for e in left], [1 / 4] * 4) > 1e-4

    weights = [1.0, 9.0, 2.0, 3.0, 9.0, 4.0]
    one = star(6_000, [4, 1], 1, weights, seed=seed).reshape(-1).tolist()
    assert set(one) == set(left)
    assert chi_square([one.count(e) for e in left], [weights[e] / 10 for e in left]) > 1e-4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("graph", [g for g in zoo() if g.square and g.src.numel()], ids=lambda g: g.name)
def test_excluded_edges_are_in_no_block_and_all_others_are(graph: EdgeList, dtype: torch.dtype) -> None:
    made = gw.graph((graph.src.to(dtype), graph.dst.to(dtype)), num_nodes=graph.num_dst)
    seeds = torch.arange(graph.num_dst)
    for step in (1, 2, 3):
        gone = torch.arange(0, graph.src.numel(), step)
        rest = torch.ones(graph.src.numel(), dtype=torch.bool)
        rest[gone] = False
        for fanout in (-1, 2):
            _, _, blocks = BlockSampler(made, [fanout, fanout]).sample(seeds, exclude=torch.cat([gone, gone[:1]]))
            degrees = torch.bincount(graph.dst[rest], minlength=graph.num_dst)
            for block in blocks:
                assert bool(rest[block.edata[gw.EID].long()].all())
                wanted = degrees if fanout < 0 else degrees.clamp(max=fanout)
                assert torch.equal(block.in_degrees().long(), wanted)


@pytest.mark.parametrize("exclude", [None, "self", "reverse_id", "function"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_batches_of_edges(exclude: Any, dtype: torch.dtype) -> None:
    graph = homogeneous(dtype)
    made = as_edge_prediction_sampler(
        BlockSampler(graph, [-1, -1]), exclude=(lambda e: REVERSE[e]) if exclude == "function" else exclude,
        reverse_eids=REVERSE if exclude == "reverse_id" else None,
        negative_sampler=NegativeSampler(graph), num_negatives=3,
    )  # fmt: skip
    edges = torch.randperm(EDGES, generator=torch.Generator().manual_seed(1))[:40]
    inputs, pairs, negatives, blocks = made.sample(edges)
    u, v = pairs.edges()
    nodes = pairs.ndata[gw.NID]
    assert pairs.idtype == nodes.dtype == dtype
    assert torch.equal(torch.stack([nodes[u], nodes[v]]), torch.stack(graph.find_edges(edges)))
    assert torch.equal(pairs.edata[gw.EID].long(), edges)
    assert torch.equal(pairs.edata["w"], graph.edata["w"][edges])
    far, near = negatives.edges()
    assert torch.equal(negatives.ndata[gw.NID], nodes)
    assert torch.equal(far, u.repeat_interleave(3))
    assert not bool(graph.has_edges_between(nodes[far], nodes[near]).any())
    assert torch.equal(blocks[-1].dstdata[gw.NID], nodes)
    assert torch.equal(blocks[0].srcdata[gw.NID].long(), inputs)
    assert nodes.unique().numel() == nodes.numel() == torch.cat([u, v, near]).unique().numel()
    gone = {
        None: edges[:0],
        "self": edges,
        "reverse_id": torch.cat([edges, REVERSE[edges]]),
        "function": REVERSE[edges],
    }
    for block in blocks:
        into = torch.isin(graph.edges()[1].long(), block.dstdata[gw.NID].long())
        wanted = into & ~torch.isin(torch.arange(EDGES), gone[exclude])
        assert torch.equal(block.edata[gw.EID].long().sort().values, wanted.nonzero().view(-1))


def test_without_negatives_a_batch_has_no_graph_of_them() -> None:
    graph = homogeneous()
    inputs, pairs, blocks = as_edge_prediction_sampler(BlockSampler(graph, [2])).sample([5, 5, 0])
    assert pairs.edata[gw.EID].tolist() == [5, 5, 0]
    assert torch.equal(inputs[: pairs.num_nodes()], pairs.ndata[gw.NID])
    assert len(blocks) == 1


@pytest.mark.parametrize("exclude", ["self", "reverse_types", "reverse_id"])
def test_batches_of_edges_of_several_relations(exclude: str) -> None:
    graph = heterogeneous()
    reverse = {"rates": torch.arange(700).flip(0), "knows": torch.arange(500)}
    made = as_edge_prediction_sampler(
        BlockSampler(graph, [-1, -1]), exclude=exclude,
        reverse_etypes={"rates": "rated", "rated": "rates"} if exclude == "reverse_types" else None,
        reverse_eids=reverse if exclude == "reverse_id" else None,
        negative_sampler={k: NegativeSampler(graph, etype=k) for k in ("rates", "knows")}, num_negatives=2,
    )  # fmt: skip
    chosen = {"rates": torch.tensor([3, 600, 3]), "knows": torch.tensor([499])}
    inputs, pairs, negatives, blocks = made.sample(chosen)
    assert pairs.canonical_etypes == negatives.canonical_etypes == graph.canonical_etypes
    for name, ids in chosen.items():
        src, _, dst = key = graph.to_canonical_etype(name)
        for found, count in ((pairs, 1), (negatives, 2)):
            ends = found.all_edges(etype=key)
            nodes = [found.nodes[t].data[gw.NID][e] for t, e in zip((src, dst), ends, strict=True)]
            assert torch.equal(nodes[0], graph.find_edges(ids, etype=key)[0].repeat_interleave(count))
            joined = graph.has_edges_between(*nodes, etype=key)
            assert bool(joined.all()) if found is pairs else not bool(joined.any())
    assert pairs.num_edges(RATED) == 0
    assert pairs.num_nodes("shop") == 0
    excluded: dict[Any, Any] = {RATES: [3, 600], KNOWS: [499], RATED: []}
    if exclude == "reverse_types":
        excluded[RATED] = [3, 600]
    if exclude == "reverse_id":
        excluded[RATES] = [3, 600, 696, 99]
    for t in ("user", "item"):
        assert torch.equal(pairs.nodes[t].data[gw.NID], negatives.nodes[t].data[gw.NID])
        assert torch.equal(blocks[-1].dstnodes[t + "_dst"].data[gw.NID], pairs.nodes[t].data[gw.NID])
        assert torch.equal(blocks[0].srcnodes[t].data[gw.NID], inputs[t])
    for block in blocks:
        for key in graph.canonical_etypes:
            found = block.edges[key[0], key[1], key[2] + "_dst"].data[gw.EID]
            into = torch.isin(graph.all_edges(etype=key)[1], block.dstnodes[key[2] + "_dst"].data[gw.NID])
            into[torch.tensor(excluded[key], dtype=torch.int64)] = False
            assert torch.equal(found.sort().values, into.nonzero().view(-1)), key


def test_negative_pairs_of_a_function() -> None:
    graph = heterogeneous()

    def corrupted(g: gw.Graph, edges: Any) -> Any:
        assert g is graph
        return {RATES: (g.find_edges(edges["rates"], etype=RATES)[0], torch.zeros(2, dtype=torch.int64))}

    made = as_edge_prediction_sampler(BlockSampler(graph, [1]), negative_sampler=corrupted)
    _, pairs, negatives, _ = made.sample({"rates": torch.tensor([1, 2])})
    assert negatives.nodes["item"].data[gw.NID][negatives.all_edges(etype=RATES)[1]].tolist() == [0, 0]
    assert negatives.num_edges(KNOWS) == 0
    bad: list[tuple[Any, type[Exception], str]] = [
        (
            (torch.tensor([0, 80]), torch.tensor([0, 0])),
            IndexRangeError,
            "index 80 at position 1 is out of range for 80",
        ),
        ((torch.tensor([0, 1]), torch.tensor([0])), DataError, "expected as many sources as destinations"),
        ((torch.tensor([0.5]), torch.tensor([0])), DataError, "must be integers of shape"),
    ]
    for pairs, error, words in bad:
        made = as_edge_prediction_sampler(BlockSampler(graph, [1]), negative_sampler=lambda g, e, p=pairs: {RATES: p})
        with pytest.raises(error, match=words):
            made.sample({"rates": torch.tensor([1, 2])})


def loader(graph: gw.Graph, kind: str, **options: Any) -> DataLoader:
    hetero = len(graph.canonical_etypes) > 1
    blocks = BlockSampler(graph, [4, 3], seed=5)
    if kind == "nodes":
        nodes: Any = {"user": torch.arange(70), "item": torch.arange(30)} if hetero else torch.arange(NODES)
        return DataLoader(graph, nodes, blocks, batch_size=32, shuffle=True, **options)
    edges: Any = {RATES: torch.arange(90), KNOWS: torch.arange(30)} if hetero else torch.arange(150)
    negatives: Any = {k: NegativeSampler(graph, etype=k) for k in (RATES, KNOWS)} if hetero else NegativeSampler(graph)
    sampler = as_edge_prediction_sampler(blocks, exclude="self", negative_sampler=negatives, num_negatives=2)
    return DataLoader(graph, edges, sampler, batch_size=32, shuffle=True, **options)


@pytest.mark.parametrize("kind", ["nodes", "edges"])
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_batches_are_the_same_for_any_number_of_threads_and_ahead(make: Any, kind: str) -> None:
    graph = make()
    before, found = torch.get_num_threads(), []
    try:
        for threads, prefetch in ((1, 0), (2, 0), (4, 0), (2, 3)):
            torch.set_num_threads(threads)
            found.append(list(loader(graph, kind, prefetch=prefetch)))
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) > 2
    assert all(same(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kind", ["nodes", "edges"])
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_an_epoch_has_every_index_once(make: Any, kind: str) -> None:
    graph = make()
    made = loader(graph, kind)
    epochs = [list(made), list(made)]
    assert not same(epochs[0], epochs[1])
    made.set_epoch(0)
    assert same(list(made), epochs[0])
    assert len(made) == len(epochs[0])
    for batches in epochs:
        seen: Counter[Any] = Counter()
        for batch in batches:
            if kind == "nodes":
                outputs = batch[1] if isinstance(batch[1], dict) else {"_N": batch[1]}
                seen.update((t, n) for t, nodes in outputs.items() for n in nodes.tolist())
            else:
                pairs = batch[1]
                ids = {key: pairs.edges[key].data[gw.EID].tolist() for key in pairs.canonical_etypes}
                seen.update((key, e) for key, edges in ids.items() for e in edges)
        expected = {"nodes": (NODES, 100), "edges": (150, 120)}[kind][make is heterogeneous]
        assert len(seen) == expected
        assert set(seen.values()) == {1}


def test_sizes_of_batches_and_other_devices() -> None:
    graph = homogeneous()
    sampler = BlockSampler(graph, [2])
    sizes = [outputs.numel() for _, outputs, _ in DataLoader(graph, range(50), sampler, batch_size=20)]  # type: ignore[arg-type]
    assert sizes == [20, 20, 10]
    dropped = DataLoader(graph, torch.arange(50), sampler, batch_size=20, drop_last=True, device="meta")
    assert len(dropped) == 2
    for inputs, _, (block,) in dropped:
        assert inputs.device.type == block.device.type == "meta"


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_that_is_left_early_leaves_nothing_behind(prefetch: int) -> None:
    graph = homogeneous()
    threads = threading.active_count()
    made = loader(graph, "edges", prefetch=prefetch)
    kept = []
    for batch in made:
        kept.append(weakref.ref(batch[1]))
        break
    del batch
    gc.collect()
    assert threading.active_count() == threads
    assert kept[0]() is None
    assert len(list(made)) == len(made), "the loader cannot be used again"


def test_an_error_of_a_sampler_is_raised_where_its_batch_would_be() -> None:
    graph = homogeneous()
    made = DataLoader(graph, torch.tensor([1, 2, NODES]), BlockSampler(graph, [2]), prefetch=2)
    batches = iter(made)
    next(batches), next(batches)
    with pytest.raises(IndexRangeError, match=f"index {NODES} at position 0 is out of range"):
        next(batches)


def test_what_cannot_be_loaded_is_one_clear_error() -> None:
    graph = homogeneous()
    blocks = BlockSampler(graph, [2])
    with pytest.raises(DataError, match="sampler: expected one of the graph given"):
        DataLoader(homogeneous(), torch.arange(3), blocks)
    with pytest.raises(DataError, match="indices: expected one at least"):
        DataLoader(graph, torch.tensor([], dtype=torch.int64), blocks)
    with pytest.raises(DataError, match="indices must be integers of shape"):
        DataLoader(graph, torch.ones(NODES, dtype=torch.bool), blocks)
    for option in ({"batch_size": 0}, {"batch_size": 1.5}, {"prefetch": -1}):
        with pytest.raises(DataError, match="must be an integer of"):
            DataLoader(graph, torch.arange(3), blocks, **option)  # type: ignore[arg-type]
    with pytest.raises(IndexRangeError, match=f"index {EDGES} at position 0 is out of range for {EDGES} edges"):
        blocks.sample(torch.tensor([0]), exclude=[EDGES])
    options: list[tuple[dict[str, Any], str]] = [
        ({"exclude": "all"}, "expected exclude 'self', 'reverse_id'"),
        ({"exclude": "reverse_id"}, "exclude='reverse_id' needs reverse_eids"),
        ({"exclude": "reverse_types"}, "exclude='reverse_types' needs reverse_etypes"),
        ({"reverse_eids": torch.arange(3)}, f"one number for each of {EDGES} edges"),
        ({"negative_sampler": RandomWalker(graph)}, "expected a NegativeSampler or a function"),
        ({"num_negatives": 0}, "num_negatives must be a positive integer"),
    ]
    for given, words in options:
        with pytest.raises(DataError, match=words):
            as_edge_prediction_sampler(blocks, **given)
    with pytest.raises(DataError, match="edges: expected one at least"):
        as_edge_prediction_sampler(blocks).sample([])
    with pytest.raises(IndexRangeError, match=f"index {EDGES} at position 1"):
        as_edge_prediction_sampler(blocks).sample([0, EDGES])
    several = heterogeneous()
    made = as_edge_prediction_sampler(
        BlockSampler(several, [1]), "reverse_id", {"rates": torch.arange(700)},
        negative_sampler={"rates": NegativeSampler(several, etype="rates")},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"negative_sampler: relation .*knows.* has none"):
        made.sample({"knows": [1]})
