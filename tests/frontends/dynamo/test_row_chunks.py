"""`options={"chunks": True}`: chains of row-wise work run for chunks of rows, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.execute import row_chunks
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

WIDE = 320  # products this wide are calls of PyTorch


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_chunks, "CHUNK_BYTES", 0)
    monkeypatch.setattr(row_chunks, "MIN_ROWS", 7)


class Wide(nn.Module):
    """Two GIN layers, whose hidden rows are much wider than what they are made of and what they give."""

    def __init__(self, wide: int = WIDE) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (
            pyg.GINConv(nn.Sequential(nn.Linear(16, wide), nn.ReLU(), nn.Linear(wide, 16)), train_eps=True)
            for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(nn.functional.elu(self.first(x, edge_index)), edge_index)


def _args(nodes: int, edges: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return features(nodes, 16, dtype).requires_grad_(), random_graph(nodes, nodes, edges)


def _memory(model: nn.Module, options: dict[str, Any], *args: Tensor) -> Any:
    return graphweave.explain(graphweave.compile(model, options=options), *args)


DOORS = ("graphweave", "plain")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("size", by_default([(50, 200), (1, 1), (3, 0), (0, 0), (7, 20), (8, 9)], (50, 200)))
def test_results_and_gradients_are_those_of_eager_mode(door: str, size: tuple[int, int]) -> None:
    model, options = Wide(), {"chunks": True}
    compiled = (
        graphweave.compile(model, options=options)
        if door == "graphweave"
        else torch.compile(model, backend="graphweave", options=options)
    )
    assert_matches(compiled, model, *_args(*size), module=model)


@pytest.mark.parametrize("wide", by_default([1, 31, 33, WIDE], WIDE))
@pytest.mark.parametrize("recompute", by_default(["auto", "always", "never"], "always"))
def test_other_policies_and_widths(wide: int, recompute: str) -> None:
    model = Wide(wide).double()
    compiled = graphweave.compile(model, options={"chunks": True, "recompute": recompute})
    assert_matches(compiled, model, *_args(40, 160, torch.float64), module=model)


def test_wide_rows_exist_for_one_chunk_alone() -> None:
    """Neither half has the hidden rows of all nodes, which are 40 times as wide as what is saved."""
    model, args, hidden = Wide(), _args(2000, 6000), 2000 * WIDE * 4
    whole, chunks = (_memory(model, {"chunks": on}, *args) for on in (False, True))
    peaks = [max(note.during for g in report.graphs for note in g.memory) for report in (whole, chunks)]
    assert peaks[0] > 2 * hidden and peaks[1] < hidden
    steps = [note.step for graph in chunks.graphs for note in graph.memory if note.step.startswith("in chunks")]
    assert len(steps) >= 4


def test_inference_runs_in_chunks() -> None:
    model, args = Wide(), _args(2000, 6000)
    with torch.no_grad():
        report = _memory(model, {"chunks": True}, *args)
        assert max(note.during for g in report.graphs for note in g.memory) < 2000 * WIDE * 4
        compiled = graphweave.compile(model, options={"chunks": True})
        assert torch.allclose(compiled(*args), model(*args), atol=1e-4)


def test_rows_that_need_each_other_stay_whole() -> None:
    """Statistics of a batch need all rows, so nothing that reads them shares a chunk with what they are made of."""
    model = nn.Sequential(nn.Linear(16, WIDE), nn.BatchNorm1d(WIDE), nn.ReLU(), nn.Linear(WIDE, 16))

    def normed(x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], model(x)[edge_index[0]])

    compiled = graphweave.compile(normed, options={"chunks": True})
    assert_matches(compiled, normed, *_args(40, 160), module=model)


@pytest.mark.slow
def test_every_call_is_compared_with_eager_mode() -> None:
    model = Wide()
    compiled = graphweave.compile(model, options={"chunks": True, "verify": True})
    compiled(*_args(40, 160)).sum().backward()


def test_draws_stay_outside_of_chunks() -> None:
    """A random mask depends on the place of a row among all."""
    model = nn.Sequential(nn.Linear(16, WIDE), nn.ReLU(), nn.Dropout(0.5), nn.Linear(WIDE, 16))

    def dropped(x: Tensor, edge_index: Tensor) -> Tensor:
        return model(torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))

    args = _args(40, 160)
    results = []
    for chunks in (False, True):
        torch.manual_seed(3)
        results.append(graphweave.compile(dropped, options={"chunks": chunks})(*args))
    assert torch.allclose(*results, atol=1e-5)


def test_a_budget_asks_for_chunks() -> None:
    model, args = Wide(), _args(2000, 6000)
    fixed = {"merge": False, "compact": False, "recompute": "auto"}
    (free,) = _memory(model, {"memory": "1G", **fixed}, *args).budgets
    report = _memory(model, {"memory": free.peak // 3, **fixed}, *args)
    (found,) = report.budgets
    assert "chunks=True" in found.choice and found.peak <= free.peak // 3
    assert "chunks=True" in report.text()
