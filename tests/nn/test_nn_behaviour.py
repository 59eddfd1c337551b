"""Properties that all layers share: names, examples, the graph's data, dropout, dtypes, errors."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from graphweave.graph.softmax import edge_softmax
from tests.nn_cases import CASES
from tests.support import assert_matches, features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    # Dynamo looks for gradients of what it traces, and hides this warning in a way that errors do not respect
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

N, W = 9, 5
EDGES = random_graph(N, N, 30, seed=2)


def graph() -> Any:
    return gw.graph((EDGES[0], EDGES[1]), num_nodes=N)


NAMES = sorted(gnn.__all__)


@pytest.mark.parametrize("module", [m.name for m in pkgutil.iter_modules(gnn.__path__)])
def test_examples_of_docstrings(module: str) -> None:
    names = {name: getattr(gnn, name) for name in NAMES} | {"gw": gw, "torch": torch, "nn": nn}
    with override(eager_kernels=False):
        found = doctest.testmod(importlib.import_module(f"graphweave.nn.{module}"), extraglobs=names)
    assert found.failed == 0


def test_every_layer_has_an_example() -> None:
    layers = [getattr(gnn, name) for name in NAMES if isinstance(getattr(gnn, name), type)]
    assert [layer.__name__ for layer in layers if ">>>" not in layer.__doc__] == []


PARAMETERS: dict[str, tuple[Callable[[], nn.Module], dict[str, tuple[int, ...]]]] = {
    "graph": (lambda: gnn.GraphConv(3, 4), {"weight": (3, 4), "bias": (4,)}),
    "sage": (lambda: gnn.SAGEConv(3, 4, "mean"), {
        "fc_neigh.weight": (4, 3), "fc_self.weight": (4, 3), "fc_self.bias": (4,)}),
    "sage-gcn": (lambda: gnn.SAGEConv(3, 4, "gcn"), {"bias": (4,), "fc_neigh.weight": (4, 3)}),
    "gat": (lambda: gnn.GATConv(3, 4, 2, residual=True), {
        "attn_l": (1, 2, 4), "attn_r": (1, 2, 4), "fc.weight": (8, 3), "res_fc.weight": (8, 3), "res_fc.bias": (8,)}),
    "gat-pair": (lambda: gnn.GATConv((3, 5), 4, 2), {
        "attn_l": (1, 2, 4), "attn_r": (1, 2, 4), "bias": (8,), "fc_src.weight": (8, 3), "fc_dst.weight": (8, 5)}),
    "gatv2": (lambda: gnn.GATv2Conv(8, 4, 2, residual=True, bias=False), {
        "attn": (1, 2, 4), "fc_src.weight": (8, 8), "fc_dst.weight": (8, 8)}),
    "gin": (lambda: gnn.GINConv(None), {"eps": (1,)}),
    "sg": (lambda: gnn.SGConv(3, 4), {"fc.weight": (4, 3), "fc.bias": (4,)}),
    "gmm": (lambda: gnn.GMMConv(3, 4, 2, 5, residual=True), {
        "mu": (5, 2), "inv_sigma": (5, 2), "bias": (4,), "fc.weight": (20, 3), "res_fc.weight": (4, 3)}),
    "tag": (lambda: gnn.TAGConv(3, 4), {"lin.weight": (4, 9), "lin.bias": (4,)}),
    "cheb": (lambda: gnn.ChebConv(3, 4, 3), {"linear.weight": (4, 9), "linear.bias": (4,)}),
    "agnn": (lambda: gnn.AGNNConv(), {"beta": (1,)}),
    "weight": (lambda: gnn.WeightAndSum(3), {"atom_weighting.0.weight": (1, 3), "atom_weighting.0.bias": (1,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_have_the_names_and_shapes_of_dgl(name: str) -> None:
    """The names and shapes are those that `state_dict()` gives in DGL 2.1."""
    make, want = PARAMETERS[name]
    assert {key: tuple(value.shape) for key, value in make().state_dict().items()} == want


def test_set2set_has_the_parameters_of_an_lstm() -> None:
    layer, lstm = gnn.Set2Set(3, 2, 2), nn.LSTM(6, 3, 2)
    layer.lstm.load_state_dict(lstm.state_dict())


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].edge and len(CASES[name].widths) == 1])
@pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once:UserWarning")
def test_data_of_the_graph_stay(name: str) -> None:
    g = graph()
    mine = {"h": torch.randn(N, 2), "x": torch.randn(N), "z": torch.randn(N, 3)}
    g.ndata.update(mine)
    g.edata["e"] = e = torch.randn(30)
    with override(eager_kernels=False):
        CASES[name].make()(g, torch.randn(N, W))
    assert sorted(g.ndata) == sorted(mine) and all(g.ndata[key] is mine[key] for key in mine)
    assert list(g.edata) == ["e"] and g.edata["e"] is e


def test_fields_of_the_user_are_not_read() -> None:
    """A layer does not take the user's edge field "w" for edge weights."""
    g, plain, x = graph(), graph(), torch.randn(N, W)
    g.edata["w"] = torch.randn(30, 1, 1)
    g.ndata["label"] = torch.arange(N)
    for layer in (gnn.GATConv(W, 4, 2), gnn.GraphConv(W, 4), gnn.APPNPConv(2, 0.1)):
        with override(eager_kernels=False):
            assert torch.equal(layer(g, x), layer(plain, x))


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dropout(compiled: bool) -> None:
    """Dropout of features, attention and edges is drawn in training and absent in evaluation."""
    torch.manual_seed(0)
    g, x = graph(), features(N, W, torch.float64)
    for layer, without in (
        (gnn.GATConv(W, 4, 2, feat_drop=0.3, attn_drop=0.4), gnn.GATConv(W, 4, 2)),
        (gnn.GATv2Conv(W, 4, 2, feat_drop=0.3, attn_drop=0.4), gnn.GATv2Conv(W, 4, 2)),
        (gnn.SAGEConv(W, 4, "pool", feat_drop=0.5), gnn.SAGEConv(W, 4, "pool")),
        (gnn.APPNPConv(2, 0.1, edge_drop=0.5), gnn.APPNPConv(2, 0.1)),
    ):
        layer.double(), without.double()
        without.load_state_dict(layer.state_dict())
        run = gw.compile(layer) if compiled else layer
        with override(eager_kernels=False):
            if compiled:
                assert_matches(lambda t, run=run: run(g, t), lambda t, layer=layer: layer(g, t), x, module=layer)
            drawn = run(g, x)
            assert not torch.allclose(drawn, without(g, x))
            layer.eval()
            torch.testing.assert_close(run(g, x), without(g, x))


