"""Tests on a CUDA device: compiled layers against eager float64 on the CPU, launches, memory, repeatability."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import graphweave
from bench.check import error_against
from bench.steps import Result
from graphweave.core.settings import override
from tests.pyg.zoo import RIGHT, run_case
from tests.support import AWKWARD, features, random_graph

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.usefixtures("fresh_compiler"),
]

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(9, 8),
    "gat": lambda: pyg.GATConv(9, 4, heads=3),
    "gatv2": lambda: pyg.GATv2Conv(9, 4, heads=2),
    "sage": lambda: pyg.SAGEConv(9, 8),
    "max": lambda: pyg.SAGEConv(9, 8, aggr="max"),
    "edge_mlp": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 8))),
    "transformer": lambda: pyg.TransformerConv(9, 4, heads=2),
}
LARGE = random_graph(10_000, 10_000, 60_000)


def step(fn: Callable[..., torch.Tensor], module: nn.Module, x: torch.Tensor, edge_index: torch.Tensor) -> Result:
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    out = fn(x, edge_index)
    noise = torch.Generator().manual_seed(8)
    out.backward(torch.randn(out.shape, generator=noise).to(out))
    grads = {name: p.grad.cpu() for name, p in module.named_parameters() if p.grad is not None}
    assert x.grad is not None
    return Result((out.detach().cpu(),), {**grads, "x": x.grad.cpu()})


@pytest.mark.parametrize("name", LAYERS)
def test_equals_eager_in_float64(name: str) -> None:
    torch.manual_seed(0)
    exact = LAYERS[name]().double()
    layer = copy.deepcopy(exact).cuda()
    compiled = graphweave.compile(layer)
    for graph in AWKWARD:
        x = features(graph.num_nodes, 9, torch.float64)
        got = step(compiled, layer, x.cuda(), graph.edge_index.cuda())
        error = error_against(got, step(exact, exact, x, graph.edge_index))
        assert error < 1e-11, f"{graph.name}: {error:.2g}"
    assert graphweave.counters()["kernel_launches"] > 0 and graphweave.counters()["eager_fallbacks"] == 0


@pytest.mark.parametrize("name", ["gcn", "gat", "max"])
def test_large_graphs_whose_rows_are_divided(name: str) -> None:
    torch.manual_seed(0)
    index = LARGE.clone()
    index[1, ::3] = 17  # a hub
    exact = LAYERS[name]().double()
    layer = copy.deepcopy(exact).cuda()
    x = features(10_000, 9, torch.float64)
    compiled = graphweave.compile(layer)
    got = step(compiled, layer, x.cuda(), index.cuda())
    assert error_against(got, step(exact, exact, x, index)) < 1e-11
    again = step(compiled, layer, x.cuda(), index.cuda())
    assert torch.equal(got.outputs[0], again.outputs[0]), "the same bits at every call"


def test_nothing_of_edges_x_features_is_stored() -> None:
    layer = pyg.GATConv(64, 64, heads=8).cuda()
    compiled = graphweave.compile(layer)
    x = features(10_000, 64).cuda()
    index = random_graph(10_000, 10_000, 1_000_000).cuda()
    compiled(x, index).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled(x, index).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 1_000_000 * 512 * 4 // 2


def test_launches_go_to_the_current_stream() -> None:
    layer = pyg.SAGEConv(9, 8).cuda()
    compiled = graphweave.compile(layer)
    x, index = features(10_000, 9).cuda(), LARGE.cuda()
    want = compiled(x, index)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = compiled(x, index)
    stream.synchronize()
    assert torch.equal(got, want)


def test_a_training_step_is_one_graph_without_calls_of_python() -> None:
    """Its loss compares labels with the numbers of classes, which are a constant of the program."""
    torch.manual_seed(0)
    exact = nn.ModuleList([pyg.GCNConv(9, 8), pyg.GCNConv(8, 5)]).double()
    layers = copy.deepcopy(exact).cuda()
    index, y = LARGE, torch.arange(10_000) % 5

    def loss(layers: nn.ModuleList, x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(layers[1](layers[0](x, index).relu(), index), y)

    x = features(10_000, 9, torch.float64)
    want = step(lambda x, index: loss(exact, x, index, y), exact, x, index)
    with override(store_compilations=True):  # as users have it
        compiled = graphweave.compile(lambda x, index, y: loss(layers, x, index, y))
        got = step(lambda x, index: compiled(x, index, y.cuda()), layers, x.cuda(), index.cuda())
    assert error_against(got, want) < 1e-11
    assert (graphweave.counters()["compilations"], graphweave.counters()["eager_fallbacks"]) == (1, 0)


@pytest.mark.parametrize(
    "case", ["HGTConv", "SimpleConv-median", "GATConv-dropout", "RGCNConv", "DNAConv", "models.GIN"]
)
def test_cases_of_the_zoo(case: str) -> None:
    row = run_case(case, "compile", "cuda")
    assert row.status in RIGHT and not row.eager, row


def test_launches_of_prepared_kernels_read_their_arguments() -> None:
    """Rows that begin at an odd address take the launch that looks at them."""
    layer = pyg.SAGEConv(9, 8).cuda()
    compiled = graphweave.compile(layer)
    apart = features(10_001, 9).cuda()
    with torch.no_grad():
        for x in (apart[:-1], apart[1:], apart[:-1] + 1):
            torch.testing.assert_close(compiled(x, LARGE.cuda()), layer(x, LARGE.cuda()))
