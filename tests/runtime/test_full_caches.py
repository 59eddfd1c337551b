"""Caches that are too small for the graphs in use: results are right, formats are made again, and it is told."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.counters import counters, reset_counters
from graphweave.core.settings import GIB, Settings, override
from graphweave.runtime import formats
from graphweave.runtime.index import Index

NODES, EDGES = 500, 40_000
"""More edges than a segment keeps formats of without a record (`kSmall` in `native/segments.cpp`)."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    formats.clear()
    reset_counters()


def total(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src].sin())


def graph(seed: int) -> tuple[Tensor, Tensor]:
    src, dst = torch.randint(NODES, (2, EDGES), generator=torch.Generator().manual_seed(seed))
    return src, dst


def builds_of_a_step(src: Tensor, dst: Tensor) -> int:
    """Formats that a step makes which is not the first on its graph; its gradient is compared with eager mode's."""
    step = graphweave.compile(total)
    x = torch.randn(NODES, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
    before = 0
    for _ in range(3):
        before, x.grad = counters()["format_builds"], None
        step(x, src, dst).square().sum().backward()
    wide = x.detach().double().requires_grad_()
    total(wide, src, dst).square().sum().backward()
    assert x.grad is not None and wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=1e-4, atol=1e-4)
    return counters()["format_builds"] - before


def test_formats_that_fit_are_made_once() -> None:
    assert builds_of_a_step(*graph(0)) == 0
    assert counters()["live_drops"] == 0


def test_formats_of_a_graph_in_use_that_do_not_fit_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bound = 8 * EDGES + 1234  # one index and a little more
    with override(format_bytes=bound), caplog.at_level(logging.WARNING):
        assert builds_of_a_step(*graph(0)) > 0
    assert counters()["live_drops"] > 1
    told = [record.getMessage() for record in caplog.records if "GRAPHWEAVE_FORMAT_BYTES" in record.getMessage()]
    assert len(told) == 1 and f"{bound:,} bytes" in told[0]


def test_formats_of_graphs_that_are_gone_make_room_in_silence() -> None:
    with override(format_bytes=4 * 12 * EDGES):
        for seed in range(12):
            formats.flat(Index(graph(seed)[0], NODES))
    assert counters()["live_drops"] == 0


def test_native_code_forgets_an_index_that_is_too_large_to_be_kept() -> None:
    """It found the record by address for ever, with its formats, also when another index lay there."""
    index = Index(graph(0)[0], NODES)
    with override(format_bytes=8 * EDGES - 1):
        for calls in (1, 2):
            formats.flat(index)
            assert counters()["format_builds"] == calls
    assert counters()["live_drops"] >= 2


def test_a_bound_of_zero_keeps_nothing_by_intention(caplog: pytest.LogCaptureFixture) -> None:
    with override(format_bytes=0), caplog.at_level(logging.WARNING):
        assert builds_of_a_step(*graph(0)) > 0
    assert counters()["live_drops"] == 0 and not caplog.records


@pytest.mark.parametrize(("memory", "bound"), [(0, GIB), (2 * GIB, GIB), (24 * GIB, 6 * GIB), (1024 * GIB, 256 * GIB)])
def test_the_bound_is_a_quarter_of_the_memory(memory: int, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphweave.core.settings._memory_bytes", lambda: memory)
    assert Settings().format_bytes == bound
