"""Training over the parts of a graph on several processes equals training on the whole graph in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.rank_pool import RankPool, ranks
from tests.ranks_cases import (
    CLASSES,
    MODELS_OF_TYPES,
    counted,
    dropped,
    features_once,
    graph_of,
    loss_outside,
    stale_losses,
    trained_alike,
    types_alike,
    with_options,
)
from tests.support import by_default

TOLERANCE = 1e-7
"""Float64, sums in another order. Adam divides by gradients that are nearly zero, which magnifies differences."""

SHAPES = ["undirected", "nearest", "empty part", "one node", "no halo", "all halo", "no edges"]


@pytest.fixture(scope="module")
def two() -> Iterator[RankPool]:
    with ranks(2) as pool:
        yield pool


@pytest.fixture(scope="module")
def four() -> Iterator[RankPool]:
    with ranks(4) as pool:
        yield pool


def agree(pool: RankPool, name: str, kinds: list[str], size: int) -> None:
    check(pool.run(trained_alike, name, kinds, size))


def check(differences: list[list[tuple[str, str, float]]]) -> None:
    for rank, found in enumerate(differences):
        wrong = [f"{kind}: {what} differ by {error:.2g}" for kind, what, error in found if not error < TOLERANCE]
        assert not wrong, f"rank {rank}: {'; '.join(wrong)}"


@pytest.mark.parametrize("name", by_default(["GCN", "SAGE", "GAT", "batch norm"], "GAT"))
def test_two_ranks_train_as_one_process(two: RankPool, name: str) -> None:
    agree(two, name, ["nearest"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS_OF_TYPES)
def test_two_ranks_of_two_node_types_train_as_one_process(two: RankPool, name: str) -> None:
    check(two.run(types_alike, name, "mixed", 2))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["empty part", "a type each"])
@pytest.mark.parametrize("name", ["HGT", "HeteroConv"])
def test_node_types_on_parts_of_any_shape(two: RankPool, name: str, kind: str) -> None:
    check(two.run(types_alike, name, kind, 2))


@pytest.mark.slow
def test_a_loss_outside_of_the_model(two: RankPool) -> None:
    check(two.run(loss_outside, "nearest", 2))


@pytest.mark.slow
def test_ranks_drop_rows_independently_and_send_what_they_keep(two: RankPool) -> None:
    """A rank's halo rows are those that their owner has kept."""
    graph, found = graph_of("undirected", 2), two.run(dropped, 2)
    kept = torch.zeros_like(graph.x)
    for mine, _, own in found:
        kept[own] = mine
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert 0.3 < kept.count_nonzero() / kept.numel() < 0.7
    rows = min(len(own) for _, _, own in found)
    assert not torch.equal(found[0][0][:rows], found[1][0][:rows])
    src, dst = graph.edge_index
    wanted = torch.zeros_like(graph.x).index_add(0, dst, (graph.x * kept)[src])
    for _, sums, own in found:
        torch.testing.assert_close(sums, wanted[own])


def test_what_is_sent_is_counted(two: RankPool) -> None:
    """A step sends the halo rows of the second layer's products, 3 wide, and gets their gradients; the first layer's
    features are sent once and kept, and all weights' gradients are summed at once."""
    for counters, num_halo, num_sent in two.run(counted, "GCN", "nearest", 2, 4):
        assert num_halo != num_sent  # a directed graph
        assert counters["halo_bytes"] == (num_sent + num_halo) * CLASSES * 4
        assert counters["exchanges"] == 2
        assert counters["exchange_hits"] == 1
        assert counters["all_reduces"] == 2, "the loss, and all gradients"
        assert not counters["eager_fallbacks"] + counters["compilations"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GAT", "RGCN", "RGCN bases", "RGAT", "HGT"])
def test_all_gradients_of_weights_are_summed_at_once(two: RankPool, name: str) -> None:
    """Those of stacks with a matrix for each type, too."""
    for counters, _, _ in two.run(counted, name, "nearest", 2, 4):
        assert counters["all_reduces"] == 2, "the loss, and all gradients"


def test_rows_are_computed_while_others_travel(two: RankPool) -> None:
    """Of the second layer's kernel the rows that read no halo, and of its gradient's the own rows."""
    for counters, _, _ in two.run(counted, "GCN", "nearest", 2, 4):
        assert counters["overlapped_kernels"] == 2


def test_features_and_their_halo_rows_stand_in_memory_once(two: RankPool) -> None:
    for differences, behind, refused in two.run(features_once, 2):
        assert all(far < 1e-6 for _, _, far in differences), differences
        assert behind == [0.0, 0.0]
        assert refused


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GAT", "SAGE max"])
def test_divided_rows_while_others_travel(two: RankPool, name: str) -> None:
    agree(two, name, ["hub"], 2)


def test_halo_rows_in_half_the_bytes(two: RankPool) -> None:
    whole, half = (
        two.run(with_options, "SAGE", "undirected", 2, given) for given in ({}, {"halo_dtype": torch.bfloat16})
    )
    for (exact, full), (error, bytes_sent) in zip(whole, half, strict=True):
        assert exact < TOLERANCE
        assert TOLERANCE < error < 0.03  # of losses of about 1: bfloat16 keeps 8 bits of what other ranks' rows add
        assert bytes_sent * 4 == full  # the reference is float64


@pytest.mark.slow
def test_halo_rows_of_the_last_step_train_to_the_same_loss(two: RankPool) -> None:
    for exact, stale in two.run(stale_losses, "SAGE", "undirected", 2, 60):
        assert stale[0] == pytest.approx(exact[0])  # the first step waits
        assert abs(stale[1] - exact[1]) > 1e-9
        assert stale[-1] == pytest.approx(exact[-1], abs=0.1)
        assert stale[-1] < 0.5 * stale[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", ["GCN", "SAGE", "SAGE max", "GAT", "RGCN", "RGCN bases", "RGAT", "HGT"])
def test_every_model_trains_alike_on_parts_of_any_shape(two: RankPool, name: str, kind: str) -> None:
    agree(two, name, [kind], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GCN", "GAT", "RGCN"])
def test_four_ranks_train_as_one_process(four: RankPool, name: str) -> None:
    agree(four, name, ["undirected", "empty part"], 4)
