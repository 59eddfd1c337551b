"""The parts of the tuner: buckets, predictions, candidates, races, and the forms of a relational model."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.schedule import Schedule
from graphweave.core.types import Space
from graphweave.tuning import search, store
from graphweave.tuning.bucket import GraphShape
from graphweave.tuning.candidates import candidates, combined
from graphweave.tuning.deadline import Deadline, OutOfTime
from graphweave.tuning.machine import Caches, caches
from graphweave.tuning.predict import Walk, predicted
from graphweave.tuning.race import race

CACHES = Caches(1 << 20, 32 << 20)


def walk(sources: int = 1_000_000, width: int = 256, edges: int = 10_000_000) -> Walk:
    return Walk(100_000, edges, sources, 4 * width, 4 * width, 0, width)


def shape(rows: int = 1000, degree: int = 100, near: float = 0.1) -> GraphShape:
    return GraphShape({Space("V0"): rows}, (degree,), (near,))


def test_similar_graphs_share_a_bucket() -> None:
    assert shape(1000).bucket() == shape(1100).bucket()
    assert shape(1000).bucket() != shape(4000).bucket()
    assert shape(degree=100).bucket() == shape(degree=90).bucket() != shape(degree=1000).bucket()
    assert shape(near=0.1).bucket() == shape(near=0.4).bucket() != shape(near=0.9).bucket()
    assert shape(near=0.9).is_local and not shape(near=0.1).is_local
    assert not GraphShape({}, (), ()).is_local and GraphShape({}, (), ()).bucket()


def test_ranges_and_tiles_pay_only_beyond_a_cache() -> None:
    far, near = [walk()], [walk(sources=500)]
    for schedule in (Schedule(source_partitions=32), Schedule(feature_tile=16)):
        assert predicted(near, schedule, CACHES, 1) > predicted(near, Schedule(), CACHES, 1)
    assert predicted(far, Schedule(source_partitions=32), CACHES, 1) < predicted(far, Schedule(), CACHES, 1)
    assert predicted(far, Schedule(prefetch=0), CACHES, 1) > predicted(far, Schedule(), CACHES, 1)
    assert predicted(far, Schedule(), CACHES, 2) == predicted(far, Schedule(), CACHES, 1) / 2


def test_the_cost_model_prunes() -> None:
    far = candidates([walk()], CACHES, 2, is_local=False)
    near = candidates([walk(sources=500)], CACHES, 2, is_local=False)
    assert any(s.source_partitions for s in far) and Schedule(row_order="locality") in far
    assert not any(s.source_partitions for s in near) and Schedule(row_order="locality") not in near
    assert Schedule(row_order="locality") not in candidates([walk()], CACHES, 2, is_local=True)
    tiles = [s for s in far if s.source_partitions or s.feature_tile or s.register_tile]
    prices = [predicted([walk()], s, CACHES, 2) for s in tiles]
    assert prices == sorted(prices) and len(tiles) <= 4
    assert candidates([], CACHES, 2, is_local=False) == () == candidates([walk(edges=0)], CACHES, 2, is_local=False)


def test_winners_are_combined_unless_they_contradict() -> None:
    prefetch, tile, rows = Schedule(prefetch=4), Schedule(feature_tile=8), Schedule(walk="rows")
    assert list(combined([prefetch, tile])) == [Schedule(prefetch=4, feature_tile=8)]
    assert list(combined([prefetch, Schedule(prefetch=8)])) == []
    assert list(combined([rows, Schedule(source_partitions=2), prefetch])) == [Schedule(walk="rows", prefetch=4)]
    assert list(combined([])) == list(combined([tile])) == []


def test_caches_of_this_machine_are_plausible() -> None:
    assert (64 << 10) <= caches().second <= caches().last <= (4 << 30)


# ---------------------------------------------------------------- races


class Clock:
    """Stands for the clock of races, which then depend on nothing but their calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def call(self, seconds: float, ran: list[str], name: str) -> Callable[[], None]:
        """A call that takes so many seconds."""

        def taking() -> None:
            ran.append(name)
            self.now += seconds

        return taking


def test_slow_calls_are_dropped_early_and_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    clock = Clock(monkeypatch)
    seconds = {"own": 0.006, "fast": 0.002, "slow": 0.02}
    calls = {name: clock.call(s, ran, name) for name, s in seconds.items()}
    times = race(calls, dict(seconds), Deadline(60, clock.now), "own")
    assert times == pytest.approx({"own": 0.006, "fast": 0.002})
    assert ran.count("slow") == 1 < ran.count("fast")


def test_a_race_ends_with_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    clock = Clock(monkeypatch)
    deadline = Deadline(0.1, clock.now)
    times = race({"own": clock.call(0.04, ran, "own")}, {"own": 0.04}, deadline, "own")
    assert deadline.passed <= 0.1 and len(ran) == 2 and times["own"] == pytest.approx(0.04)
    with pytest.raises(OutOfTime, match=r"5\.00 s were needed"):
        deadline.allow(5)


# ---------------------------------------------------------------- forms


def typed(x: Tensor, weight: Tensor, att: Tensor, src: Tensor, dst: Tensor, kind: Tensor) -> Tensor:
    """A layer of RGAT without its softmax."""
    message = torch.bmm(x[src].unsqueeze(1), weight[kind]).squeeze(1)
    score = torch.tanh((message * att[kind]).sum(1, keepdim=True))
    return torch.zeros_like(x).index_add(0, dst, score * message)


def test_forms_of_a_relational_model_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(store, "directory", lambda: tmp_path)
    monkeypatch.setattr(search, "candidates", lambda *_: ())
    generator = torch.Generator().manual_seed(0)
    src, dst = (torch.randint(50, (2000,), generator=generator) for _ in range(2))
    kind = torch.randint(3, (2000,), generator=generator).sort().values
    given = [torch.randn(*size, generator=generator) for size in ((50, 16), (3, 16, 16), (3, 16))]
    own = [t.clone().requires_grad_() for t in given]
    exact = [t.double().requires_grad_() for t in given]
    raced: list[set[str]] = []

    def watched(calls: dict[str, Callable[[], object]], *rest: object) -> dict[str, float]:
        """A race that the form with nothing on wins; others are equal to it, or to what the cost model chooses."""
        raced.append(set(calls))
        return {name: 0.5 if name in ("tuned", "{'compact': False, 'reorder': False}") else 1.0 for name in calls}

    monkeypatch.setattr(search, "race", watched)
    made = graphweave.tune(typed, *own, src, dst, kind, budget=120)
    assert {"untuned", "{'compact': False, 'reorder': False}"} in raced
    out, want = made(*own, src, dst, kind), typed(*exact, src, dst, kind)
    out.pow(2).sum().backward()
    want.pow(2).sum().backward()
    for got, right in zip((out, *(t.grad for t in own)), (want, *(t.grad for t in exact)), strict=True):
        assert got is not None and right is not None
        assert (got.double() - right).abs().max() <= 1e-5 * right.abs().max()
    (note,) = graphweave.explain(made, *own, src, dst, kind).tunings
    assert note.stored and note.choice == "compact=False, reorder=False"
    kept = graphweave.tune(typed, *own, src, dst, kind, options={"compact": True})
    (note,) = graphweave.explain(kept, *own, src, dst, kind).tunings
    assert "compact=False" not in note.choice, "an option that the user gave is not tuned"