def test_attention_that_is_given_back_is_what_was_used() -> None:
    g, x = graph(), features(N, W, torch.float64)
    for layer in (gnn.GATConv(W, 4, 2).double(), gnn.GATv2Conv(W, 4, 2).double()):
        with override(eager_kernels=False):
            out, a = layer(g, x, get_attention=True)
            torch.testing.assert_close(out, layer(g, x))
            torch.testing.assert_close(a, edge_softmax(g, a.log()))
        assert a.shape == (30, 2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_of_features_is_kept(dtype: torch.dtype) -> None:
    layers = [
        gnn.GraphConv(W, 4), gnn.SAGEConv(W, 4, "gcn"), gnn.GATConv(W, 4, 2), gnn.SGConv(W, 4), gnn.TAGConv(W, 4),
        gnn.ChebConv(W, 4, 3), gnn.APPNPConv(2, 0.1), gnn.GINConv(None), gnn.AGNNConv(),
    ]  # fmt: skip
    with override(eager_kernels=False):
        for layer in layers:
            assert layer.to(dtype)(graph(), torch.randn(N, W).to(dtype)).dtype == dtype


class Stacked(nn.Module):
    """Three kinds of layers and a readout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = gnn.GraphConv(W, 6, activation=torch.relu), gnn.GATConv(6, 3, 2)
        self.third, self.pool = gnn.SAGEConv(6, 4, "mean"), gnn.AvgPooling()

    def forward(self, g: Any, x: Tensor) -> Any:
        x = self.second(g, self.first(g, x)).flatten(1).relu()
        return self.pool(g, self.third(g, x))


def test_a_model_is_one_compiled_graph() -> None:
    """One graph serves batches of all sizes, and layers may share names of fields."""
    torch.manual_seed(0)
    model = Stacked().double()
    compiled = gw.compile(model)
    for sizes in ((7, 4), (9, 3, 6, 2), (5, 2)):
        parts = [gw.graph(tuple(random_graph(n, n, 3 * n, seed=n)), num_nodes=n) for n in sizes]
        batch, x = gw.batch(parts), features(sum(sizes), W, torch.float64)

        def eager(x: Tensor, batch: Any = batch) -> Any:
            with override(eager_kernels=False):
                return model(batch, x)

        assert_matches(lambda x, batch=batch: compiled(batch, x), eager, x, module=model)
    counts = gw.counters()
    assert counts["compilations"] == 1 and counts["graph_breaks"] == counts["eager_fallbacks"] == 0


def test_one_compilation_of_attention_serves_training_and_evaluation() -> None:
    layer, x = gnn.GATConv(W, 4, 2), torch.randn(N, W)
    assert torch.equal(layer(graph(), x), layer.eval()(graph(), x))
    assert gw.counters()["compilations"] == 1


def test_indices_of_32_bits() -> None:
    wide, narrow, x = graph(), graph().int(), features(N, W, torch.float64)
    weight = torch.rand(30, dtype=torch.float64) + 0.1
    with override(eager_kernels=False):
        for layer in (gnn.GraphConv(W, 4), gnn.SGConv(W, 4, k=2), gnn.GATConv(W, 4, 2)):
            layer.double()
            torch.testing.assert_close(layer(narrow, x, edge_weight=weight), layer(wide, x, edge_weight=weight))


def test_nodes_without_edges_get_what_the_formula_gives() -> None:
    g, x = gw.graph(([0], [1]), num_nodes=3), torch.randn(3, W)
    with override(eager_kernels=False):
        conv = gnn.GraphConv(W, 4)
        nn.init.normal_(conv.bias)
        assert torch.equal(conv(g, x)[2], conv.bias)
        attention = gnn.GATConv(W, 4, 2, residual=True)
        assert torch.equal(attention(g, x)[2].flatten(), attention.res_fc(x)[2])
        assert gnn.AGNNConv()(g, x)[0].eq(0).all() and gnn.EdgeConv(W, 4)(g, x)[0].eq(0).all()
        torch.testing.assert_close(gnn.APPNPConv(3, 0.2)(g, x)[2], 0.2 * x[2])


def test_batch_norm_over_edges() -> None:
    """All messages are normalised together, and running statistics follow, as in plain PyTorch."""
    torch.manual_seed(0)
    g, layer, twin = graph(), gnn.EdgeConv(W, 4, batch_norm=True).double(), gnn.EdgeConv(W, 4, True).double()
    twin.load_state_dict(layer.state_dict())

    def plain(x: Tensor) -> Tensor:
        m = twin.bn(twin.theta(x[EDGES[0]] - x[EDGES[1]]) + twin.phi(x[EDGES[1]]))
        at = EDGES[1][:, None].expand_as(m)
        return m.new_zeros(N, 4).scatter_reduce(0, at, m, "amax", include_self=False)

    x = features(N, W, torch.float64)
    torch.testing.assert_close(layer(g, x), plain(x))
    for ours, theirs in zip(layer.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_weight_of_the_call() -> None:
    x, weight = torch.randn(N, W), torch.randn(W, 4)
    layer = gnn.GraphConv(W, 4, weight=False, bias=False)
    assert list(layer.parameters()) == []
    with override(eager_kernels=False):
        torch.testing.assert_close(layer(graph(), x, weight), layer(graph(), x) @ weight)
        with pytest.raises(DataError, match="weight=False"):
            gnn.GraphConv(W, 4)(graph(), x, weight)


def test_lambda_of_each_graph_of_a_batch() -> None:
    parts = [gw.graph(([0, 1], [1, 0])), gw.graph(([0, 1, 1, 2], [1, 0, 2, 1]))]
    x, layer = torch.randn(5, W), gnn.ChebConv(W, 4, 3)
    with override(eager_kernels=False):
        both = layer(gw.batch(parts), x, [1.3, 1.8])
        torch.testing.assert_close(both[:2], layer(parts[0], x[:2], 1.3))
        torch.testing.assert_close(both[2:], layer(parts[1], x[2:], torch.tensor([1.8])))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gnn.GraphConv(3, 4, norm="sum"), r"norm must be one of 'none', 'both', 'right', 'left' \(got 'sum'\)"),
        (lambda: gnn.SAGEConv(3, 4, "max"), "aggregator_type must be one of 'mean', 'gcn', 'pool', 'lstm'"),
        (lambda: gnn.SAGEConv((3, 5), 4, "gcn"), "equal features at both ends"),
        (lambda: gnn.GINConv(None, "prod"), "aggregator_type must be one of 'sum', 'mean', 'max'"),
        (lambda: gnn.GMMConv(3, 4, 2, 3, "min"), "aggregator_type"),
        (lambda: gnn.EdgeMLPConv(nn.Linear(2, 2), "min"), "aggregator_type"),
    ],
)
def test_wrong_options(make: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(DataError, match=says):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: gnn.GraphConv(W, 4),
        lambda: gnn.GATConv(W, 4, 2),
        lambda: gnn.EdgeConv(W, 4),
        lambda: gnn.TAGConv(W, 4),
        lambda: gnn.SAGEConv(W, 4, "mean"),
        gnn.SumPooling,
    ],
)
def test_features_of_another_number_of_rows(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(DataError, match="8 rows, but the graph has 9 nodes"), override(eager_kernels=False):
        make()(graph(), torch.randn(8, W))


@pytest.mark.parametrize("name", CASES)
def test_representation_of_layers(name: str) -> None:
    assert type(CASES[name].make()).__name__ in repr(CASES[name].make())
