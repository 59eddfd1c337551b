"""Training over the parts of a graph on several processes equals training on the whole graph in one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ranks_cases import trained_alike
from tests.ranks_support import RankPool, ranks

TOLERANCE = 1e-12
"""Float64, on graphs of some dozen edges: sums in another order."""

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
    for rank, found in enumerate(pool.run(trained_alike, name, kinds, size)):
        wrong = [f"{kind}: {what} differ by {error:.2g}" for kind, what, error in found if not error < TOLERANCE]
        assert not wrong, f"rank {rank}: {'; '.join(wrong)}"


@pytest.mark.parametrize("name", ["GCN", pytest.param("SAGE", marks=pytest.mark.slow), "GAT"])
def test_two_ranks_train_as_one_process(two: RankPool, name: str) -> None:
    agree(two, name, ["nearest"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("name", ["GCN", "SAGE", "SAGE max", "GAT", "RGCN", "RGCN bases"])
def test_every_model_trains_alike_on_parts_of_any_shape(two: RankPool, name: str, kind: str) -> None:
    agree(two, name, [kind], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GCN", "GAT", "RGCN"])
def test_four_ranks_train_as_one_process(four: RankPool, name: str) -> None:
    agree(four, name, ["undirected", "empty part"], 4)
