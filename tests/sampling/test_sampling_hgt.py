"""HGSampling: draws have the probabilities of the paper's algorithm, and batches are induced subgraphs."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader as TheirLoader
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.typing import WITH_TORCH_SPARSE

from graphweave.core.errors import DataError, IndexRangeError
from graphweave.sampling import HGTLoader, HGTSampler

SIZES = {"paper": 4, "author": 5, "venue": 3}
EDGES: dict[tuple[str, str, str], tuple[list[int], list[int]]] = {
    ("author", "writes", "paper"): ([0, 1, 1, 2, 3, 4, 0, 2], [0, 0, 1, 1, 1, 2, 2, 3]),
    ("author", "reviews", "paper"): ([0, 4, 3], [1, 0, 0]),
    ("paper", "cites", "paper"): ([1, 2, 2, 3, 1], [0, 0, 0, 1, 1]),
    ("venue", "hosts", "paper"): ([0, 1, 0], [0, 0, 2]),
    ("paper", "by", "author"): ([3, 2, 1, 0], [0, 1, 4, 2]),
}
State = tuple[dict[str, frozenset[int]], dict[str, dict[int, float]]]


def small() -> HeteroData:
    data = HeteroData()
    for t, size in SIZES.items():
        data[t].num_nodes = size
    for key, ends in EDGES.items():
        data[key].edge_index = torch.tensor(ends)
    return data


def large() -> HeteroData:
    generator = torch.Generator().manual_seed(0)
    data, sizes = HeteroData(), {"user": 300, "item": 120, "tag": 5}
    for t, size in sizes.items():
        data[t].x = torch.randn(size, 8, generator=generator, dtype=torch.float64)
    names = {"rates": "user item", "rev": "item user", "knows": "user user", "of": "tag item", "has": "item tag"}
    for key in [(ends.split()[0], name, ends.split()[1]) for name, ends in names.items()]:
        ends = [torch.randint(sizes[key[i]], (900,), generator=generator) for i in (0, 2)]
        data[key].edge_index = torch.stack(ends)
        data[key].edge_attr = torch.arange(900)
    return data


def entered(state: State, t: str, nodes: frozenset[int]) -> State:
    """Algorithm 2 of the paper for each of the nodes, in plain Python."""
    members, budgets = {**state[0], t: state[0][t] | nodes}, {k: dict(v) for k, v in state[1].items()}
    for node in nodes:
        budgets[t].pop(node, None)
    for (start, _, end), (src, dst) in EDGES.items():
        for node in nodes if end == t else ():
            sources = [u for u, v in zip(src, dst, strict=True) if v == node]
            for u in sources:
                if u not in members[start]:
                    budgets[start][u] = budgets[start].get(u, 0.0) + 1 / len(sources)
    return members, budgets


def sets_of(budget: dict[int, float], count: int) -> dict[frozenset[int], float]:
    """The probability of each set that is drawn: one after the other, by the squares, of those that are left."""
    if len(budget) <= count:
        return {frozenset(budget): 1.0}
    found: Counter[frozenset[int]] = Counter()
    for order in permutations(budget, count):
        left, share = sum(b * b for b in budget.values()), 1.0
        for node in order:
            share *= budget[node] ** 2 / left
            left -= budget[node] ** 2
        found[frozenset(order)] += share  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


def outcomes(seeds: list[int], samples: dict[str, list[int]]) -> dict[tuple[frozenset[int], ...], float]:
    """The probability of each content of a batch of papers, by algorithm 1."""
    none: State = ({t: frozenset() for t in SIZES}, {t: {} for t in SIZES})
    states = [(entered(none, "paper", frozenset(seeds)), 1.0)]
    for step in range(len(samples["paper"])):
        for t in SIZES:
            states = [
                (entered(state, t, nodes), share * p)
                for state, share in states
                for nodes, p in sets_of(state[1][t], samples[t][step]).items()
            ]
    found: Counter[tuple[frozenset[int], ...]] = Counter()
    for (members, _), share in states:
        found[tuple(members[t] for t in SIZES)] += share  # type: ignore[assignment]
    return dict(found)  # type: ignore[arg-type]


CASES: dict[str, tuple[list[int], dict[str, list[int]]]] = {
    "one of each": ([0, 1], {"paper": [0], "author": [1], "venue": [1]}),
    "two of a type": ([0, 1], {"paper": [1], "author": [2], "venue": [0]}),
    "two steps": ([0], {"paper": [1, 1], "author": [1, 1], "venue": [1, 0]}),
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_batches_have_the_probabilities_of_the_algorithm(case: str, seed: int) -> None:
    seeds, samples = CASES[case]
    sampler, batches = HGTSampler(small(), samples, seed=seed), 250
    seen: Counter[tuple[frozenset[int], ...]] = Counter()
    for epoch in range(batches):
        sampler.set_epoch(epoch)
        node = sampler._sample({"paper": torch.tensor(seeds)}).node
        seen[tuple(frozenset(node[t].tolist()) for t in SIZES)] += 1
    expected = outcomes(seeds, samples)
    assert sum(expected.values()) == pytest.approx(1)
    assert seen.keys() <= expected.keys()
    common = [s for s, p in expected.items() if p * batches >= 5]
    rest = batches - sum(seen[s] for s in common), batches * (1 - sum(expected[s] for s in common))
    cells = [(seen[s], batches * expected[s]) for s in common] + ([rest] if rest[1] > 1e-9 else [])
    assert len(cells) > 4
    statistic = sum((got - want) ** 2 / want for got, want in cells)
    assert chi2.sf(statistic, len(cells) - 1) > 1e-4


def test_batches_are_induced_subgraphs_of_bounded_size() -> None:
    data = large()
    sampler = HGTSampler(data, {"user": [20, 10], "item": [15, 0], "tag": [2, 1]}, seed=1)
    for batch in NodeLoader(data, sampler, input_nodes=("item", torch.arange(0, 120, 3)), batch_size=16):
        size = batch["item"].batch_size
        assert torch.equal(batch["item"].n_id[:size], torch.arange(0, 120, 3)[batch["item"].input_id])
        drawn = {t: batch[t].num_nodes - size * (t == "item") for t in data.node_types}
        assert drawn == {"user": 30, "item": 15, "tag": 3}
        for t in data.node_types:
            assert batch[t].n_id.unique().numel() == batch[t].n_id.numel()
            assert torch.equal(batch[t].x, data[t].x[batch[t].n_id])
        for key in data.edge_types:
            src, dst = (batch[key[i]].n_id for i in (0, 2))
            u, v = data[key].edge_index
            inside = (torch.isin(u, src) & torch.isin(v, dst)).nonzero().view(-1)
            ends = batch[key].edge_index
            assert torch.equal(batch[key].e_id.sort().values, inside)
            assert torch.equal(batch[key].edge_attr, batch[key].e_id)
            assert torch.equal(torch.stack([src[ends[0]], dst[ends[1]]]), data[key].edge_index[:, batch[key].e_id])
            assert bool((ends[1].diff() >= 0).all()), "edges are not sorted by destination"


def test_batches_of_all_neighbours_give_the_seeds_what_the_whole_graph_gives() -> None:
    data = large()
    layers = [HeteroConv({key: SAGEConv(8, 8) for key in data.edge_types}).double() for _ in range(2)]

    def model(x: dict[str, Tensor], edges: dict[Any, Tensor]) -> Tensor:
        hidden = {t: rows.relu() for t, rows in layers[0](x, edges).items()}
        return layers[1](hidden, edges)["item"]

    whole = model(data.x_dict, data.edge_index_dict)
    for batch in NodeLoader(data, HGTSampler(data, [1_000, 1_000]), input_nodes="item", batch_size=40):
        out = model(batch.x_dict, batch.edge_index_dict)[: batch["item"].batch_size]
        torch.testing.assert_close(out, whole[batch["item"].input_id], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_threads_and_workers_change_no_batch(links: bool) -> None:
    data = large()

    def batches(threads: int, workers: int, epoch: int = 0) -> list[Tensor]:
        sampler = HGTSampler(data, [25, 10], seed=4)
        sampler.set_epoch(epoch)
        common: dict[str, Any] = {"batch_size": 50, "num_workers": workers}
        torch.set_num_threads(threads)
        if links:
            of = (("user", "rates", "item"), data["rates"].edge_index[:, :150])
            made: Any = LinkLoader(data, sampler, edge_label_index=of, neg_sampling="binary", **common)
        else:
            made = NodeLoader(data, sampler, input_nodes="item", **common)
        found = []
        for batch in made:
            found += [batch[t].n_id for t in data.node_types] + [batch[key].e_id for key in data.edge_types]
            if links:
                label = batch["rates"].edge_label_index
                ends = torch.stack([batch["user"].n_id[label[0]], batch["item"].n_id[label[1]]])
                assert torch.equal(ends[:, :50], data["rates"].edge_index[:, batch["rates"].input_id])
        return found

    before = torch.get_num_threads()
    try:
        alone = batches(1, 0)
        for others in (batches(2, 0), batches(4, 0), batches(2, 1), batches(1, 2)):
            assert len(alone) == len(others) > 14
            assert all(torch.equal(one, other) for one, other in zip(alone, others, strict=True))
        assert not all(
            torch.equal(a, b) for a, b in zip(alone, batches(1, 0, epoch=1), strict=True) if a.shape == b.shape
        )
    finally:
        torch.set_num_threads(before)


def test_pygs_own_loader_makes_a_sampler_that_needs_torch_sparse() -> None:
    """docs/sampling.md names `NodeLoader` for this reason."""
    """Therefore there is one of our own, which is called alike."""
    if WITH_TORCH_SPARSE:
        pytest.skip("torch-sparse is installed")
    with pytest.raises(ImportError, match="requires 'torch-sparse'"):
        TheirLoader(large(), [10], input_nodes="item")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_gives_the_sampler_s_batches(workers: int) -> None:
    """Called as PyG's is, with any number of workers."""
    data = large()
    seen = []
    loader = HGTLoader(
        data, {t: [20, 10] for t in data.node_types}, ("item", torch.arange(90)), is_sorted=False,
        transform=lambda batch: seen.append(1) or batch, seed=3, batch_size=30, num_workers=workers,
    )  # fmt: skip
    direct = NodeLoader(data, HGTSampler(data, [20, 10], seed=3), input_nodes=("item", torch.arange(90)), batch_size=30)
    for got, want in zip(loader, direct, strict=True):
        assert got["item"].batch_size == 30
        for t in data.node_types:
            assert torch.equal(got[t].n_id, want[t].n_id) and torch.equal(got[t].x, data[t].x[got[t].n_id])
        for key in data.edge_types:
            assert torch.equal(got[key].edge_index, want[key].edge_index)
            assert torch.equal(got[key].edge_attr, data[key].edge_attr[got[key].e_id])
    assert len(seen) == (0 if workers else 3)  # a worker's own list is not this one


