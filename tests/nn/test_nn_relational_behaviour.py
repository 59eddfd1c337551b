"""Relational layers: errors, dropout, kinds of indices, names of parameters, two layers in sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError, IndexRangeError
from graphweave.core.settings import override
from tests.nn_cases import W
from tests.support import assert_matches

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

SRC, DST = torch.tensor([0, 1, 2, 3, 3, 5, 5]), torch.tensor([1, 2, 2, 2, 0, 2, 2])
ETYPES, NTYPES = torch.tensor([0, 2, 2, 1, 0, 2, 2]), torch.tensor([0, 1, 1, 0, 1, 0])
N, R = 6, 3


def graph(dtype: torch.dtype = torch.int64) -> Any:
    return gw.graph((SRC.to(dtype), DST.to(dtype)), num_nodes=N)


def x(width: int = W) -> Tensor:
    return torch.randn(N, width, generator=torch.Generator().manual_seed(1))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "rgcn": (
        lambda: gnn.RelGraphConv(W, 4, R, dropout=0.5), lambda layer, g, x, et: layer(g, x, et, "mean"),
    ),
    "rgat": (lambda: gnn.RGATConv(W, 4, R, 2, feat_drop=0.3, attn_drop=0.3), lambda layer, *args: layer(*args)),
    "rgat-within": (
        lambda: gnn.RGATConv(W, 4, R, attention="within-relation", attn_drop=0.3), lambda layer, *args: layer(*args),
    ),
    "hgt": (
        lambda: gnn.HGTConv(W, 3, 2, 2, R, dropout=0.5),
        lambda layer, g, x, et: layer(g, x, NTYPES.to(torch.int32 if et.dtype == torch.int32 else torch.int64), et),
    ),
    "hgn": (lambda: gnn.SimpleHGNConv(W, 4, 2, R, 3, feat_drop=0.3, attn_drop=0.3), lambda layer, *args: layer(*args)),
}  # fmt: skip


def some(*names: str) -> list[Any]:
    """Runs `names` by default and the rest with the slow tests, since each compiles for many seconds."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in LAYERS]


@pytest.mark.parametrize("name", LAYERS)
def test_indices_of_32_bits(name: str) -> None:
    make, call = LAYERS[name]
    layer = make().eval()
    with override(eager_kernels=False):
        want = call(layer, graph(), x(), ETYPES)
        got = call(layer, graph(torch.int32), x(), ETYPES.int())
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("name", some("rgcn", "rgat"))
def test_dropout(name: str) -> None:
    """For one seed, compiled and eager layers drop the same numbers; in evaluation they drop nothing."""
    make, call = LAYERS[name]
    layer, g = make().double(), graph()
    compiled = gw.compile(layer)

    def eager(x: Tensor) -> Any:
        with override(eager_kernels=False):
            return call(layer, g, x, ETYPES)

    assert_matches(lambda x: call(compiled, g, x, ETYPES), eager, x().double(), module=layer)
    with override(eager_kernels=False):
        torch.manual_seed(0)
        first = call(layer, g, x().double(), ETYPES)
        assert not torch.equal(call(layer, g, x().double(), ETYPES), first)
        layer.eval()
        torch.testing.assert_close(call(layer, g, x().double(), ETYPES), call(layer, g, x().double(), ETYPES))


@pytest.mark.parametrize("name", LAYERS)
def test_graphs_are_left_as_they_were(name: str) -> None:
    make, call = LAYERS[name]
    g = graph()
    g.ndata["h"], g.edata["type"] = torch.ones(N, 1), torch.zeros(SRC.shape[0])
    with override(eager_kernels=False):
        call(make(), g, x(), ETYPES)
    assert list(g.ndata) == ["h"] and list(g.edata) == ["type"] and bool((g.ndata["h"] == 1).all())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("wrong", [ETYPES[:4], ETYPES.float(), ETYPES.unsqueeze(1)])
def test_wrong_types_of_edges(name: str, wrong: Tensor) -> None:
    make, call = LAYERS[name]
    with pytest.raises(DataError, match=r"etypes? must be integers \[7\], one for each of the edges"):
        call(make(), graph(), x(), wrong)


def out_of_range(name: str, runner: Callable[[nn.Module], Any]) -> None:
    make, call = LAYERS[name]
    wrong = ETYPES.clone()
    wrong[2] = R
    with pytest.raises(IndexError), override(eager_kernels=False):
        call(runner(make().eval()), graph(), x(), wrong)


@pytest.mark.parametrize("name", LAYERS)
def test_types_out_of_range(name: str) -> None:
    out_of_range(name, lambda layer: layer)


