"""Samplers under numbers at the ends of their types: none is cut, no sum wraps around, no weight loses its bits."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import NegativeSampling, NodeSamplerInput

import graphweave as gw
from graphweave.core.errors import DataError
from graphweave.dgl.random import choice
from graphweave.runtime import native_numbers
from graphweave.sampling import (
    BlockSampler,
    ClusterSampler,
    DataLoader,
    NegativeSampler,
    RandomWalker,
    SAINTSampler,
    as_edge_prediction_sampler,
)
from graphweave.sampling.native import RawAdjacency, RawChoice, RawRows, RawTable, library
from graphweave.sampling.pyg import KeyedNegatives, NeighborSampler
from graphweave.sampling.undirected import undirected_of
from graphweave.sampling.weighted import scaled

HUB = 1
"""The node into which all edges of `star` lead."""


def star(**attributes: Tensor) -> Data:
    return Data(edge_index=torch.tensor([[0, 1, 2, 3], [HUB] * 4]), num_nodes=5, **attributes)


def path_graph() -> gw.graph.Graph:
    return gw.graph((torch.arange(4), torch.arange(1, 5)), num_nodes=5)


def drawn(sampler: NeighborSampler, times: int = 1) -> Tensor:
    return sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([HUB] * times))).edge


# ------------------------------------------------------------ counts


@pytest.mark.parametrize("fanout", [2**44, 2**61, 2**62, 2**63 - 1])
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_fanouts_for_which_there_is_no_memory_are_refused(fanout: int, nodes: int) -> None:
    """The smallest takes more than the addresses of a process."""
    with pytest.raises(DataError, match=r"draw \d+ edges each draw .* no memory\. Pass smaller fanouts"):
        drawn(NeighborSampler(star(), [fanout], replace=True), nodes)


@pytest.mark.parametrize("fanout", [2**62, 2**63 - 1])
def test_large_fanouts_without_replacement_draw_all_edges(fanout: int) -> None:
    assert drawn(NeighborSampler(star(), [fanout])).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("fanout", [2**63, 2**64, 2**64 + 1, 2**70, -(2**63), -(2**64) + 2])
def test_fanouts_beyond_64_bits_are_refused(fanout: int) -> None:
    for replace in (False, True):
        with pytest.raises(DataError, match=r"one integer of 64 bits for each hop \(got"):
            NeighborSampler(star(), [fanout], replace=replace)
        with pytest.raises(DataError, match=r"one integer of 64 bits for each hop \(got"):
            BlockSampler(path_graph(), [2, fanout], replace=replace)


def calls_with(n: int) -> dict[str, Any]:
    """Every public number of the samplers at `n`, by name."""
    graph = path_graph()
    edges = NegativeSampler(graph)
    return {
        "seed of blocks": lambda: BlockSampler(graph, [1], seed=n).sample(torch.tensor([1])),
        "seed of neighbours": lambda: drawn(NeighborSampler(star(), [1], seed=n)),
        "seed of walks": lambda: RandomWalker(graph, seed=n).walk(torch.tensor([0]), 1),
        "seed of negatives": lambda: NegativeSampler(graph, seed=n).pairs(1),
        "seed of a loader": lambda: list(DataLoader(graph, torch.arange(2), BlockSampler(graph, [1]), seed=n)),
        "seed of clusters": lambda: ClusterSampler(graph, 2, method="labels", seed=n),
        "seed of SAINT": lambda: SAINTSampler(graph, "node", 2, seed=n),
        "epoch of blocks": lambda: BlockSampler(graph, [1]).sample(torch.tensor([1]), epoch=n),
        "epoch of neighbours": lambda: NeighborSampler(star(), [1]).set_epoch(n),
        "epoch of walks": lambda: RandomWalker(graph).walk(torch.tensor([0]), 1, epoch=n),
        "epoch of negatives": lambda: edges.pairs(1, epoch=n),
        "epoch of SAINT": lambda: SAINTSampler(graph, "node", 2).sample(torch.tensor([1]), epoch=n),
        "length of walks": lambda: RandomWalker(gw.graph(([0], [0]))).walk(torch.tensor([0]), n),
        "pairs": lambda: edges.pairs(n),
        "destinations": lambda: edges.destinations(torch.tensor([0, 1]), n),
        "budget of nodes": lambda: SAINTSampler(graph, "node", n).sample(torch.tensor([1])),
        "roots of walks": lambda: SAINTSampler(graph, "walk", (n, 1)),
        "length of SAINT's walks": lambda: SAINTSampler(graph, "walk", (1, n)),
        "negatives of an edge": lambda: as_edge_prediction_sampler(
            BlockSampler(graph, [1]), negative_sampler=edges, num_negatives=n
        ).sample(torch.tensor([0])),
    }


@pytest.mark.parametrize("n", [2**63, 2**64 + 1, 2**70])
@pytest.mark.parametrize("name", calls_with(1))
def test_numbers_beyond_64_bits_are_refused(name: str, n: int) -> None:
    with pytest.raises(DataError, match=r"64 bits|no memory"):
        calls_with(n)[name]()


@pytest.mark.parametrize("n", [2**62, 2**63 - 1])
@pytest.mark.parametrize("name", calls_with(1))
def test_numbers_of_64_bits_are_taken_or_there_is_no_memory(name: str, n: int) -> None:
    call = calls_with(n)[name]
    if name.startswith(("seed", "epoch")):
        call()
    else:
        with pytest.raises(DataError, match="no memory"):
            call()


def test_counts_that_are_none_are_refused() -> None:
    negatives = NegativeSampler(path_graph())
    for bad in (-1, True, 2.0, None):
        with pytest.raises(DataError, match="count must be an integer"):
            negatives.pairs(bad)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="k must be a positive integer"):
            negatives.destinations(torch.tensor([0]), bad)  # type: ignore[arg-type]
    assert negatives.pairs(0)[0].tolist() == []


def test_pairs_of_nodes_beyond_64_bits_are_refused() -> None:
    few = torch.tensor([0]), torch.tensor([1])
    with pytest.raises(DataError, match=r"fewer than 2\^63 pairs of nodes"):
        undirected_of(*few, 1 << 32)
    with pytest.raises(DataError, match=r"fewer than 2\^63 pairs of nodes"):
        NegativeSampler(gw.graph(few, num_nodes=1 << 32), filtered=False)


def test_times_beyond_64_bits_are_refused() -> None:
    times = torch.tensor([1, 2, 3, 2**64 - 1], dtype=torch.uint64)
    with pytest.raises(DataError, match=r"below 2\^63"):
        NeighborSampler(star(time=times), [2], time_attr="time", disjoint=True)


# ------------------------------------------------------------ the border of native code


def test_no_number_is_cut_where_it_enters_native_code() -> None:
    native = library()
    tensor = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ctypes.ArgumentError, match="64 bits"):
        native.gw_sample_key(2**63, tensor.data_ptr(), 1)
    with pytest.raises(ctypes.ArgumentError, match="64 bits"):
        native.gw_sample_key(0, tensor.data_ptr(), 2**64 + 1)
    for kind in (RawRows, RawChoice, RawTable, RawAdjacency):
        for i, (name, field, *_) in enumerate(kind._fields_):
            if field is not ctypes.c_int64:
                continue
            values: list[Any] = [0] * len(kind._fields_)
            for bad in (2**63, -(2**63) - 1, 2**64):
                values[i] = bad
                with pytest.raises(OverflowError, match=rf"{kind.__name__}\.{name} must be an integer of 64 bits"):
                    kind(*values)
            values[i] = 2**63 - 1
            assert getattr(kind(*values), name) == 2**63 - 1
            values[i] = 1.5
            with pytest.raises(TypeError, match="must be an integer"):
                kind(*values)


def test_arguments_of_32_bits_have_bounds_too() -> None:
    for good in (2**31 - 1, -(2**31)):
        assert native_numbers.Int32.from_param(good).value == good
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(OverflowError, match="32 bits"):
            native_numbers.Int32.from_param(bad)


# ------------------------------------------------------------ weights

MOST, LEAST = float(np.finfo(np.float64).max), 5e-324
WEIGHTS = [
    pytest.param([MOST] * 4, id="sums overflow"),
    pytest.param([MOST, MOST / 2, MOST / 4, MOST / 4], id="some overflow"),
    pytest.param([LEAST, 2 * LEAST, 3 * LEAST, 2 * LEAST], id="denormal"),
    pytest.param([1e-310, 2e-310, 3e-310, 4e-310], id="few bits"),
    pytest.param([1e-300, 3e-300, 0.0, 4e-300], id="small"),
    pytest.param([1.0, 2.0, 3.0, 4.0], id="usual"),
]


def shares(weights: list[float]) -> Tensor:
    exact = [int(w / LEAST) for w in weights] if max(weights) < 1e-300 else [w / max(weights) for w in weights]
    return torch.tensor([w / sum(exact) for w in exact], dtype=torch.float64)


def assert_in_proportion(numbers: Tensor, wanted: Tensor) -> None:
    """Counts of draws lie within 5 standard deviations of what the probabilities give."""
    count = torch.bincount(numbers, minlength=wanted.numel()).double()
    assert count.numel() == wanted.numel()
    deviation = (numbers.numel() * wanted * (1 - wanted)).sqrt()
    assert bool(((count - numbers.numel() * wanted).abs() <= 5 * deviation).all()), (count.tolist(), wanted.tolist())


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_edges_are_drawn_by_weights_of_any_size(weights: list[float], replace: bool) -> None:
    data = star(w=torch.tensor(weights, dtype=torch.float64))
    sampler = NeighborSampler(data, [1], replace=replace, weight_attr="w")
    assert_in_proportion(drawn(sampler, 4000), shares(weights))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_second_draw_without_replacement_follows_the_weights_that_are_left(weights: list[float]) -> None:
    data = star(w=torch.tensor(weights, dtype=torch.float64))
    edges = drawn(NeighborSampler(data, [2], weight_attr="w"), 4000).view(-1, 2)
    p = shares(weights)
    pairs = {(i, j): float(p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j])) for i in range(4) for j in range(i)}
    numbers = torch.tensor([[*pairs].index((int(b), int(a))) for a, b in edges])
    assert_in_proportion(numbers, torch.tensor([*pairs.values()], dtype=torch.float64))


def test_tiny_weights_are_drawn_after_huge_ones_but_drawn() -> None:
    """Of three draws without replacement two are the huge ones, the third is one of the tiny ones, by weight."""
    data = star(w=torch.tensor([MOST, 3 * LEAST, LEAST, MOST], dtype=torch.float64))
    edges = drawn(NeighborSampler(data, [3], weight_attr="w"), 2000).view(-1, 3)
    rest = edges[(edges == 1) | (edges == 2)]
    assert rest.numel() == 2000
    assert_in_proportion(rest - 1, torch.tensor([0.75, 0.25], dtype=torch.float64))


@pytest.mark.parametrize("weights", WEIGHTS)
def test_negative_ends_and_choices_follow_weights_of_any_size(weights: list[float]) -> None:
    given = torch.tensor(weights, dtype=torch.float64)
    negatives = KeyedNegatives(NegativeSampling("triplet", 1, dst_weight=given), key=3)
    assert_in_proportion(negatives.sample(4000, "dst", 4), shares(weights))
    torch.manual_seed(5)
    assert_in_proportion(choice(4, 4000, prob=given), shares(weights))
    assert torch.allclose(scaled(given) / scaled(given).sum(), shares(weights), rtol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_weights_that_are_no_weights_are_refused(bad: float) -> None:
    weights = torch.tensor([1.0, bad, 1.0, 1.0])
    with pytest.raises(DataError, match=r"finite and not negative \(got .* at edge 1\)"):
        NeighborSampler(star(w=weights), [1], weight_attr="w")
    negatives = KeyedNegatives(NegativeSampling("triplet", 1, dst_weight=weights), key=3)
    with pytest.raises(DataError, match=r"dst_weight must be finite and not negative \(got .* at node 1\)"):
        negatives.sample(3, "dst", 4)
    nothing = KeyedNegatives(NegativeSampling("triplet", 1, dst_weight=torch.zeros(4)), key=3)
    with pytest.raises(DataError, match="dst_weight must have a number above 0"):
        nothing.sample(3, "dst", 4)


# ------------------------------------------------------------ files of clusters


def altered(file: Path, **changes: Any) -> None:
    with np.load(file) as found:
        content = {**found, **changes}
    np.savez(file, **{name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": np.zeros(30, np.int64)},
        {"labels": np.full(30, 7, np.int64)},
        {"labels": np.full(30, -1, np.int64)},
        {"labels": np.arange(30, dtype=np.float64) % 3},
        {"labels": np.arange(30)[:, None] % 3},
        {"labels": np.arange(29) % 3},
        {"num_clusters": np.arange(2)},
        {"num_clusters": np.float64(np.nan)},
        {"method": np.str_("metis")},
        {"graph": np.str_("x")},
        {"sha256": np.str_("0" * 64)},
        {"sha256": None},
    ],
    ids=lambda changes: f"{next(iter(changes))}",
)
def test_a_damaged_file_of_clusters_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    src = torch.arange(30)
    graph = gw.graph((src, (src + 1) % 30), num_nodes=30)
    file = tmp_path / "clusters.npz"
    made = ClusterSampler(graph, 3, method="labels", path=file)
    assert torch.equal(ClusterSampler(graph, 3, method="labels", path=file).labels, made.labels)
    altered(file, **changes)
    with pytest.raises(DataError, match=r"clusters\.npz (holds|is damaged).* Delete it, or name another"):
        ClusterSampler(graph, 3, path=file)


def test_clusters_beyond_their_number_are_refused_though_the_digest_is_right(tmp_path: Path) -> None:
    from graphweave.sampling.clusters import _digest

    src = torch.arange(30)
    graph = gw.graph((src, (src + 1) % 30), num_nodes=30)
    file = tmp_path / "clusters.npz"
    ClusterSampler(graph, 3, method="labels", path=file)
    labels = torch.arange(30) % 4
    altered(file, labels=labels.numpy(), sha256=np.str_(_digest(labels, 3, "labels")))
    with pytest.raises(DataError, match="clusters beyond 3"):
        ClusterSampler(graph, 3, path=file)
