"""Negative edges: none is an edge, each has its exact probability, and what cannot be drawn is an error."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

import graphweave as gw
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.sampling import NegativeSampler
from tests.programs.graphs import EdgeList, zoo

SRC = [0, 0, 0, 1, 2, 2, 2, 3, 3]
DST = [0, 1, 1, 3, 0, 2, 3, 1, 2]


def small() -> gw.Graph:
    return gw.graph((SRC, DST), num_nodes=5)


def edges() -> Tensor:
    """bool [5, 5]"""
    found = torch.zeros(5, 5, dtype=torch.bool)
    found[SRC, DST] = True
    return found


def check(seen: Tensor, share: Tensor) -> None:
    """Chi-square of counts against probabilities."""
    assert bool((seen[share == 0] == 0).all())
    seen, expected = seen[share > 0].double(), float(seen.sum()) * share[share > 0]
    statistic = float(((seen - expected) ** 2 / expected).sum())
    if seen.numel() > 1:  # else one outcome alone has a probability, and no other was seen
        assert chi2.sf(statistic, seen.numel() - 1) > 1e-4


def shares(by: str, filtered: bool) -> Tensor:
    """float64 [5, 5]: the probability of a destination, given the source."""
    weights = (
        torch.bincount(torch.tensor(DST), minlength=5).double() ** 0.75 if by == "degree" else torch.ones(5).double()
    )
    allowed = weights * (~edges() if filtered else torch.ones(5, 5))
    return allowed / allowed.sum(1, keepdim=True)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("filtered", [True, False])
@pytest.mark.parametrize("by", ["uniform", "degree"])
def test_destinations_have_their_exact_probabilities(by: str, filtered: bool, seed: int) -> None:
    sampler = NegativeSampler(small(), by=by, filtered=filtered, seed=seed)
    drawn = sampler.destinations(torch.arange(5), 8_000)
    for row, share in enumerate(shares(by, filtered)):
        check(torch.bincount(drawn[row], minlength=5), share)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pairs_without_an_edge_are_equally_likely(seed: int) -> None:
    src, dst = NegativeSampler(small(), seed=seed).pairs(20_000)
    free = (~edges()).double().reshape(-1)
    check(torch.bincount(src * 5 + dst, minlength=25), free / free.sum())


@pytest.mark.parametrize("by", ["uniform", "degree"])
@pytest.mark.parametrize("graph", [g for g in zoo() if g.num_src and g.num_dst], ids=lambda g: g.name)
def test_no_negative_is_an_edge(graph: EdgeList, by: str) -> None:
    num = {"u": graph.num_src, "v": graph.num_dst}
    sampler = NegativeSampler(gw.heterograph({("u", "e", "v"): (graph.src, graph.dst)}, num), by=by)
    joined = torch.zeros(graph.num_src, graph.num_dst, dtype=torch.bool)
    joined[graph.src, graph.dst] = True
    can = ~joined & (torch.bincount(graph.dst, minlength=graph.num_dst) > 0) if by == "degree" else ~joined
    for row in range(graph.num_src):
        if bool(can[row].any()):
            assert bool(can[row][sampler.destinations(torch.tensor([row]), 20)].all())
        else:
            with pytest.raises(DataError, match="a negative edge was asked for where"):
                sampler.destinations(torch.tensor([row]), 20)


def test_draws_are_functions_of_seed_epoch_and_sources() -> None:
    rows = torch.arange(5)
    first = NegativeSampler(small(), seed=1).destinations(rows, 50)
    assert torch.equal(first, NegativeSampler(small(), seed=1).destinations(rows, 50))
    assert not torch.equal(first, NegativeSampler(small(), seed=1).destinations(rows, 50, epoch=1))
    assert not torch.equal(first, NegativeSampler(small(), seed=2).destinations(rows, 50))


def test_what_cannot_be_drawn_is_one_clear_error() -> None:
    with pytest.raises(DataError, match="expected by='uniform' or 'degree'"):
        NegativeSampler(small(), by="weight")  # type: ignore[arg-type]
    with pytest.raises(IndexRangeError, match="index 5 at position 0 is out of range for 5 nodes"):
        NegativeSampler(small()).destinations(torch.tensor([5]), 1)
    with pytest.raises(DataError, match="no pairs without an edge"):
        NegativeSampler(gw.graph(([0], [0]))).pairs(1)
