"""bfloat16 and float16: stored in 16 bits, computed in float32. Judged by float64 and eager mode's own error."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

import graphweave
import graphweave.ops as ops
from bench.check import error_against
from bench.steps import Result
from graphweave.runtime.triton_kernel import interpreted
from tests.support import AWKWARD, by_default, features, needs_float16, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCNConv(9, 8),
    "gat": lambda: pyg.GATConv(9, 4, heads=3),
    "sage": lambda: pyg.SAGEConv(9, 8),
    "max": lambda: pyg.SAGEConv(9, 8, aggr="max"),
    "edge_mlp": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 8))),
}

ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def run(fn: Callable[..., Any], module: nn.Module, x: Tensor, edge_index: Tensor) -> Result:
    """One step with a cotangent that every type holds exactly."""
    x = x.detach().clone().requires_grad_()
    module.zero_grad()
    out = fn(x, edge_index)
    noise = torch.Generator().manual_seed(8)
    out.backward(torch.randn(out.shape, generator=noise, dtype=torch.bfloat16).to(out.dtype))
    grads = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return Result((out.detach(),), {**grads, "x": x.grad})


def rounding(dtype: torch.dtype) -> float:
    """Triton's interpreter (3.9) cuts bfloat16 off, where devices round."""
    return ROUNDING[dtype] * (8 if interpreted() and dtype is torch.bfloat16 else 1)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", by_default(LAYERS, *list(LAYERS)[:3]))
def test_as_exact_as_eager(name: str, dtype: torch.dtype) -> None:
    """Errors are taken over all graphs, because on one of them gradients that cancel may be exact by luck."""
    needs_float16(dtype)
    torch.manual_seed(0)
    layer = LAYERS[name]().to(dtype)
    wide, compiled = copy.deepcopy(layer).double(), graphweave.compile(layer)
    if interpreted() and name == "gat" and dtype is torch.bfloat16:
        pytest.skip("gradients that cancel, in numbers that the interpreter cuts off")
    ours, eager = dict[str, float](), dict[str, float]()
    for graph in AWKWARD[4:]:
        x = features(graph.num_nodes, 9).to(dtype)
        exact = run(wide, wide, x.double(), graph.edge_index)
        ours[graph.name] = error_against(run(compiled, layer, x, graph.edge_index), exact)
        eager[graph.name] = error_against(run(layer, layer, x, graph.edge_index), exact)
    assert max(ours.values()) <= max(4 * max(eager.values()), 8 * rounding(dtype)), f"{ours}, eager {eager}"
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0 and (counted["kernel_launches"] > 0 or counted["fallback_calls"] > 0)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_message_computed_again_equals_the_maximum_that_it_was(dtype: torch.dtype) -> None:
    """A product on edges under a maximum: of each row's gradient, all goes to some edge."""
    needs_float16(dtype)
    torch.manual_seed(0)
    layer = LAYERS["edge_mlp"]().to(dtype)
    graph = next(g for g in AWKWARD if g.name == "self_loops")
    x = features(graph.num_nodes, 9).to(dtype)
    out = graphweave.compile(layer)(x.requires_grad_(), graph.edge_index)
    (grad,) = torch.autograd.grad(out, layer.nn[2].bias, torch.ones_like(out))
    reached = graph.edge_index[1].unique().numel()
    torch.testing.assert_close(grad.double(), torch.full((8,), float(reached), dtype=torch.float64), rtol=0.03, atol=0)