def test_a_type_without_edges_and_seeds_without_neighbours() -> None:
    data = small()
    data["alone"].num_nodes = 2
    sampler = HGTSampler(data, [3])
    out = sampler._sample({"alone": torch.tensor([1])})
    assert {t: nodes.tolist() for t, nodes in out.node.items()} == {
        "paper": [],
        "author": [],
        "venue": [],
        "alone": [1],
    }
    assert all(not edge.numel() for edge in out.edge.values())
    out = sampler._sample({"venue": torch.tensor([2])})
    assert out.node["venue"].tolist() == [2]


def test_what_cannot_be_sampled_is_one_clear_error() -> None:
    data = small()
    with pytest.raises(DataError, match=r"expected a PyG HeteroData \(got Data\)"):
        HGTSampler(Data(), [3])
    cases: list[tuple[Any, str]] = [
        ({"paper": [1]}, "node types author, venue have none"),
        ([1.5], "num_samples of type 'paper': expected a list of numbers"),
        ([], "num_samples of type 'paper': expected a list of numbers"),
        (5, "num_samples of type 'paper': expected a list of numbers"),
        ([-1], "num_samples of type 'paper': expected a list of numbers"),
        ({"paper": [1], "author": [1, 2], "venue": [1]}, "expected lists of equal length"),
    ]
    for given, words in cases:
        with pytest.raises(DataError, match=words):
            HGTSampler(data, given)
    sampler = HGTSampler(data, [2])
    with pytest.raises(DataError, match="must be different nodes"):
        sampler._sample({"paper": torch.tensor([1, 1])})
    with pytest.raises(IndexRangeError, match="index 4 at position 0 is out of range for 4"):
        sampler._sample({"paper": torch.tensor([4])})
    with pytest.raises(DataError, match="expected one at least"):
        sampler._sample({"paper": torch.tensor([], dtype=torch.int64)})
    with pytest.raises(DataError, match="HGT sampling knows no times"):
        sampler._sample({"paper": torch.tensor([1])}, {"paper": torch.tensor([3])})
    with pytest.raises(DataError, match="64 bits"):
        sampler.set_epoch(2**64)
