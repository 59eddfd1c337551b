"""One compilation serves graphs of every size; what is cached per graph notices every change of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch._dynamo.exc import TensorifyScalarRestartAnalysis

import graphweave
from graphweave.frontends.dynamo import backend
from tests.support import assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")

MAX_COMPILATIONS = 3


class TwoLayer(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first = first
        self.second = second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


def _model(kind: str) -> TwoLayer:
    torch.manual_seed(0)
    if kind == "gat":
        return TwoLayer(pyg.GATConv(6, 4, heads=2), pyg.GATConv(8, 5))
    return TwoLayer(pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 5, aggr="max"))


def _sizes() -> list[tuple[int, int]]:
    """50 (nodes, edges): first a usual batch, then the awkward ones in between."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(int(n), int(e)) for n, e in torch.randint(2, 60, (50, 2), generator=generator)]
    sizes[7], sizes[13], sizes[19], sizes[23], sizes[31] = (5, 0), (5, 1), (1, 0), (1, 1), (1, 9)
    return sizes


@pytest.mark.parametrize("kind", by_default(("sage", "gat"), "sage"))
def test_fifty_batches_compile_at_most_three_times(kind: str) -> None:
    model = _model(kind)
    compiled = graphweave.compile(model)
    for i, (nodes, edges) in enumerate(_sizes()):
        index = random_graph(nodes, nodes, edges, seed=i)
        assert_matches(compiled, model, features(nodes, 6), index, module=model, label=f"batch {i}: {nodes}, {edges}")
    assert 1 <= graphweave.counters()["compilations"] <= MAX_COMPILATIONS


@pytest.mark.parametrize("first", by_default(((5, 0), (5, 1), (1, 0), (1, 1)), (5, 1), (1, 0)), ids=str)
def test_an_awkward_first_batch_does_not_spoil_the_rest(first: tuple[int, int]) -> None:
    model = _model("sage")
    compiled = graphweave.compile(model)
    for nodes, edges in (first, (9, 30), (4, 11), (1, 0), (30, 9)):
        assert_matches(compiled, model, features(nodes, 6), random_graph(nodes, nodes, edges), module=model)
    assert graphweave.counters()["compilations"] <= MAX_COMPILATIONS


def test_many_compiled_functions_in_one_process() -> None:
    """Dynamo counts recompilations by function: one that all users shared would run eagerly from the ninth on."""
    layers = [pyg.SAGEConv(3, 2 + i) for i in range(10)]
    for layer in layers:
        graphweave.compile(layer)(features(9, 3), random_graph(9, 9, 30))
        assert graphweave.counters()["kernel_launches"] > 0
        graphweave.reset_counters()


def _sum(x: Tensor, edge_index: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, edge_index[1], x.index_select(0, edge_index[0]).tanh())


def test_results_repeat_bit_for_bit() -> None:
    """The graph has enough edges for several threads, and a hub."""
    model = _model("gat")
    compiled = graphweave.compile(model)
    index = random_graph(1000, 1000, 12000)
    index[1, ::3] = 5
    seen: list[list[Tensor]] = []
    for _ in range(3):
        model.zero_grad()
        x = features(1000, 6).requires_grad_()
        out = compiled(x, index)
        out.sin().sum().backward()
        assert x.grad is not None
        seen.append([out, x.grad, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for other in seen[1:]:
        assert all(torch.equal(a, b) for a, b in zip(seen[0], other, strict=True))


def test_edit_in_place_of_the_index_is_noticed() -> None:
    compiled = graphweave.compile(_sum)
    x, index = features(8, 3), random_graph(8, 8, 25)
    compiled(x, index)
    index[1] = index[1].flip(0)
    torch.testing.assert_close(compiled(x, index), _sum(x, index))
    index[0, 4] = (index[0, 4] + 1) % 8
    torch.testing.assert_close(compiled(x, index), _sum(x, index))


def test_edit_through_a_view_is_noticed() -> None:
    compiled = graphweave.compile(_sum)
    x, index = features(8, 3), random_graph(8, 8, 25)
    compiled(x, index)
    index[1].view(5, 5)[2].zero_()
    torch.testing.assert_close(compiled(x, index), _sum(x, index))


def test_formats_of_a_graph_are_built_once() -> None:
    compiled = graphweave.compile(_sum)
    x, index = features(8, 3), random_graph(8, 8, 25)
    compiled(x, index)
    built = graphweave.counters()["format_builds"]
    for _ in range(3):
        compiled(x, index)
    assert graphweave.counters()["format_builds"] == built > 0


def test_a_freed_index_whose_address_is_reused() -> None:
    """Index tensors of one size made and dropped: the allocator hands out the same addresses again."""
    compiled = graphweave.compile(_sum)
    x = features(200, 3)
    for seed in range(12):
        index = random_graph(200, 200, 1000, seed=seed)
        torch.testing.assert_close(compiled(x, index), _sum(x, index))
        del index
        gc.collect(1)


def test_a_float_that_varies_is_compiled_twice_at_most() -> None:
    """Python floats are compiled in at first, and become symbols when another value comes."""

    def scaled(x: torch.Tensor, edge_index: torch.Tensor, factor: float) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], torch.tanh(x[edge_index[0]] * factor))

    compiled = graphweave.compile(scaled)
    x, edge_index = torch.randn(20, 8), torch.randint(20, (2, 60))
    before = graphweave.counters()["compilations"]
    for step in range(12):
        factor = 0.5 + 0.2 * step
        torch.testing.assert_close(compiled(x, edge_index, factor), scaled(x, edge_index, factor))
    assert graphweave.counters()["compilations"] - before <= 2


