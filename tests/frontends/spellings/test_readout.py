"""Readouts of batches against loops over their graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from tests.programs.compare import assert_close
from tests.support import by_default

SIZES = [(3, 4), (0, 0), (1, 0), (5, 7), (2, 9)]
"""Nodes and edges of each graph."""


@pytest.fixture(params=[False, True], ids=["torch", "kernels"], autouse=True)
def kernels(request: Any) -> Iterator[None]:
    with override(eager_kernels=request.param):
        yield


def batch(width: int = 3) -> graphweave.Graph:
    torch.manual_seed(0)
    graphs = []
    for nodes, edges in SIZES:
        src, dst = torch.randint(max(nodes, 1), (2, edges))
        g = graphweave.graph((src, dst), num_nodes=nodes)
        g.ndata["h"], g.ndata["w"] = torch.randn(nodes, width, dtype=torch.float64), torch.rand(nodes, 1).double()
        g.edata["h"], g.edata["w"] = torch.randn(edges, width, dtype=torch.float64), torch.rand(edges, 1).double()
        graphs.append(g)
    return graphweave.batch(graphs)


def parts(g: graphweave.Graph, where: str, name: str) -> list[Tensor]:
    """A field of each graph by itself."""
    frame = g.ndata if where == "nodes" else g.edata
    counts = g.batch_num_nodes() if where == "nodes" else g.batch_num_edges()
    return list(frame[name].split(counts.tolist()))


@pytest.mark.parametrize("weight", by_default([None, "w"], "w"), ids=["plain", "weighted"])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("where", ["nodes", "edges"])
def test_readout(where: str, op: str, weight: str | None) -> None:
    g = batch()
    frame = g.ndata if where == "nodes" else g.edata
    frame["h"] = h = frame["h"].clone().requires_grad_()
    rows = []
    for i, x in enumerate(parts(g, where, "h")):
        x = x if weight is None else x * parts(g, where, "w")[i]
        empty = x.new_zeros(3)
        rows.append({"sum": x.sum, "mean": x.mean, "max": x.amax, "min": x.amin}[op](0) if len(x) else empty)
    expected = torch.stack(rows)
    ours = getattr(graphweave, f"readout_{where}")(g, "h", weight, op=op)
    assert_close(ours, expected)
    for a, b in zip(*(torch.autograd.grad((y * y).sum(), [h]) for y in (ours, expected)), strict=True):
        assert_close(a, b)
    if op != "min":
        assert_close(getattr(graphweave, f"{op}_{where}")(g, "h", weight), expected)


@pytest.mark.parametrize("where", ["nodes", "edges"])
def test_softmax_and_broadcast(where: str) -> None:
    g = batch()
    expected = torch.cat([x.softmax(0) for x in parts(g, where, "h")])
    assert_close(getattr(graphweave, f"softmax_{where}")(g, "h"), expected)
    rows = torch.randn(len(SIZES), 2)
    expected = torch.cat([rows[i].expand(len(x), 2) for i, x in enumerate(parts(g, where, "h"))])
    assert_close(getattr(graphweave, f"broadcast_{where}")(g, rows), expected)
    with pytest.raises(DataError, match="the batch has 5 graphs"):
        getattr(graphweave, f"broadcast_{where}")(g, rows[:2])


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("sortby", [None, 0, 2])
@pytest.mark.parametrize("where", ["nodes", "edges"])
def test_topk(where: str, sortby: int | None, descending: bool) -> None:
    g, k = batch(), 4
    values, places = getattr(graphweave, f"topk_{where}")(g, "h", k, descending=descending, sortby=sortby)
    for i, x in enumerate(parts(g, where, "h")):
        kept = min(k, len(x))
        if sortby is None:
            best, at = x.sort(dim=0, descending=descending, stable=True)
            assert_close(values[i, :kept], best[:k])
        else:
            at = x[:, sortby].argsort(descending=descending, stable=True)
            assert_close(values[i, :kept], x[at[:k]])
        assert places[i, :kept].tolist() == at[:k].tolist()
        assert not values[i, kept:].any() and not places[i, kept:].any()


def test_a_graph_that_is_no_batch_is_one_row() -> None:
    g = graphweave.graph(([0, 1], [1, 2]))
    g.ndata["h"] = torch.tensor([[1.0], [2.0], [4.0]])
    assert graphweave.sum_nodes(g, "h").tolist() == [[7.0]]
    with pytest.raises(DataError, match="op must be"):
        graphweave.readout_nodes(g, "h", op="median")
    g.ndata["v"] = torch.zeros(3)
    with pytest.raises(DataError, match="top-k expects"):
        graphweave.topk_nodes(g, "v", 1)
