"""The message-passing layers of the main job on every awkward graph: forward and all gradients equal eager PyG."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

import graphweave
from tests.support import AWKWARD, SEVERAL, Graph, assert_matches, by_default, features, random_graph

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "gcn": lambda width: pyg.GCNConv(width, width),
    "sage-mean": lambda width: pyg.SAGEConv(width, width),
    "sage-max": lambda width: pyg.SAGEConv(width, width, aggr="max"),
    "gin": lambda width: pyg.GINConv(_mlp(width, width), train_eps=True),
    "gat": lambda width: pyg.GATConv(width, width, heads=2),
    "gatv2": lambda width: pyg.GATv2Conv(width, width, heads=2),
    "edgeconv": lambda width: pyg.EdgeConv(_mlp(2 * width, width)),
}

BIPARTITE: dict[str, Callable[[], nn.Module]] = {
    "sage-mean": lambda: pyg.SAGEConv((5, 3), 6),
    "sage-max": lambda: pyg.SAGEConv((5, 3), 6, aggr="max"),
    "gin": lambda: pyg.GINConv(_mlp(5, 6)),
    "gat": lambda: pyg.GATConv((5, 3), 6, heads=2, add_self_loops=False),
    "gatv2": lambda: pyg.GATv2Conv((5, 3), 6, heads=2, add_self_loops=False),
    "edgeconv": lambda: pyg.EdgeConv(_mlp(10, 6)),
}


def _on_awkward_graphs(name: str, width: int, dtype: torch.dtype, graphs: tuple[Graph, ...] = AWKWARD) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](width).to(dtype)
    compiled = graphweave.compile(layer)
    for graph in graphs:
        x = features(graph.num_nodes, width, dtype)
        assert_matches(compiled, layer, x, graph.edge_index, module=layer, label=graph.name)
    assert graphweave.counters()["kernel_launches"] > 0


@pytest.mark.parametrize("name", by_default(LAYERS, "sage-max", "gat"))
def test_float32_on_awkward_graphs(name: str) -> None:
    _on_awkward_graphs(name, 33, torch.float32)


@pytest.mark.parametrize("name", by_default(("gcn", "sage-max", "gat"), "gcn"))
def test_float64_on_awkward_graphs(name: str) -> None:
    _on_awkward_graphs(name, 31, torch.float64, SEVERAL)


@pytest.mark.parametrize("name", by_default(("sage-max", "gat"), "sage-max"))
def test_width_one_on_awkward_graphs(name: str) -> None:
    _on_awkward_graphs(name, 1, torch.float32, SEVERAL)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 31, 33])
@pytest.mark.parametrize("name", LAYERS)
def test_every_width_on_awkward_graphs(name: str, width: int, dtype: torch.dtype) -> None:
    _on_awkward_graphs(name, width, dtype)


@pytest.mark.parametrize("name", by_default(BIPARTITE, "sage-max", "gat"))
def test_bipartite(name: str) -> None:
    """Sources and destinations differ in number, and in width where the layer allows it."""
    torch.manual_seed(0)
    layer = BIPARTITE[name]()
    compiled = graphweave.compile(layer)
    width = 3 if name in ("sage-mean", "sage-max", "gat", "gatv2") else 5
    for num_src, num_dst, num_edges in ((9, 4, 20), (4, 9, 20), (6, 5, 0), (1, 1, 1)):
        x = (features(num_src, 5), features(num_dst, width, seed=2))
        index = random_graph(num_src, num_dst, num_edges)
        assert_matches(compiled, layer, x, index, module=layer, label=f"{num_src}x{num_dst}")


@pytest.mark.parametrize("name", by_default(("gcn", "sage-max", "gat"), "gcn"))
def test_inputs_that_are_not_contiguous(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name](6)
    compiled = graphweave.compile(layer)
    edge_index = random_graph(8, 8, 30)
    transposed = features(6, 8).t()
    sliced = features(8, 12)[:, ::2]
    columns = edge_index.t().contiguous().t()
    assert not (transposed.is_contiguous() or sliced.is_contiguous() or columns.is_contiguous())
    for x, index in ((transposed, edge_index), (sliced, edge_index), (features(8, 6), columns), (transposed, columns)):
        assert_matches(compiled, layer, x, index, module=layer)


def _gather_add(x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
    message = torch.tanh(x.index_select(0, edge_index[0]) - x.index_select(0, edge_index[1]))
    return torch.zeros_like(x).index_add(0, edge_index[1], message)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_index_types(dtype: torch.dtype) -> None:
    """PyG's own scatter wants int64; plain index_select and index_add take both."""
    compiled = graphweave.compile(_gather_add)
    for graph in AWKWARD:
        index = graph.edge_index.to(dtype)
        assert_matches(compiled, _gather_add, features(graph.num_nodes, 5), index, label=graph.name)
    assert graphweave.counters()["kernel_launches"] > 0