class Relational(nn.Module):
    """Each edge multiplies its source by the matrix of its type: relu(x[src] W[type] + b), summed at dst."""

    def __init__(self, types: int, k: int, j: int) -> None:
        super().__init__()
        self.types, self.bias = types, nn.Parameter(torch.randn(j))
        self.weight = nn.Parameter(torch.randn(types, k, j) / k**0.5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        src, dst = edge_index
        kind = (src + dst) % self.types
        messages = torch.relu(ops.gather_mm(x[src], self.weight, idx_b=kind) + self.bias)
        return torch.zeros_like(x[:, :1]).expand(-1, messages.shape[1]).index_add(0, dst, messages)


@pytest.mark.parametrize("door", ["graphweave.compile", "torch.compile"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_products_by_type(dtype: torch.dtype, door: str) -> None:
    """Kernels compute the products, forward and backward, as `explain` shows."""
    needs_float16(dtype)
    torch.manual_seed(0)
    layer, graph = Relational(3, 20, 12).to(dtype), AWKWARD[7]
    wide, x = copy.deepcopy(layer).double(), features(graph.num_nodes, 20).to(dtype)
    compiled = graphweave.compile(layer) if door == "graphweave.compile" else torch.compile(layer, backend="graphweave")
    exact = run(wide, wide, x.double(), graph.edge_index)
    ours = error_against(run(compiled, layer, x, graph.edge_index), exact)
    eager = error_against(run(layer, layer, x, graph.edge_index), exact)
    assert ours <= max(2 * eager, 4 * rounding(dtype)), f"{ours:.2g}, eager {eager:.2g}"
    assert graphweave.counters()["kernel_launches"] > 0 == graphweave.counters()["eager_fallbacks"]
    if door == "graphweave.compile" and dtype is torch.bfloat16:
        told = graphweave.explain(layer, x.requires_grad_(), graph.edge_index)
        assert not any(g.products or g.fallbacks for g in told.graphs)
        assert sum("matrix product" in k.does for g in told.graphs for k in g.kernels) >= 2


def test_messages_are_read_in_kernels() -> None:
    layer = pyg.SAGEConv(5, 8).bfloat16()
    told = graphweave.explain(layer, features(16, 5).bfloat16(), AWKWARD[7].edge_index)
    assert not [note for graph in told.graphs for note in graph.fallbacks]


def test_verify_allows_for_what_eager_mode_rounds_between() -> None:
    torch.manual_seed(0)
    layer, graph = LAYERS["gcn"]().bfloat16(), AWKWARD[7]
    x = features(graph.num_nodes, 9).bfloat16().requires_grad_()
    graphweave.compile(layer, options={"verify": True})(x, graph.edge_index).sum().backward()
    assert graphweave.counters()["kernel_launches"] > 0 and x.grad is not None


def test_gradients_of_a_maximum_reach_its_messages() -> None:
    """Messages that round to the maximum share its gradient, as in eager mode: each row's gradient arrives whole."""
    torch.manual_seed(0)
    compiled = graphweave.compile(lambda x, i: torch.zeros_like(x).scatter_reduce_(
        0, i[1, :, None].expand(-1, 9), torch.tanh(x[i[0]] * 3), "amax", include_self=False
    ))  # fmt: skip
    index = AWKWARD[7].edge_index
    x = features(16, 9).bfloat16().requires_grad_()
    compiled(x, index).sum().backward()
    wide = x.detach().double().requires_grad_()
    out = torch.zeros_like(wide).scatter_reduce_(
        0, index[1, :, None].expand(-1, 9), torch.tanh(wide[index[0]] * 3), "amax", include_self=False
    )
    out.sum().backward()
    assert x.grad is not None and wide.grad is not None
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0.2, atol=0.05)


@pytest.mark.parametrize("dtype", ROUNDING)
def test_half_precision_inside_of_a_function(dtype: torch.dtype) -> None:
    """Arguments and results in full precision: nothing in memory is in 16 bits, only what a kernel computes."""
    needs_float16(dtype)

    def function(x: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(dtype).to(x.dtype), torch.zeros_like(x).index_add(0, index[1], x[index[0]])

    compiled = graphweave.compile(function)
    x, index = features(16, 9, torch.float64).requires_grad_(), AWKWARD[7].edge_index
    for got, want in zip(compiled(x, index), function(x, index), strict=True):
        torch.testing.assert_close(got, want, rtol=4 * rounding(dtype), atol=rounding(dtype))
    assert graphweave.counters()["eager_fallbacks"] == 0


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: pyg.GCN(33, 64, 2, 16),
    "sage": lambda: pyg.GraphSAGE(33, 64, 2, 16),
    "gat": lambda: pyg.GAT(33, 64, 2, 16, heads=2),
    "edge_mlp": lambda: pyg.EdgeConv(nn.Sequential(nn.Linear(66, 64), nn.ReLU(), nn.Linear(64, 16)), aggr="mean"),
}


@pytest.mark.parametrize("name", by_default(NETWORKS, "sage", "edge_mlp"))
def test_autocast_is_as_exact_as_eager(name: str) -> None:
    """Training under `torch.autocast`: no gradient has a larger error than eager's, but for luck."""
    torch.manual_seed(0)
    layer = NETWORKS[name]()
    wide = copy.deepcopy(layer).double()
    index = random_graph(300, 300, 2000)
    x = features(300, 33)

    def autocast(x: Tensor, index: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = layer(x, index)
        return out.float()

    compiled = graphweave.compile(autocast)
    exact = run(wide, wide, x.double(), index)
    ours = error_against(run(compiled, layer, x, index), exact)
    eager = error_against(run(autocast, layer, x, index), exact)
    assert ours <= max(1.5 * eager, 2 * rounding(torch.bfloat16)), f"{ours:.2g}, eager {eager:.2g}"
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_products_of_half_precision_are_in_kernels() -> None:
    """Kernels compute them on edges, and on nodes where rows are many, like those of float32."""
    nodes = 2_000 if interpreted() else 20_000
    x, index = features(nodes, 8).bfloat16(), random_graph(nodes, nodes, 1000)
    layer = pyg.EdgeConv(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8)), aggr="mean").bfloat16()
    function = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU()).bfloat16()
    compiled = graphweave.compile(lambda x, index: layer(function(x), index))
    compiled(x.requires_grad_(), index).sum().backward()
    counted = graphweave.counters()
    assert counted["eager_fallbacks"] == 0 and (interpreted() or counted["fallback_calls"] == 0)
