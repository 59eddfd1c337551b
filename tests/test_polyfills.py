"""Polyfills of library functions that break the graph equal the originals and are in place only during a call."""

from __future__ import annotations

import random
import sys

import pytest
import torch
import torch_geometric
import torch_geometric.nn as pyg
from support import assert_matches, features, random_graph

import graphweave
from graphweave.frontends.tracing.polyfills import polyfilled


def test_a_typed_linear_layer_is_one_graph(fresh_compiler: None) -> None:
    layer, x = pyg.HeteroLinear(4, 3, 5).double(), features(9, 4, torch.float64).requires_grad_(True)
    types = torch.tensor([4, 0, 0, 2, 4, 1, 2, 2, 0])  # unsorted, nothing of type 3
    leaves = [x, *layer.parameters()]
    want, got = layer(x, types), graphweave.compile(layer)(x, types)
    torch.testing.assert_close(got, want)
    weights = want.detach().cos()
    wanted, given = (torch.autograd.grad((y * weights).sum(), leaves) for y in (want, got))
    for a, b in zip(given, wanted, strict=True):
        torch.testing.assert_close(a, b)
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


def test_attention_within_relations_one_of_which_has_no_edges(fresh_compiler: None) -> None:
    """The frame is traced without edges of relation 1, then serves a graph without those of 0, and one with all."""
    torch.manual_seed(0)
    layer = pyg.RGATConv(4, 3, num_relations=3, heads=2, attention_mechanism="within-relation").double()
    compiled = graphweave.compile(layer)
    for nodes, relations in ((7, (0, 2)), (9, (1, 2)), (6, (0, 1, 2))):
        edge_index = random_graph(nodes, nodes, 4 * nodes)
        edge_type = torch.tensor(relations)[torch.arange(4 * nodes) % len(relations)]
        x = features(nodes, 4, torch.float64)
        assert_matches(compiled, layer, x, edge_index, edge_type, module=layer, label=f"relations {relations}")
        counts = graphweave.counters()
        assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


def test_originals_are_back_after_the_last_call() -> None:
    heuristic, forward = torch_geometric.backend.use_segment_matmul_heuristic, pyg.HeteroLinear.forward
    with pytest.raises(ValueError, match="inside"), polyfilled():
        with polyfilled():
            assert pyg.HeteroLinear.forward is not forward
        assert torch_geometric.backend.use_segment_matmul_heuristic is not heuristic
        raise ValueError("inside")
    assert torch_geometric.backend.use_segment_matmul_heuristic is heuristic
    assert pyg.HeteroLinear.forward is forward


def test_a_library_that_is_not_imported_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "torch_geometric"]:
        monkeypatch.delitem(sys.modules, name)
    with polyfilled():
        assert "torch_geometric" not in sys.modules


def test_negative_edges_are_drawn_outside_of_graphs(fresh_compiler: None) -> None:
    """Graphs before the draw and behind it, and none of the numbers that Python draws."""
    torch.manual_seed(0)
    layer = pyg.SuperGATConv(4, 3, heads=2, is_undirected=True).double()
    x, edge_index = features(60, 4, torch.float64), random_graph(60, 60, 200)
    compiled = graphweave.compile(layer)

    def drawn(model: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        random.seed(0)
        return model(x, edge_index), layer.get_attention_loss()

    for _ in range(3):
        torch.testing.assert_close(drawn(compiled), drawn(layer))
    assert graphweave.counters()["compilations"] <= 4  # eight, where the draw is traced
