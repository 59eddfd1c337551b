"""EdgePooling: one graph, and one native call for the edges that it merges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import EdgePooling

import graphweave
from graphweave.core.errors import IndexRangeError
from graphweave.runtime.matching import match_edges
from tests.frontends.spellings.test_sorted_rows import F64, batched
from tests.support import assert_matches, by_default, random_graph


def matched_one_by_one(src: Tensor, dst: Tensor, order: Tensor) -> list[bool]:
    used: set[int] = set()
    found = []
    for edge in order.tolist():
        ends = {int(src[edge]), int(dst[edge])}
        found.append(not ends & used)
        used |= ends if found[-1] else set()
    return found


@pytest.mark.parametrize(("nodes", "edges"), [(1, 3), (6, 0), (9, 30), (300, 700)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_edges_are_matched_in_their_order(nodes: int, edges: int, dtype: torch.dtype) -> None:
    src, dst = random_graph(nodes, nodes, edges).to(dtype)
    order = torch.randperm(edges, generator=torch.Generator().manual_seed(0))
    assert match_edges(src, dst, order, nodes).tolist() == matched_one_by_one(src, dst, order)


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_node_that_is_none_is_an_error(wrong: int) -> None:
    ends = torch.tensor([0, 1, wrong]), torch.tensor([1, 2, 3])
    for src, dst in (ends, ends[::-1]):
        with pytest.raises(IndexRangeError, match=str(wrong)):
            match_edges(src, dst, torch.arange(3), 4)


class Pooled(torch.nn.Module):
    """Some poolings, a sum over the neighbours that are left, and the way back to the nodes."""

    def __init__(self, score: Callable[..., Tensor], depth: int) -> None:
        super().__init__()
        self.layers: Any = torch.nn.ModuleList(EdgePooling(4, score).double() for _ in range(depth))

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        merged = []
        for layer in self.layers:
            x, edges, batch, info = layer(x.sin(), edges, batch)
            merged.append(info)
        x = x + torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        back = x
        for layer, info in zip(reversed(self.layers), reversed(merged), strict=True):
            back, _, _ = layer.unpool(back, info)
        return x, edges, batch, back


MODELS = {
    "sigmoid": lambda: Pooled(EdgePooling.compute_edge_score_sigmoid, 1),
    "tanh, twice": lambda: Pooled(EdgePooling.compute_edge_score_tanh, 2),
}
"""Models by scores that differ from edge to edge. A softmax gives 1 to all edges that come in alone, and eager mode
leaves open which of equal edges is first."""


@pytest.mark.parametrize("door", by_default(["graphweave.compile", "torch.compile"], "graphweave.compile"))
@pytest.mark.parametrize("name", by_default(MODELS, "sigmoid"))
def test_the_layer_is_one_graph_for_all_sizes(name: str, door: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    ours = door == "graphweave.compile"
    compiled = graphweave.compile(model) if ours else torch.compile(model, backend="graphweave", fullgraph=True)
    for sizes in ((9, 30, 3), (14, 40, 4), (30, 100, 1), (7, 0, 2))[: 4 if ours else 2]:
        assert_matches(compiled, model, *batched(*sizes), module=model, label=f"{name} {sizes}")
    counts = graphweave.counters()
    assert (counts["graph_breaks"], counts["eager_fallbacks"]) == (0, 0)
    assert counts["compilations"] == 1 or not ours


@pytest.mark.slow
def test_of_equal_edges_the_first_is_merged_first(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer = EdgePooling(4).double()
    compiled = graphweave.compile(layer)
    x, edges, batch = batched(12, 30, 2)
    found = compiled(x, edges, batch)
    argsort = torch.argsort
    monkeypatch.setattr(torch, "argsort", lambda x, descending: argsort(x, descending=descending, stable=True))
    for got, want in zip(found[:3], layer(x, edges, batch)[:3], strict=True):
        torch.testing.assert_close(got, want)
    assert found[0].dtype == F64
