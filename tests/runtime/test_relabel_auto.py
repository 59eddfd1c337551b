"""relabel="auto": an order of nodes is made only where measuring says that it pays, and features are reordered once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core import locality
from graphweave.core.locality import fresh_share, places_of
from graphweave.runtime.reordered import RowsInOrder
from graphweave.tuning import order
from graphweave.tuning.machine import Caches
from tests.support import assert_matches, features

NODES = 4000


def gathered(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src] * 2)


def ring(steps: int = 8) -> Tensor:
    """Each node has edges from the nodes next to it, and nodes have random numbers: an order wins all back."""
    start = torch.arange(NODES).repeat_interleave(steps)
    ends = torch.stack([(start + 1 + torch.arange(steps).repeat(NODES)) % NODES, start])
    return torch.randperm(NODES, generator=torch.Generator().manual_seed(1))[ends]


def at_random(steps: int = 8) -> Tensor:
    return torch.randint(NODES, (2, NODES * steps), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features do not fit into the caches, and a row from memory costs so much that an order pays if it helps."""
    monkeypatch.setattr(order, "caches", lambda: Caches(1 << 12, 1 << 16))
    monkeypatch.setattr(order, "seconds_a_line", lambda: 1e-5)


def costs(edges: Tensor) -> str:
    compiled = graphweave.compile(gathered, options={"relabel": "auto"})
    x = features(NODES, 32)
    said = graphweave.explain(compiled, x, *edges).text("costs")
    torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges), rtol=1e-4, atol=1e-4)
    return said


def test_the_fresh_share_is_that_of_a_cache_of_rows() -> None:
    """Against a cache of the last rows, simulated edge by edge."""
    for edges in (ring(), at_random()):
        by_row = edges[:, edges[1].argsort(stable=True)]
        held, cache, missed = 400, dict[int, None](), 0
        for row in by_row[0].tolist():
            missed += row not in cache
            cache.pop(row, None)
            cache[row] = None
            if len(cache) > held:
                del cache[next(iter(cache))]
        share = fresh_share(edges[1], edges[0], NODES, held)
        assert share == pytest.approx(missed / edges.shape[1], abs=0.08)
    near = places_of(*ring(), NODES, "locality")[ring()]
    assert fresh_share(near[1], near[0], NODES, 400) < 0.2 < 0.7 < fresh_share(ring()[1], ring()[0], NODES, 400)
    assert fresh_share(edges[1, :0], edges[0, :0], NODES, 400) == 0


@pytest.mark.usefixtures("small_caches")
def test_an_order_is_chosen_where_it_pays() -> None:
    assert "relabel: locality, by locality gains" in costs(ring())


@pytest.mark.usefixtures("small_caches")
def test_a_graph_without_neighbourhoods_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "seconds_a_line", lambda: 3e-8)
    assert "relabel: no order, by locality gains" in costs(at_random())


@pytest.mark.usefixtures("small_caches")
def test_no_order_is_made_where_it_cannot_pay_within_ten_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "seconds_a_line", lambda: 1e-10)
    made = []
    monkeypatch.setattr(order, "places_of", lambda *given, **options: made.append(given))
    assert "relabel: no order, at most 0.0 ms of a step" in costs(ring())
    assert not made


def test_features_that_fit_into_the_caches_stay() -> None:
    assert "relabel: no order, the rows that edges gather fit into the caches" in costs(ring())


@pytest.mark.usefixtures("small_caches")
def test_the_order_that_was_judged_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [], locality._places
    monkeypatch.setattr(locality, "_places", lambda *given: made.append(given) or make(*given))
    edges, x = ring(), features(NODES, 32)
    compiled = graphweave.compile(gathered, options={"relabel": "auto"})
    torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges), rtol=1e-4, atol=1e-4)
    assert len(made) == 1


@pytest.mark.usefixtures("small_caches")
def test_indices_out_of_range_are_named_as_the_user_wrote_them() -> None:
    compiled, edges = graphweave.compile(gathered, options={"relabel": "auto"}), ring()
    edges[0, 5] = NODES
    with pytest.raises(graphweave.core.errors.IndexRangeError, match=f"src: index {NODES} at position 5"):
        compiled(features(NODES, 32), *edges)


@pytest.mark.usefixtures("small_caches")
def test_a_model_in_another_order_trains_alike() -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return gathered(self.b(gathered(self.a(x), *edge_index).relu()), *edge_index)

    torch.manual_seed(1)
    model = Layers()
    compiled = graphweave.compile(model, options={"relabel": "auto"})
    assert_matches(compiled, model, features(NODES, 32), ring(2), module=model, label="ring")


def test_unchanged_features_are_reordered_once_and_edits_are_noticed() -> None:
    compiled = graphweave.compile(gathered, options={"relabel": "degree"})
    x, edges = features(50, 4), ring()[:, :100] % 50

    def reorderings() -> int:
        before = graphweave.counters()["reorderings"]
        torch.testing.assert_close(compiled(x, *edges), gathered(x, *edges))
        return graphweave.counters()["reorderings"] - before

    assert [reorderings() for _ in range(4)] == [1, 1, 0, 0]  # kept from the second call on
    x[3] += 1
    assert [reorderings() for _ in range(3)] == [1, 1, 0]
    x.numpy()[4] += 1  # PyTorch does not see this
    assert [reorderings() for _ in range(2)] == [1, 0]
    x = x.clone()
    assert reorderings() == 1


def test_features_that_are_trained_are_not_kept() -> None:
    compiled = graphweave.compile(gathered, options={"relabel": "degree"})
    x, edges = features(50, 4).requires_grad_(), ring()[:, :100] % 50
    for _ in range(3):
        before = graphweave.counters()["reorderings"]
        compiled(x, *edges).sum().backward()
        assert graphweave.counters()["reorderings"] == before


def test_what_is_kept_is_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = RowsInOrder()
    index = torch.tensor([2, 0, 1])
    x = features(3, 4)
    first, second, third = kept(x, index), kept(x, index), kept(x, index)
    assert first.data_ptr() != second.data_ptr() == third.data_ptr()
    assert torch.equal(third, x[index])
    with torch.inference_mode():
        y = features(3, 4)
        assert kept(y, index).data_ptr() != kept(y, index).data_ptr()  # has no version, so it is never kept
    kept.clear()
    assert kept(x, index).data_ptr() != third.data_ptr()
