"""Fields of a graph inside a compiled function: read by the function itself they are features like any other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import graphweave
import graphweave.function as fn


def scaled(graph: Any, x: Tensor) -> Tensor:
    with graph.local_scope():
        norm = graph.ndata["norm"]
        graph.ndata["z"] = x * norm
        graph.update_all(fn.copy_u("z", "m"), fn.sum("m", "h"))
        out: Tensor = graph.ndata["h"] * norm
        return out


def test_a_field_of_width_1_broadcasts_against_features() -> None:
    """The width of a field is compiled in, as that of an argument is: a symbol would not broadcast."""
    src, dst = torch.tensor([0, 0, 1, 2, 3, 3]), torch.tensor([1, 2, 2, 0, 0, 3])
    graph = graphweave.graph((src, dst), num_nodes=5)
    torch.manual_seed(0)
    graph.ndata["norm"] = torch.randn(5, 1, dtype=torch.float64)
    x = torch.randn(5, 7, dtype=torch.float64)
    graphweave.reset_counters()
    got = graphweave.compile(scaled)(graph, x)
    counters = graphweave.counters()
    assert counters["eager_fallbacks"] == counters["graph_breaks"] == 0
    norm = graph.ndata["norm"]
    want = torch.zeros_like(x).index_add(0, dst, (x * norm)[src]) * norm
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)  # float64, at most 2 terms a row
