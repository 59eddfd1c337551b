"""Neighbour sampling: every draw is an edge, counts and distributions are right, and threads change nothing."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from graphweave.core.errors import DataError, IndexRangeError
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import HopEdges, HopSampler, NeighborBatch, hop_sampler
from tests.programs.graphs import EdgeList, zoo

NODES = "node"
EDGES = ("node", "to", "node")
BIPARTITE = ("user", "rates", "item")


def one_relation(
    src: Any, dst: Any, num_nodes: int, fanouts: list[int], seed: int = 0, replace: bool = False,
    disjoint: bool = False, strategy: str = "uniform", **data: Any,
) -> HopSampler:  # fmt: skip
    ends = [torch.as_tensor(end, dtype=None if isinstance(end, Tensor) else torch.int64) for end in (src, dst)]
    relations = {EDGES: adjacency(*ends, num_nodes, num_nodes, **data)}
    options: dict[str, Any] = {"replace": replace, "disjoint": disjoint, "strategy": strategy}
    return hop_sampler(relations, {NODES: num_nodes}, {EDGES: fanouts}, seed, **options)


def star(degree: int, times: int, seed: int, fanout: int, **options: Any) -> Tensor:
    """[times, fanout]: what node 0, which has an edge from each of the nodes 1..degree, draws each time."""
    drawing = one_relation(range(1, degree + 1), [0] * degree, degree + 1, [fanout], seed, **options)
    batch = drawing.sample({NODES: torch.zeros(times, dtype=torch.int64)}, None, 0)
    return batch.edges[EDGES][0].edge.view(times, fanout)


def flat(batch: NeighborBatch) -> list[Tensor]:
    """Every tensor of a batch."""
    nodes = [chunk for chunks in batch.nodes.values() for chunk in chunks]
    trees = [chunk for chunks in (batch.trees or {}).values() for chunk in chunks]
    return [*nodes, *trees, *(t for hops in batch.edges.values() for hop in hops for t in hop)]


def chi_square(seen: Tensor, expected: Tensor) -> float:
    """The probability of a deviation as large as this, or larger."""
    statistic = float(((seen - expected) ** 2 / expected).sum())
    return float(chi2.sf(statistic, seen.numel() - 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("graph", zoo(), ids=lambda graph: graph.name)
def test_every_draw_is_an_edge_and_every_row_draws_its_count(
    graph: EdgeList, replace: bool, dtype: torch.dtype
) -> None:
    if graph.num_dst == 0:
        return
    sides = {"user": graph.num_src, "item": graph.num_dst}
    grouped = adjacency(graph.src.to(dtype), graph.dst.to(dtype), graph.num_src, graph.num_dst)
    degrees = torch.bincount(graph.dst, minlength=graph.num_dst)
    for fanout in (-1, 0, 1, 3, 40):
        drawing = hop_sampler({BIPARTITE: grouped}, sides, {BIPARTITE: [fanout]}, 3, replace=replace)
        seeds = torch.arange(graph.num_dst).flip(0).repeat(2)
        batch = drawing.sample({"item": seeds}, None, 0)
        users, items = batch.nodes["user"][1], batch.nodes["item"][0]
        hop = batch.edges[BIPARTITE][0]
        assert torch.equal(items, seeds)
        assert users.unique().numel() == users.numel()
        assert torch.equal(graph.src[hop.edge], users[hop.src])
        assert torch.equal(graph.dst[hop.edge], items[hop.dst])
        counts = torch.bincount(hop.dst, minlength=seeds.numel())
        wanted = degrees if fanout < 0 else (degrees > 0) * fanout if replace else degrees.clamp(max=fanout)
        assert torch.equal(counts, wanted[seeds])
        if not replace or fanout < 0:
            assert torch.stack([hop.dst, hop.edge]).unique(dim=1).shape[1] == hop.edge.numel()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sets_without_replacement_are_equally_likely(seed: int) -> None:
    drawn = Counter(map(tuple, star(6, 30_000, seed, 2).tolist()))
    seen = torch.tensor([drawn[pair] for pair in combinations(range(6), 2)], dtype=torch.float64)
    assert seen.sum() == 30_000
    assert chi_square(seen, torch.full_like(seen, 2_000)) > 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("degree", "fanout"), [(100, 40), (5_000, 30), (60, 20)])
def test_edges_of_large_fanouts_are_equally_likely(seed: int, degree: int, fanout: int) -> None:
    drawn = star(degree, 3_000, seed, fanout)
    assert bool((drawn.diff(dim=1) > 0).all()), "an edge was drawn twice"
    share = fanout / degree
    seen = torch.bincount(drawn.reshape(-1), minlength=degree).double()
    # Counts of edges of one draw are not independent: their sum is fixed.
    statistic = float(((seen - 3_000 * share) ** 2).sum() / (3_000 * share * (1 - share)) * (degree - 1) / degree)
    assert chi2.sf(statistic, degree - 1) > 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_draws_with_replacement_are_independent(seed: int, weighted: bool) -> None:
    weights = torch.tensor([1.0, 4.0, 0.0, 2.0, 3.0]) if weighted else torch.ones(5)
    drawn = star(5, 20_000, seed, 2, replace=True, weights=weights if weighted else None)
    pairs = torch.bincount(drawn[:, 0] * 5 + drawn[:, 1], minlength=25).double()
    share = (weights / weights.sum()).double()
    expected = 20_000 * (share[:, None] * share).reshape(-1)
    assert bool((pairs[expected == 0] == 0).all()), "an edge of weight 0 was drawn"
    assert chi_square(pairs[expected > 0], expected[expected > 0]) > 1e-4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weighted_draws_without_replacement_take_from_what_is_left(seed: int) -> None:
    weights = torch.tensor([1.0, 4.0, 0.0, 2.0, 3.0])
    drawn = Counter(map(tuple, star(5, 30_000, seed, 2, weights=weights).tolist()))
    share = weights.double() / 10
    pairs = list(combinations([0, 1, 3, 4], 2))
    expected = [share[i] * share[j] * (1 / (1 - share[i]) + 1 / (1 - share[j])) for i, j in pairs]
    seen = torch.tensor([drawn[pair] for pair in pairs], dtype=torch.float64)
    assert seen.sum() == 30_000
    assert chi_square(seen, 30_000 * torch.stack(expected)) > 1e-4


def test_the_edges_of_weight_zero_do_not_fill_a_fanout() -> None:
    assert star(4, 1, 0, 2, weights=torch.tensor([0.0, 1.0, 0.0, 5.0])).tolist() == [[1, 3]]
    assert star(3, 1, 0, -1, weights=torch.tensor([0.0, 1.0, 0.0])).numel() == 1


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "replace": {"replace": True},
    "weighted": {"weights": True},
    "disjoint": {"disjoint": True},
    "timed": {"edge_times": True},
    "last": {"node_times": True, "strategy": "last"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_batches_are_the_same_for_any_number_of_threads(options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(5)
    nodes, edges = 30_000, 400_000
    src, dst = ((torch.rand(edges, generator=generator) ** 3 * nodes).long() for _ in "sd")
    data = {
        "weights": torch.rand(edges, generator=generator),
        "edge_times": torch.randint(100, (edges,), generator=generator),
        "node_times": torch.randint(100, (nodes,), generator=generator),
    }
    given = {
        name: data.get(name, value) if value is True and name in data else value for name, value in options.items()
    }
    drawing = one_relation(src, dst, nodes, [10, 10, 5], **given)
    seeds = torch.randperm(nodes, generator=generator)[:600]
    times = {NODES: torch.randint(100, (600,), generator=generator)} if drawing.timed else None
    before = torch.get_num_threads()
    try:
        batches = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            batches.append(flat(drawing.sample({NODES: seeds}, times, 0)))
    finally:
        torch.set_num_threads(before)
    assert batches[0][-1].numel() > 5_000, "too few edges for several threads"
    for other in batches[1:]:
        assert all(map(torch.equal, batches[0], other))
    changed = flat(drawing.sample({NODES: seeds}, times, 1))
    assert drawing.strategy == "last" or not all(map(torch.equal, batches[0], changed)), "epochs draw the same"


def test_hops_number_nodes_in_the_order_in_which_edges_name_them() -> None:
    src, dst = [1, 2, 3, 0, 4, 2], [0, 0, 1, 3, 2, 1]
    batch = one_relation(src, dst, 5, [-1, -1, -1]).sample({NODES: torch.tensor([0])}, None, 0)
    assert [chunk.tolist() for chunk in batch.nodes[NODES]] == [[0], [1, 2], [3, 4], []]
    hops = [tuple(part.tolist() for part in hop) for hop in batch.edges[EDGES]]
    assert hops == [([1, 2], [0, 0], [0, 1]), ([3, 2, 4], [1, 1, 2], [2, 5, 4]), ([0], [3], [3])]


def test_repeated_seeds_have_rows_of_their_own() -> None:
    batch = one_relation([1, 2, 0], [0, 0, 2], 3, [-1, -1]).sample({NODES: torch.tensor([0, 0])}, None, 0)
    assert [chunk.tolist() for chunk in batch.nodes[NODES]] == [[0, 0], [1, 2], []]
    first, second = batch.edges[EDGES]
    assert (first.src.tolist(), first.dst.tolist()) == ([2, 3, 2, 3], [0, 0, 1, 1])
    assert (second.src.tolist(), second.dst.tolist()) == ([0], [3])


def test_disjoint_trees_share_no_node() -> None:
    batch = one_relation([1, 1, 0], [0, 2, 1], 3, [-1, -1], disjoint=True).sample(
        {NODES: torch.tensor([0, 2, 0])}, None, 0
    )
    assert batch.trees is not None
    nodes, trees = (torch.cat(parts[NODES]) for parts in (batch.nodes, batch.trees))
    assert nodes.tolist() == [0, 2, 0, 1, 1, 1, 0]
    assert trees.tolist() == [0, 1, 2, 0, 1, 2, 1]
    for hop in batch.edges[EDGES]:
        assert torch.equal(trees[hop.src], trees[hop.dst])


@pytest.mark.parametrize("strategy", ["uniform", "last"])
@pytest.mark.parametrize("of", ["edge_times", "node_times", "both"])
def test_no_edge_comes_from_the_future(strategy: str, of: str) -> None:
    generator = torch.Generator().manual_seed(1)
    src, dst = torch.randint(40, (2, 900), generator=generator)
    edge_times = torch.randint(-50, 50, (900,), generator=generator)
    node_times = torch.randint(-50, 50, (40,), generator=generator)
    given = {"edge_times": edge_times, "node_times": node_times}
    data = given if of == "both" else {of: given[of]}
    drawing = one_relation(src, dst, 40, [4, 4], strategy=strategy, **data)
    seeds, times = torch.arange(40), torch.randint(-50, 50, (40,), generator=generator)
    batch = drawing.sample({NODES: seeds}, {NODES: times}, 0)
    assert batch.trees is not None
    trees = torch.cat(batch.trees[NODES])
    when = torch.full((900,), -1000)
    for name, values in data.items():
        when = torch.maximum(when, values if name == "edge_times" else values[src])
    for hop in batch.edges[EDGES]:
        assert bool((when[hop.edge] <= times[trees[hop.dst]]).all())
    first: HopEdges = batch.edges[EDGES][0]
    for row in range(40):
        allowed = ((dst == row) & (when <= times[row])).nonzero().view(-1)
        taken = first.edge[first.dst == row]
        assert taken.numel() == min(4, allowed.numel())
        if strategy == "last":
            assert when[taken].sort().values.tolist() == when[allowed].sort().values[-4:].tolist()


def test_relations_draw_from_their_own_types() -> None:
    generator = torch.Generator().manual_seed(0)
    num = {"user": 30, "item": 7}
    ends = {
        ("user", "rates", "item"): torch.stack([torch.arange(60) % 30, torch.arange(60) % 7]),
        ("item", "rated", "user"): torch.stack([torch.arange(60) % 7, torch.arange(60) % 30]),
        ("user", "knows", "user"): torch.randint(30, (2, 80), generator=generator),
    }
    grouped = {key: adjacency(*edges, num[key[0]], num[key[2]]) for key, edges in ends.items()}
    fanouts = {("user", "rates", "item"): [3, 3], ("item", "rated", "user"): [0, 1], ("user", "knows", "user"): [2, -1]}
    batch = hop_sampler(grouped, num, fanouts, 0).sample({"item": torch.tensor([3, 1])}, None, 0)
    nodes = {t: torch.cat(chunks) for t, chunks in batch.nodes.items()}
    for key, hops in batch.edges.items():
        for hop in hops:
            assert torch.equal(ends[key][0][hop.edge], nodes[key[0]][hop.src])
            assert torch.equal(ends[key][1][hop.edge], nodes[key[2]][hop.dst])
    counts = {key[1]: [hop.edge.numel() for hop in hops] for key, hops in batch.edges.items()}
    assert counts["rates"] == [6, 0], "no item is new in the second hop"
    assert counts["rated"] == [0, batch.nodes["user"][1].numel()]
    assert counts["knows"][0] == 0 < counts["knows"][1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"fanouts": []}, "expected a list of fanouts"),
        ({"fanouts": [3, -2]}, "expected a list of fanouts"),
        ({"fanouts": [2.5]}, "expected a list of fanouts"),
        ({"seed": 1.5}, "seed must be an integer"),
        ({"strategy": "first"}, "expected strategy"),
        ({"weights": torch.tensor([1.0, -1.0])}, "got -1.0 at edge 1"),
        ({"weights": torch.tensor([float("nan"), 1.0])}, "got nan at edge 0"),
        ({"weights": torch.ones(3)}, r"weights must be numbers of shape \[2\]"),
        ({"edge_times": torch.ones(2)}, "edge times must be integers"),
        ({"node_times": torch.ones(2, dtype=torch.int64)}, r"node times must be integers of shape \[3\]"),
    ],
)
def test_what_cannot_be_sampled_is_one_clear_error(change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        one_relation(**{"src": [0, 1], "dst": [1, 2], "num_nodes": 3, "fanouts": [2], **change})


def test_seeds_are_checked() -> None:
    drawing = one_relation([0, 1], [1, 2], 3, [2], edge_times=torch.tensor([1, 2]))
    for seeds, said in [(torch.tensor([]), "got none"), (torch.ones(3), "must be integers")]:
        with pytest.raises(DataError, match=said):
            drawing.sample({NODES: seeds}, None, 0)
    with pytest.raises(IndexRangeError, match="index 3 at position 1 is out of range for 3 nodes"):
        drawing.sample({NODES: torch.tensor([0, 3])}, None, 0)
    with pytest.raises(DataError, match="input_time"):
        drawing.sample({NODES: torch.tensor([0])}, None, 0)


@pytest.mark.parametrize("fanouts", [[3, 3], [4, 2], [2, -1, 3]])
@pytest.mark.parametrize("graph", [g for g in zoo() if g.num_src == g.num_dst > 0], ids=lambda graph: graph.name)
def test_parts_of_a_batch_draw_by_node_what_the_whole_batch_draws(graph: EdgeList, fanouts: list[int]) -> None:
    """For each hop, the edges into a node are those that it has in the whole batch; other batches have others."""
    relations = {EDGES: adjacency(graph.src, graph.dst, graph.num_src, graph.num_dst)}
    counts = {NODES: graph.num_src}
    drawing = hop_sampler(relations, counts, {EDGES: fanouts}, 5, repeat=True, by_node=True)

    def drawn(seeds: Tensor, number: int = 3) -> list[dict[int, list[int]]]:
        batch = drawing.sample({NODES: seeds}, None, 1, batch_number=number)
        nodes = torch.cat(batch.nodes[NODES])
        found: list[dict[int, list[int]]] = []
        for hop in batch.edges[EDGES]:
            found.append({})
            for dst, edge in zip(nodes[hop.dst].tolist(), hop.edge.tolist(), strict=True):
                found[-1].setdefault(dst, []).append(edge)
        return found

    every = torch.arange(graph.num_src).flip(0)
    whole = drawn(every)
    for part in every.split(max(graph.num_src // 3, 1)):
        for in_part, in_whole in zip(drawn(part), whole, strict=True):
            assert {node: in_whole[node] for node in in_part} == in_part
    hub = max(graph.dst.bincount().tolist(), default=0) > 20
    assert not hub or drawn(every, 4) != whole
