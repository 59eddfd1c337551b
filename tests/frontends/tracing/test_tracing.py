"""A frame that PyTorch cannot trace runs as Python, is reported and counted, and has no effect twice."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import Tensor, nn

import graphweave
from graphweave.core.log import _warned
from tests.support import assert_matches, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@torch.library.custom_op("graphweave_tests::untraceable", mutates_args=())
def untraceable(x: Tensor) -> Tensor:
    return x * 2


@untraceable.register_fake
def _(x: Tensor) -> Tensor:
    raise LookupError("no shape for this")


class Halves(nn.Module):
    """Counts calls in a buffer and draws random numbers, then breaks the graph, then cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = nn.functional.dropout(self.norm(x), 0.4)
        x = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        torch._dynamo.graph_break()
        return x.detach() + untraceable(x.detach())


def test_a_failed_trace_leaves_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed trace is reported even where PyTorch's own logs are turned off."""
    monkeypatch.setattr(logging.getLogger("torch._dynamo"), "level", logging.ERROR)
    eager, graph = Halves(), random_graph(9, 9, 30)
    compiled_module = copy.deepcopy(eager)
    compiled = graphweave.compile(compiled_module)
    _warned.clear()
    with pytest.warns(UserWarning, match="could not trace"):
        assert_matches(compiled, eager, features(9, 4), graph, module=eager, compiled_module=compiled_module)
    for (name, want), got in zip(eager.named_buffers(), compiled_module.buffers(), strict=True):
        assert torch.allclose(got, want), name
    counts = graphweave.counters()
    assert counts["eager_fallbacks"] == 1
    assert counts["compilations"] > 0  # the half before the break


def test_an_error_of_the_user_is_the_users() -> None:
    """An error raised by the function itself is no failed trace, and is raised as it is."""

    def fn(x: Tensor, edge_index: Tensor) -> Tensor:
        if x.size(1) > 3:
            raise KeyError("too wide")
        return torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])

    compiled = graphweave.compile(fn)
    with pytest.raises(KeyError, match="too wide"):
        compiled(features(5, 4), random_graph(5, 5, 9))
    assert_matches(compiled, fn, features(5, 3), random_graph(5, 5, 9))
    assert graphweave.counters()["eager_fallbacks"] == 0


# PyTorch reads .grad of tensors that cross a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_branch_on_data_is_a_counted_graph_break() -> None:
    def fn(x: Tensor, edge_index: Tensor) -> Tensor:
        out = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return out.sin() if out.sum() > 0 else out.cos()

    for _ in range(2):
        torch._dynamo.reset()
        graphweave.reset_counters()
        assert_matches(graphweave.compile(fn), fn, features(5, 3), random_graph(5, 5, 9))
        assert graphweave.counters()["graph_breaks"] > 0
