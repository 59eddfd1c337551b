"""Formulas that a trace follows where library functions would break the graph: they equal the functions, which stay as
they are, and compiled code asks for nothing that only holds while PyTorch traces."""

from __future__ import annotations

import random
import sys
from types import FunctionType

import pytest
import torch
import torch_geometric
import torch_geometric.nn as pyg

import graphweave
from graphweave.frontends.tracing.followed_formulas import Formulas
from tests.support import assert_matches, features, random_graph


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


def test_no_library_is_changed_by_a_call_or_a_trace(fresh_compiler: None) -> None:
    """Not even while the call is under way, which a guard or another thread would see."""
    owners = (
        torch,
        torch.sparse,
        torch.nn.LSTM,
        torch_geometric.backend,
        pyg.HeteroLinear,
        torch_geometric.utils.sparse,
    )
    before = [dict(vars(owner)) for owner in owners]
    seen = []

    @torch._dynamo.disable
    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append([dict(vars(owner)) == values for owner, values in zip(owners, before, strict=True)])
        return x

    layer, x = pyg.HeteroLinear(4, 3, 5), features(9, 4)
    compiled = graphweave.compile(lambda x, types: layer(look(layer(x, types) + 1)[:, :1].expand(-1, 4), types))
    for _ in range(2):
        compiled(x, torch.arange(9) % 5)
    assert seen == [[True] * len(owners)] * 2


@pytest.mark.parametrize("door", ["graphweave.compile", "torch.compile"])
def test_compiled_code_with_formulas_holds_in_every_later_call(door: str, fresh_compiler: None) -> None:
    torch.manual_seed(0)
    layer, softmax = pyg.HeteroLinear(4, 3, 5).double(), torch_geometric.utils.softmax

    def model(x: torch.Tensor, types: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return softmax(layer(x, types), index)

    compiled = graphweave.compile(model) if door == "graphweave.compile" else torch.compile(model, backend="graphweave")
    for n in range(9, 59):
        x, types, index = features(n, 4, torch.float64), torch.arange(n) % 5, torch.arange(n) % 7
        torch.testing.assert_close(compiled(x, types, index), model(x, types, index))
    assert graphweave.counters()["compilations"] <= (1 if door == "graphweave.compile" else 2)  # sizes become symbols
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_functions_in_a_loop_of_python_are_compiled_as_their_formulas(fresh_compiler: None) -> None:
    """Data decides how often the loop runs, so it is Python's."""
    torch.manual_seed(0)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = pyg.HeteroLinear(4, 4, 5).double()

        def forward(self, x: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
            for _ in range(int(types.max())):
                x = self.layer(x, types)
            return x

    model = Net()
    x, types = features(9, 4, torch.float64), torch.tensor([4, 0, 0, 2, 4, 1, 2, 2, 0])
    compiled = graphweave.compile(model)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, types), model(x, types))
    with torch._dynamo.config.patch(error_on_recompile=True):
        torch.testing.assert_close(compiled(x, types), model(x, types))


def test_a_method_that_is_called_as_it_is_is_compiled_as_its_formula(fresh_compiler: None) -> None:
    layer = pyg.HeteroLinear(4, 3, 5).double()
    x, types = features(9, 4, torch.float64), torch.tensor([4, 0, 0, 2, 4, 1, 2, 2, 0])
    compiled = torch.compile(layer.forward, backend="graphweave")
    torch.testing.assert_close(compiled(x, types), layer(x, types))
    counts = graphweave.counters()
    assert (counts["compilations"], counts["graph_breaks"], counts["eager_fallbacks"]) == (1, 0, 0)


def test_an_lstm_over_steps_that_data_decides_runs_as_it_is(fresh_compiler: None) -> None:
    """Its formula breaks the graph, so that its frame is looked at alone."""
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(4, 4, batch_first=True).double()

    def model(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        out, _ = lstm(x.expand(int(lengths.max()), -1, -1).transpose(0, 1))
        return out.sum(1)

    compiled = graphweave.compile(model)
    for longest in (3, 5, 2):
        x, lengths = features(6, 4, torch.float64), torch.tensor([1, longest])
        torch.testing.assert_close(compiled(x, lengths), model(x, lengths))


def test_a_library_that_is_not_imported_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [m for m in sys.modules if m.partition(".")[0] == "torch_geometric"]:
        monkeypatch.delitem(sys.modules, name)
    assert not any(
        isinstance(f, FunctionType) and "HeteroLinear" in f.__qualname__
        for f in Formulas.of(sparse=True, ranks=True).everywhere
    )
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