def _scaled_by_degree(x: Tensor, index: Tensor, batch: Tensor) -> Tensor:
    return x * torch.bincount(index, minlength=x.size(0))[:, None]


def _mean_of_each_graph(x: Tensor, index: Tensor, batch: Tensor) -> Tensor:
    graphs = int(batch.max()) + 1
    total = x.new_zeros(graphs, x.size(1)).index_add(0, batch, x)
    return total / torch.bincount(batch, minlength=graphs)[:, None]


def _normed_by_degree(x: Tensor, index: Tensor, batch: Tensor) -> Tensor:
    degree = torch.bincount(index, minlength=x.size(0)).clamp(min=1).to(x.dtype)
    return (x * degree.rsqrt()[:, None])[index]


@pytest.mark.parametrize("fn", [_scaled_by_degree, _mean_of_each_graph, _normed_by_degree], ids=lambda f: f.__name__)
def test_counts_whose_number_data_decides(fn: Callable[..., Tensor]) -> None:
    """PyTorch finds their number equal to one that is known before the call, and then keeps no hint of it."""
    compiled = graphweave.compile(fn)
    for nodes in (9, 14, 4):
        index = random_graph(nodes, nodes, 2 * nodes, seed=nodes)[0]
        batch = torch.arange(nodes) // 3
        assert_matches(compiled, fn, features(nodes, 4, torch.float64), index, batch)
    assert graphweave.counters()["eager_fallbacks"] == 0
    assert graphweave.counters()["compilations"] <= MAX_COMPILATIONS


def test_a_width_of_one_is_compiled_in() -> None:
    """PyTorch keeps its symbol, and a kernel takes no row whose width is a symbol plus a number."""
    linear = nn.Linear(5, 4).double()

    def f(x: Tensor, y: Tensor, edges: Tensor) -> Tensor:
        hidden = linear(torch.cat([x, y], dim=1)).tanh()
        return torch.zeros_like(hidden).index_add(0, edges[1], hidden[edges[0]])

    compiled = graphweave.compile(f)
    for nodes in (9, 14, 4):
        given = features(nodes, 1, torch.float64), features(nodes, 4, torch.float64)
        assert_matches(compiled, f, *given, random_graph(nodes, nodes, 2 * nodes, seed=nodes))
    assert graphweave.counters()["compilations"] == 1
    assert graphweave.counters()["fallback_calls"] == 0


@pytest.mark.parametrize("view", [dict.values, dict.items], ids=["values", "items"])
def test_a_view_of_a_dict_is_looped_over_in_one_graph(view: Callable[[Any], Any]) -> None:
    def gathered(x: Tensor, edges: Any) -> list[Tensor]:
        each = [edge[1] if isinstance(edge, tuple) else edge for edge in edges]
        return [torch.zeros_like(x).index_add(0, dst, x[src] * 2) for src, dst in each]

    x = features(9, 4)
    graphs = {("a", "to", "b"): random_graph(9, 9, 20), ("b", "to", "a"): random_graph(9, 9, 14)}
    torch.testing.assert_close(graphweave.compile(gathered)(x, view(graphs)), gathered(x, view(graphs)))
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"]) == (1, 0)


def test_a_trace_that_begins_again_keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch traces again where a symbolic number must be compiled in. The gradient of a gradient of ViSNet, whose
    graph has such a number and a mask, was then traced under PyTorch's own settings, which refuse masks."""
    traced: list[int] = []
    trace = backend._traced

    def begin_again(*args: Any) -> Any:
        traced.append(len(traced))
        if len(traced) == 1:
            raise TensorifyScalarRestartAnalysis(restart_reason="a number is compiled in")
        return trace(*args)

    def lengths(x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        mask = src != dst
        return torch.zeros(x.shape[0]).index_add(0, dst[mask], (x[src] - x[dst])[mask].norm(dim=1))

    monkeypatch.setattr(backend, "_traced", begin_again)
    x, (src, dst) = features(7, 3).requires_grad_(), random_graph(7, 7, 20)
    compiled = torch.compile(lengths, backend="graphweave")
    torch.testing.assert_close(compiled(x, src, dst), lengths(x, src, dst))
    assert traced == [0, 1]
    counted = graphweave.counters()
    assert (counted["graph_breaks"], counted["eager_fallbacks"], counted["compilations"]) == (0, 0, 1)
