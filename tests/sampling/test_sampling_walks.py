"""Random walks: every step is an edge, drawn with its exact probability, and nothing but the seed decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave as gw
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.sampling import RandomWalker
from tests.programs.graphs import EdgeList, zoo
from tests.sampling.test_sampling_negatives import check

SRC, DST = [0, 0, 0, 0, 1, 2, 2, 3], [1, 2, 2, 3, 0, 0, 4, 2]
"""Node 4 leads nowhere; 0 leads to 2 twice."""


def small() -> gw.Graph:
    g = gw.graph((SRC, DST), num_nodes=5)
    g.edata["w"] = torch.tensor([1.0, 0.5, 0.0, 2.5, 1, 3, 1, 1])
    return g


def check_steps(nodes: Tensor, edges: Tensor, src: Tensor, dst: Tensor, num_nodes: int) -> None:
    """Every step goes along its edge, and a walk ends only where no edge leads on."""
    assert edges.shape == (nodes.shape[0], nodes.shape[1] - 1)
    went = edges >= 0
    assert torch.equal(nodes[:, :-1][went], src.long()[edges[went]])
    assert torch.equal(nodes[:, 1:][went], dst.long()[edges[went]])
    assert bool((nodes[:, 1:][~went] == -1).all())
    ended = nodes[:, :-1][~went & (nodes[:, :-1] >= 0)]
    assert bool((torch.bincount(src, minlength=num_nodes)[ended] == 0).all())


@pytest.mark.parametrize("graph", [g for g in zoo() if g.num_src and g.num_src == g.num_dst], ids=lambda g: g.name)
def test_every_step_is_an_edge(graph: EdgeList) -> None:
    g = gw.graph((graph.src, graph.dst), num_nodes=graph.num_src)
    nodes, edges = RandomWalker(g).walk(torch.arange(graph.num_src), 6)
    assert torch.equal(nodes[:, 0], torch.arange(graph.num_src))
    check_steps(nodes, edges, graph.src, graph.dst, graph.num_src)


@pytest.mark.parametrize("prob", [None, "w"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_steps_have_their_exact_probabilities(seed: int, prob: str | None) -> None:
    g = small()
    weights = torch.ones(8).double() if prob is None else g.edata["w"].double()
    nodes, edges = RandomWalker(g, prob=prob, seed=seed).walk(torch.zeros(8_000, dtype=torch.int64), 3)
    for step in range(3):
        for node in range(4):
            at = nodes[:, step] == node
            if int(at.sum()) > 300:
                share = weights * (torch.tensor(SRC) == node)
                check(torch.bincount(edges[at, step], minlength=8), share / share.sum())


def test_walks_depend_on_the_seed_the_epoch_and_the_starts_alone() -> None:
    g, start = gw.graph((torch.randint(500, (9_000,)), torch.randint(500, (9_000,)))), torch.arange(500)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 4):
            torch.set_num_threads(count)
            found.append(torch.cat(RandomWalker(g, restart=0.1, seed=3).walk(start, 12), 1))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    walker = RandomWalker(g, restart=0.1, seed=3)
    assert not torch.equal(torch.cat(walker.walk(start, 12, epoch=1), 1), found[0])
    assert not torch.equal(torch.cat(RandomWalker(g, restart=0.1, seed=4).walk(start, 12), 1), found[0])


def test_a_walk_ends_with_the_probability_of_a_restart() -> None:
    ring = gw.graph((torch.arange(10), (torch.arange(10) + 1) % 10))
    nodes, _ = RandomWalker(ring, restart=0.25).walk(torch.zeros(20_000, dtype=torch.int64), 5)
    lengths = (nodes >= 0).sum(1) - 2  # the first step is always taken
    keep = 0.75 ** torch.arange(5).double()
    check(torch.bincount(lengths, minlength=5), torch.cat([keep[:-1] * 0.25, keep[-1:]]))


def author_graph() -> gw.Graph:
    edges = {
        ("author", "writes", "paper"): ([0, 0, 1], [0, 1, 2]),
        ("paper", "by", "author"): ([0, 1, 2, 2], [1, 0, 1, 0]),
        ("paper", "in", "venue"): ([0, 1, 2], [0, 0, 1]),
    }
    return gw.heterograph(edges, {"author": 2, "paper": 3, "venue": 2})


def test_metapaths_repeat_where_they_can() -> None:
    g = author_graph()
    nodes, edges = RandomWalker(g, metapath=["writes", "by"]).walk([0, 1, 0], 5)
    for step in range(5):
        src, dst = g.edges(etype=("writes", "by")[step % 2])
        assert torch.equal(src[edges[:, step]], nodes[:, step]) and torch.equal(dst[edges[:, step]], nodes[:, step + 1])
    nodes, _ = RandomWalker(g, metapath=["writes", "in"]).walk([0, 1], 2)
    assert nodes[:, 2].tolist() == [0, 1]
    with pytest.raises(DataError, match="length must be at most 2"):
        RandomWalker(g, metapath=["writes", "in"]).walk([0], 3)
    with pytest.raises(DataError, match="cannot follow"):
        RandomWalker(g, metapath=["writes", "writes"])


@pytest.mark.parametrize(
    ("options", "start", "length", "complaint"),
    [
        ({"prob": "none"}, [0], 1, "have no field 'none'"),
        ({"restart": 1.0}, [0], 1, "restart must be a probability below 1"),
        ({"seed": 1.5}, [0], 1, "seed must be an integer"),
        ({"metapath": []}, [0], 1, "expected one relation at least"),
        ({}, [], 1, "start: expected one at least"),
        ({}, [0], 0, "length must be a positive integer"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], start: list[int], length: int, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        RandomWalker(small(), **options).walk(start, length)


def test_a_start_out_of_range_is_named() -> None:
    with pytest.raises(IndexRangeError, match="start: index 5 at position 1 is out of range for 5 nodes"):
        RandomWalker(small()).walk([0, 5], 2)
