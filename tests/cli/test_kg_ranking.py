"""Filtered ranks against their literal definition: ties, everything filtered, both directions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data import KnowledgeGraph, KnownTails, Ranking, families, filtered_ranks

Triple = tuple[int, int, int]


def literal_rank(score: list[float], triple: Triple, known: set[Triple]) -> float:
    """The mean of the places that the tail may take among the candidates, sorted by score."""
    head, rel, tail = triple
    candidates = [e for e in range(len(score)) if e == tail or (head, rel, e) not in known]
    higher = sum(score[e] > score[tail] for e in candidates)
    ties = sum(score[e] == score[tail] for e in candidates)
    places = range(higher + 1, higher + ties + 1)
    return sum(places) / len(places)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, int]:
    """Scores [B, N] of few different values, queries [B, 3], known triples [T, 3] with duplicates, relations."""
    nodes, rels = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    node = st.integers(0, nodes - 1)
    triple = st.tuples(node, st.integers(0, rels - 1), node)
    queries = draw(st.lists(triple, max_size=7))
    known = draw(st.lists(triple, max_size=30))
    value = st.sampled_from([-1.5, -0.25, 0.0, 0.5, 2.0, -math.inf, math.inf])
    scores = draw(
        st.lists(st.lists(value, min_size=nodes, max_size=nodes), min_size=len(queries), max_size=len(queries))
    )
    return (
        torch.tensor(scores).reshape(-1, nodes),
        torch.tensor(queries, dtype=torch.int64).reshape(-1, 3),
        torch.tensor(known, dtype=torch.int64).reshape(-1, 3),
        rels,
    )


@given(rankings())
def test_ranks_are_the_literal_ones(case: tuple[Tensor, Tensor, Tensor, int]) -> None:
    scores, queries, triples, rels = case
    known: set[Triple] = {tuple(row) for row in triples.tolist()}  # type: ignore[misc]
    wanted = [literal_rank(score, tuple(q), known) for score, q in zip(scores.tolist(), queries.tolist(), strict=True)]
    assert filtered_ranks(scores, queries, KnownTails.of(triples, rels)).tolist() == wanted


def test_all_alike_is_the_middle() -> None:
    queries, none = torch.tensor([[0, 0, 2]]), torch.empty((0, 3), dtype=torch.int64)
    assert filtered_ranks(torch.zeros(1, 9), queries, KnownTails.of(none, 1)).tolist() == [5.0]


def test_a_tail_alone_among_what_is_left_is_first() -> None:
    """All other candidates are known to be true, so the tail ranks first even with the worst score."""
    everything = torch.tensor([[1, 0, e] for e in range(5)])
    scores = torch.tensor([[3.0, 1.0, -2.0, 7.0, 4.0]])
    assert filtered_ranks(scores, torch.tensor([[1, 0, 2]]), KnownTails.of(everything, 1)).tolist() == [1.0]
    of_another_head = everything + torch.tensor([3, 0, 0])
    assert filtered_ranks(scores, torch.tensor([[1, 0, 2]]), KnownTails.of(of_another_head, 1)).tolist() == [5.0]


def test_heads_are_ranked_as_tails_of_the_inverse() -> None:
    """The definition over heads: the rank of e among all (e, r, t) that are not known, read from one score table."""
    kg = families(count=2, seed=3)
    known = {tuple(row) for row in torch.cat([kg.train, kg.valid, kg.test]).tolist()}
    queries = kg.both_ways(kg.test)
    scores = torch.randn(len(queries), kg.num_nodes, generator=torch.Generator().manual_seed(1)).round()
    ranks = filtered_ranks(scores, queries, KnownTails.of(kg.everything(), 2 * kg.num_rels)).tolist()
    for i, (head, rel, tail) in enumerate(kg.test.tolist()):
        tails = {t for h, r, t in known if (h, r) == (head, rel)}
        heads = {h for h, r, t in known if (r, t) == (rel, tail)}
        for row, own, filtered in ((i, tail, tails), (i + len(kg.test), head, heads)):
            candidates = [e for e in range(kg.num_nodes) if e == own or e not in filtered]
            score = scores[row]
            higher = sum(float(score[e]) > float(score[own]) for e in candidates)
            equal = sum(float(score[e]) == float(score[own]) for e in candidates) - 1
            assert ranks[row] == 1 + higher + equal / 2


def test_nan_has_no_rank() -> None:
    scores = torch.tensor([[1.0, 2.0], [0.0, math.nan]])
    queries = torch.tensor([[0, 0, 0], [0, 0, 0]])
    with pytest.raises(DataError, match="got NaN"):
        filtered_ranks(scores, queries, KnownTails.of(queries, 1))


def test_what_is_reported() -> None:
    found = Ranking.of(torch.tensor([1.0, 2.5, 10.0, 40.0], dtype=torch.float64))
    assert found == Ranking((1 + 0.4 + 0.1 + 0.025) / 4, 0.25, 0.5, 0.75)
    assert math.isnan(Ranking.of(torch.empty(0, dtype=torch.float64)).mrr)


def test_known_tails_are_without_duplicates() -> None:
    known = KnownTails.of(torch.tensor([[1, 1, 0], [0, 1, 2], [1, 1, 0], [0, 1, 1]]), 2)
    row, tail = known.pairs(torch.tensor([1, 0, 0, 1]), torch.tensor([1, 0, 1, 1]))
    assert list(zip(row.tolist(), tail.tolist(), strict=True)) == [(0, 0), (2, 1), (2, 2), (3, 0)]


def test_both_ways() -> None:
    triples = torch.tensor([[0, 1, 2], [2, 0, 2]])
    kg = KnowledgeGraph(triples, triples[:0], triples[:1], 3, 2, "small")
    assert kg.both_ways(triples).tolist() == [[0, 1, 2], [2, 0, 2], [2, 3, 0], [2, 2, 2]]
    assert len(kg.everything()) == 6
