"""Maps that each call computes from data, such as the rows that a pooling layer keeps, cost as little as they can."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.analysis.flow import Flow
from graphweave.compiler.plan import Plan
from graphweave.core.types import DType
from graphweave.execute.executable import Executable
from graphweave.ir.message.nodes import MapOf, Program, Pull, Type
from tests.support import assert_matches, awkward_graphs, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

W = 5


def pooled(x: Tensor, edge_index: Tensor, score: Tensor) -> Tensor:
    """Rows with a positive score, and the sums of their neighbours among them."""
    kept = (x @ score).detach().sort(descending=True).indices
    kept = kept[((x @ score).detach()[kept] > 0).nonzero().view(-1)]
    rows = x[kept] * (x @ score)[kept].tanh()[:, None]
    place = kept.new_full((x.shape[0],), -1).index_put((kept,), torch.arange(kept.shape[0]))
    src, dst = place[edge_index[0]], place[edge_index[1]]
    both = (src >= 0) & (dst >= 0)
    return rows + torch.zeros_like(rows).index_add(0, dst[both], rows.index_select(0, src[both]))


def program_of_forward(monkeypatch: pytest.MonkeyPatch) -> Program:
    """The forward program of `pooled`, compiled with a backward."""
    made: list[Plan] = []
    original = Executable.__init__

    def init(self: Executable, plan: Plan, *args: Any, **options: Any) -> None:
        made.append(plan)
        original(self, plan, *args, **options)

    monkeypatch.setattr(Executable, "__init__", init)
    x, score = features(30, W).requires_grad_(), features(W, 1, seed=3).view(-1)
    graphweave.compile(pooled)(x, random_graph(30, 30, 90), score).sum().backward()
    return next(plan.program for plan in made if plan.name.half == "forward")


def test_pooling_equals_eager() -> None:
    score = features(W, 1, torch.float64, seed=3).view(-1)
    compiled = graphweave.compile(pooled)
    for graph in awkward_graphs():
        x = features(graph.num_nodes, W, torch.float64)
        assert_matches(compiled, pooled, x, graph.edge_index, score, label=graph.name)


def test_no_map_is_composed_of_maps_that_depend_on_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of sources are pulled from the rows that were kept. To pull them from all rows would take indices that
    are gathered, and grouped, at each call. The integers that are gathered are those that the function gathers itself:
    five."""
    forward = program_of_forward(monkeypatch)
    integers = [t for n, t in zip(forward.nodes, forward.types, strict=True) if isinstance(n, Pull)]
    assert [t.dtype for t in integers if isinstance(t, Type)].count(DType.i64) == 5


def test_no_position_is_searched_for_negative_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sort and a mask give leads from the start: no call looks whether it counts from the end."""
    program = program_of_forward(monkeypatch)
    given = Flow(program).graph_only
    assert {n.wrap for n in program.nodes if isinstance(n, MapOf) and n.index not in given} == {False}
