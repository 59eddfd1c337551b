"""`options={"memory": ...}`: a step fits into so many bytes, in the fastest form that does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
from graphweave.core.byte_sizes import parse_bytes
from graphweave.core.errors import MemoryBudgetError, SettingsError
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

NODES, EDGES = 500, 4000


class Attention(nn.Module):
    """Layers whose scores and aggregates on nodes are saved, or computed again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = pyg.GATConv(16, 8, heads=4), pyg.GATConv(32, 8, heads=4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(nn.functional.elu(self.first(x, edge_index)), edge_index)


def _explained(model: nn.Module, memory: int | str, *args: Tensor) -> Any:
    return graphweave.explain(graphweave.compile(model, options={"memory": memory, "chunks": False}), *args)


@pytest.fixture
def args() -> tuple[Tensor, Tensor]:
    return features(NODES, 16).requires_grad_(), random_graph(NODES, NODES, EDGES)


def test_a_budget_that_is_large_enough_changes_nothing(args: tuple[Tensor, Tensor]) -> None:
    (found,) = _explained(Attention(), "1G", *args).budgets
    assert (found.budget, found.choice, found.slower) == (1 << 30, "the compiler's choice", 0)
    assert 0 < found.peak == found.unlimited < 1 << 22


def test_smaller_budgets_take_forms_that_keep_less(args: tuple[Tensor, Tensor]) -> None:
    model = Attention()
    (free,) = _explained(model, "1G", *args).budgets
    peak = free.peak
    for choice in ("recompute='sums'", "recompute='always'"):
        report = _explained(model, peak - 1, *args)
        (found,) = report.budgets
        assert found.choice == choice and found.peak < peak and found.unlimited == free.peak
        assert choice in report.text() and "of" in report.text()
        compiled = graphweave.compile(model, options={"memory": peak - 1, "chunks": False})
        assert_matches(compiled, model, *args, module=model)
        peak = found.peak


def test_sums_of_the_backward_alone_are_not_kept(args: tuple[Tensor, Tensor]) -> None:
    """The gradient of scores of destinations needs a sum of messages, which `auto` takes in the forward's walk."""
    model = Attention()
    reports = [graphweave.explain(graphweave.compile(model, options={"recompute": r}), *args) for r in ("auto", "sums")]
    kept = [sum(saved.bytes for graph in report.graphs for saved in graph.keeps) for report in reports]
    assert kept[1] < kept[0]
    assert_matches(graphweave.compile(model, options={"recompute": "sums"}), model, *args, module=model)


@pytest.mark.parametrize("door", ["graphweave", "plain"])
def test_what_is_possible_is_told(door: str, args: tuple[Tensor, Tensor]) -> None:
    model = Attention()
    options: dict[str, Any] = {"memory": 1000}
    compiled = (
        graphweave.compile(model, options=options)
        if door == "graphweave"
        else torch.compile(model, backend="graphweave", options=options)
    )
    said = r"must fit into 1 kB besides its arguments, and takes .*kB at least \(.*recompute='always'"
    with pytest.raises(MemoryBudgetError, match=said):
        compiled(*args)


def test_a_graph_that_no_longer_fits_is_compiled_anew(args: tuple[Tensor, Tensor]) -> None:
    model = Attention()
    (free,) = _explained(model, "1G", *args).budgets
    compiled = graphweave.compile(model, options={"memory": int(1.5 * free.peak)})
    graphweave.reset_counters()
    for scale in (1, 0.5, 1.2):
        n, e = int(scale * NODES), int(scale * EDGES)
        compiled(features(n, 16).requires_grad_(), random_graph(n, n, e)).sum().backward()
    assert graphweave.counters()["compilations"] == 1
    n, e = int(1.8 * NODES), int(1.8 * EDGES)
    larger = features(n, 16).requires_grad_(), random_graph(n, n, e)
    assert_matches(compiled, model, *larger, module=model)
    assert graphweave.counters()["compilations"] == 2


@pytest.mark.parametrize("wrong", [0, -1, "much", True, 1.5, ""])
def test_bad_budgets_are_refused(wrong: object) -> None:
    with pytest.raises(SettingsError, match="'memory' must be a number of bytes above 0"):
        graphweave.compile(Attention(), options={"memory": wrong})


def test_a_budget_and_tuning_are_not_combined() -> None:
    with pytest.raises(SettingsError, match="both choose a form"):
        graphweave.compile(Attention(), options={"memory": "1G", "schedule": "tune"})


def test_bytes_as_people_write_them() -> None:
    assert [parse_bytes("memory", text) for text in ("512", "2K", "3 MiB", "2GB")] == [
        512, 2048, 3 << 20, 2 << 30,
    ]  # fmt: skip