@pytest.mark.parametrize("name", some("rgcn", "rgat"))
def test_types_out_of_range_compiled(name: str) -> None:
    out_of_range(name, gw.compile)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: gnn.RelGraphConv(W, 4, R)(graph(), x(), ETYPES, "sum"), DataError, "norm must be a tensor"),
        (lambda: gnn.RelGraphConv(6, 4, R, "bdd", 2)(graph(), None, ETYPES), DataError, "have no blocks"),
        (lambda: gnn.RelGraphConv(5, 4, R)(graph(), None, ETYPES), IndexError, "out of bounds|out of range"),
        (lambda: gnn.RGATConv(W, 4, R, attention="none"), DataError, "attention must be one of"),
        (lambda: gnn.RGATConv(W, 4, R, scores="none"), DataError, "scores must be one of"),
        (lambda: gnn.HGTConv(W, 4, 2, 2, R)(graph(), x(), NTYPES[:3], ETYPES), DataError, "ntype must be integers"),
        (
            lambda: gnn.HGTConv(W, 4, 2, 2, R)(graph(), x(), NTYPES + 1, ETYPES), IndexRangeError,
            "is out of range for 2 types",
        ),
        (lambda: gnn.HANConv(W, 4, 2, 2)(graph(), x()), DataError, r"a list of 2 graphs.*\(got one graph\)"),
        (lambda: gnn.HANConv(W, 4, 2, 2)([graph()], x()), DataError, r"a list of 2 graphs.*\(got 1\)"),
        (lambda: gnn.HANConv({"a": W}, 4, 2, 2), DataError, "one number of features"),
        (lambda: gnn.HANConv(W, 4, 2, [("a", "r", "a")])([graph()], x()), DataError, "give that graph, not a list"),
    ],
)  # fmt: skip
def test_wrong_arguments(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says), override(eager_kernels=False):
        call()


def names(layer: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in layer.state_dict().items()}


def test_parameters_have_the_names_of_dgl() -> None:
    assert names(gnn.RelGraphConv(5, 4, 3, "basis", 2, layer_norm=True)) == {
        "h_bias": (4,), "loop_weight": (5, 4), "linear_r.W": (2, 5, 4), "linear_r.coeff": (3, 2),
        "layer_norm_weight.weight": (4,), "layer_norm_weight.bias": (4,),
    }  # fmt: skip
    assert names(gnn.HGTConv(5, 4, 1, 2, 3, use_norm=True)) == {
        "skip": (2,), "residual_w": (5, 4), "linear_k.W": (2, 5, 4), "linear_q.W": (2, 5, 4), "linear_v.W": (2, 5, 4),
        "linear_a.W": (2, 4, 4), "relation_pri.0": (3,), "relation_att.0.W": (3, 4, 4), "relation_msg.0.W": (3, 4, 4),
        "norm.weight": (4,), "norm.bias": (4,),
    }  # fmt: skip


def test_weights_as_embeddings_compiled() -> None:
    layer = gnn.RelGraphConv(N, 4, R).double()
    compiled, g, ids = gw.compile(layer), graph(), torch.tensor([5, 0, 3, 3, 2, 1])
    with override(eager_kernels=False):
        for given in (None, ids):
            assert_matches(
                lambda given=given: compiled(g, given, ETYPES, "mean"),
                lambda given=given: layer(g, given, ETYPES, "mean"),
                module=layer,
            )  # fmt: skip
    assert gw.counters()["graph_breaks"] == 0 and gw.counters()["eager_fallbacks"] == 0


def test_the_types_of_a_graph_made_homogeneous() -> None:
    typed = gw.heterograph({("a", "r", "b"): ([0, 1], [0, 0]), ("b", "s", "a"): ([0, 1], [1, 2])}, {"a": 3, "b": 2})
    for ntype in typed.ntypes:
        typed.nodes[ntype].data["x"] = torch.ones(typed.num_nodes(ntype), W)
    g = gw.to_homogeneous(typed, ndata=["x"])
    layer = gnn.RelGraphConv(W, 4, 2, self_loop=False, bias=False)
    with override(eager_kernels=False):
        out = layer(g, g.ndata["x"], g.edata["_TYPE"])
    into = layer.linear_r.W.sum(1)
    torch.testing.assert_close(out[3], 2 * into[0])  # node 0 of type b receives from two nodes of type a
    torch.testing.assert_close(out[:3], torch.stack([into[1] * 0, into[1], into[1]]))


def test_attention_of_one_layer_is_given_to_the_next() -> None:
    """Two layers of Simple-HGN: with beta = 1 the second uses only the attention of the first."""
    first, second = gnn.SimpleHGNConv(W, 4, 2, R, 3), gnn.SimpleHGNConv(8, 4, 2, R, 3, beta=1.0)
    with override(eager_kernels=False):
        h, attention = first(graph(), x(), ETYPES, get_attention=True)
        out, again = second(graph(), h.flatten(1), ETYPES, attention, get_attention=True)
        torch.testing.assert_close(again, attention)
        torch.testing.assert_close(second(graph(), h.flatten(1), ETYPES, attention), out)
    sums = torch.zeros(N, 2, 1).index_add(0, DST, attention)
    torch.testing.assert_close(sums[[0, 1, 2]], torch.ones(3, 2, 1))


def test_attention_within_relations_adds_up_to_the_number_of_relations() -> None:
    layer = gnn.RGATConv(W, 4, R, 2, attention="within-relation")
    with override(eager_kernels=False):
        _, attention = layer(graph(), x(), ETYPES, get_attention=True)
    sums = torch.zeros(N, 2, 1).index_add(0, DST, attention)
    torch.testing.assert_close(sums[:, 0, 0], torch.tensor([1.0, 1.0, 2.0, 0.0, 0.0, 0.0]))
