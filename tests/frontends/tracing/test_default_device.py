"""Calls in a block of `torch.device`, or with a default device, whose functions would make tensors elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import graphweave
from tests.support import features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

DOORS: dict[str, Callable[[Any], Any]] = {
    "compile": graphweave.compile,
    "plain": lambda f: torch.compile(f, backend="graphweave", dynamic=True),
}


@pytest.fixture(params=["block", "default"])
def elsewhere(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    """A function that makes another device than the CPU the one of new tensors."""
    if request.param == "default":
        yield lambda: torch.set_default_device("meta")
    else:
        block = torch.device("meta")
        yield lambda: block.__enter__()
        block.__exit__(None, None, None)
    torch.set_default_device(None)


def attention(x: Tensor, edge_index: Tensor) -> Tensor:
    src, dst = edge_index
    logits = (x[src] * x[dst]).sum(1)
    weights = (logits - logits.detach().max()).exp()
    total = torch.zeros_like(x[:, 0]).index_add(0, dst, weights)
    return torch.zeros_like(x).index_add(0, dst, x[src] * (weights / total[dst])[:, None])


def step(function: Callable[..., Tensor], x: Tensor, edge_index: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = function(x, edge_index)
    out.square().sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("first", ["compiled before", "compiled there"])
def test_results_stay_where_the_arguments_are(door: str, first: str, elsewhere: Callable[[], Any]) -> None:
    graphs = [(features(n, 4, torch.float64), random_graph(n, n, 3 * n, seed=n)) for n in (30, 9)]
    want = [step(attention, *graph) for graph in graphs]
    compiled = DOORS[door](attention)
    if first == "compiled before":
        step(compiled, *graphs[0])
    elsewhere()
    for graph, values in zip(graphs, want, strict=True):
        for got, value in zip(step(compiled, *graph), values, strict=True):
            assert got.device.type == "cpu"
            torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12)


def test_graphs_and_their_samples_stay_where_their_edges_are(elsewhere: Callable[[], Any]) -> None:
    """Native code gets the memory of the CPU, and nothing else: formats, degrees, subgraphs and samples."""
    src, dst = random_graph(30, 30, 90)
    graph, seeds = graphweave.graph((src, dst), num_nodes=30), torch.arange(5)
    degrees, edges = graph.in_degrees(), graphweave.subgraph(graph, seeds).num_edges()
    elsewhere()
    again = graphweave.graph((src, dst), num_nodes=30)
    assert torch.equal(again.in_degrees(), degrees)
    assert graphweave.subgraph(again, seeds).num_edges() == edges
    assert graphweave.add_self_loop(again).num_edges() == 120
