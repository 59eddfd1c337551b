"""Layers in JAX equal PyTorch's with the same weights, forward and every gradient, in float64 over awkward graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import graphweave as gw
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from graphweave.tensorlike.answers import NotExpressible
from tests.nn.test_nn_layers import arguments, graph_of, made
from tests.nn_cases import CASES, graphs_of
from tests.programs.graphs import EdgeList, zoo
from tests.support import by_default

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

pytestmark = pytest.mark.usefixtures("float64")

ZOO = {g.name: g for g in zoo(3)}


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def assert_same(
    module: nn.Module, graph: Any, data: list[Tensor], fixed: tuple[Any, ...], pair: bool, on_edges: Sequence[str] = ()
) -> None:
    """The results, and the gradients of their signed squares in all of `data` and all parameters. `data` are features
    of nodes, then arguments of the names `on_edges`."""
    names = [name for name, _ in module.named_parameters()]
    rows = torch.arange(1, 4, dtype=torch.float64)

    def split(tensors: list[Any]) -> tuple[Any, dict[str, Any]]:
        feat, more = (tuple(tensors[:2]), tensors[2:]) if pair else (tensors[0], tensors[1:])
        return feat, dict(zip(on_edges, more, strict=True))

    def score(outs: list[Any], weight: Any) -> Any:
        return sum((out * out * weight[i % 3] + out).sum() for i, out in enumerate(outs))

    with override(eager_kernels=False):
        given = [x.clone().requires_grad_() for x in data]
        feat, more = split(given)
        want = leaves(module(graph, feat, *fixed, **more))
        wanted = torch.autograd.grad(
            score(want, rows), [*given, *module.parameters()], allow_unused=True, materialize_grads=True
        )
    layer, own = gj.Layer(module), gj.Graph(graph)
    module.requires_grad_(False)
    concrete = [np.asarray(x) if isinstance(x, Tensor) else x for x in fixed]

    def loss(parameters: Any, arrays: list[Any]) -> Any:
        feat, more = split(arrays)
        outs = leaves(layer.apply(parameters, own, feat, *concrete, **more))
        return score(outs, jnp.asarray(rows.numpy())), outs

    arrays = [jnp.asarray(x.numpy()) for x in data]
    (_, got), (of_parameters, of_data) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(
        layer.parameters(), arrays
    )
    module.requires_grad_(True)
    found = [*got, *of_data, *(of_parameters[name] for name in names)]
    expected = [*(x.detach() for x in want), *wanted]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), b.numpy(), rtol=1e-9, atol=1e-9)


DEFAULT = ("graph-both-weights", "sage-mean-pair", "sage-lstm", "gat", "edge")
FEW = ("hub_dst", "bipartite")


def check(name: str, edges: EdgeList) -> None:
    case = CASES[name]
    data, names = arguments(case, edges)
    pair = len(case.widths) == 2
    assert_same(made(case).eval(), graph_of(edges, pair), data, (), pair, names)


@pytest.mark.parametrize("name", by_default(CASES, *DEFAULT))
@pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once:UserWarning")
def test_a_layer_is_that_of_pytorch(name: str) -> None:
    for edges in graphs_of(CASES[name]):
        if edges.name in FEW:
            check(name, edges)


def test_a_graph_without_nodes_has_no_addresses_and_no_operands_for_them() -> None:
    check("edge", ZOO["empty"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:graphweave.*cannot reduce all mailboxes at once:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_a_layer_on_awkward_graphs(name: str) -> None:
    for edges in graphs_of(CASES[name]):
        check(name, edges)


RELATIONAL: dict[str, Any] = {
    "rgcn": lambda: (gnn.RelGraphConv(5, 4, 3), 1, ()),
    "rgcn-basis-mean": lambda: (gnn.RelGraphConv(5, 4, 3, "basis", 2), 1, ("mean",)),
    "rgcn-blocks": lambda: (gnn.RelGraphConv(6, 4, 3, "bdd", 2), 1, ()),
    "hgt": lambda: (gnn.HGTConv(5, 4, 2, 3, 3), 2, ()),
    "rgat": lambda: (gnn.RGATConv(5, 4, 3), 1, ()),
}


@pytest.mark.parametrize("name", by_default(RELATIONAL, "rgcn-basis-mean"))
@pytest.mark.parametrize("graph", by_default(["hub_dst", "no_edges", "one_edge", "duplicates"], "hub_dst"))
def test_a_relational_layer_is_that_of_pytorch(name: str, graph: str) -> None:
    edges, generator = ZOO[graph], torch.Generator().manual_seed(2)
    module, kinds, more = RELATIONAL[name]()
    width = 6 if name == "rgcn-blocks" else 5
    nodes = torch.randint(3, (edges.num_src,), generator=generator)
    types = torch.randint(2, (len(edges.src),), generator=generator)  # the third type has no edges
    x = torch.randn(edges.num_src, width, generator=generator, dtype=torch.float64)
    fixed = (nodes, types) if kinds == 2 else (types,)
    assert_same(module.double().eval(), graph_of(edges, False), [x], (*fixed, *more), False)


def test_a_layer_of_several_relations_is_that_of_pytorch() -> None:
    generator = torch.Generator().manual_seed(0)
    edges = {
        ("user", "likes", "item"): torch.randint(6, (2, 20), generator=generator),
        ("item", "likes", "user"): torch.randint(6, (2, 9), generator=generator),
        ("item", "near", "item"): torch.randint(6, (2, 14), generator=generator),
    }
    graph = gw.heterograph({key: (e[0], e[1]) for key, e in edges.items()}, {"user": 6, "item": 6})
    layers: dict[object, nn.Module] = {
        "near": gnn.GraphConv(3, 2),
        ("user", "likes", "item"): gnn.SAGEConv(3, 2, "mean"),
    }
    module = gnn.HeteroGraphConv(layers, aggregate="max").double()
    data = {t: torch.randn(6, 3, generator=generator, dtype=torch.float64) for t in ("user", "item")}
    with override(eager_kernels=False):
        want = module(graph, data)
    layer = gj.Layer(module)
    arrays = {t: jnp.asarray(x.numpy()) for t, x in data.items()}
    got = jax.jit(lambda p, x: layer.apply(p, gj.Graph(graph), x))(layer.parameters(), arrays)
    assert got.keys() == want.keys()
    for key, x in want.items():
        np.testing.assert_allclose(got[key], x.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_parameters_are_drawn_from_a_key_as_the_constructor_draws_them() -> None:
    layer = gj.Layer(gnn.GATConv(5, 4, num_heads=2))
    first, again, other = (layer.init(jax.random.key(k)) for k in (0, 0, 1))
    assert first.keys() == dict(layer.module.named_parameters()).keys()
    assert all(bool((first[k] == again[k]).all()) for k in first)
    assert not bool((first["fc.weight"] == other["fc.weight"]).all())
    assert bool((first["bias"] == 0).all()), "which reset_parameters sets, after PyTorch's own"


RECURRENT: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(5, 4, batch_first=True),
    "lstm both ways": lambda: nn.LSTM(5, 4, num_layers=2, bidirectional=True),
    "lstm projected": lambda: nn.LSTM(5, 6, proj_size=3),
    "lstm without biases": lambda: nn.LSTM(5, 6, proj_size=3, bias=False),
    "gru": lambda: nn.GRU(5, 4, num_layers=2, batch_first=True),
    "gru without biases": lambda: nn.GRU(5, 4, bias=False, bidirectional=True),
    "lstm cell": lambda: nn.LSTMCell(5, 4),
    "gru cell": lambda: nn.GRUCell(5, 4, bias=False),
}


@pytest.mark.parametrize("name", by_default(RECURRENT, "lstm both ways", "gru"))
def test_recurrent_modules_are_those_of_pytorch(name: str) -> None:
    """Outputs and states, and every gradient."""
    torch.manual_seed(0)
    module = RECURRENT[name]().double()
    x = torch.randn(*((3, 5) if isinstance(module, nn.RNNCellBase) else (3, 7, 5)), dtype=torch.float64)

    def score(outs: list[Any]) -> Any:
        return sum((out**2 + out).sum() for out in outs)

    given = x.clone().requires_grad_()
    want = score(pytree.tree_leaves(module(given)))
    wanted = torch.autograd.grad(want, [given, *module.parameters()])
    layer = gj.Layer(module)

    def loss(parameters: Any, x: Any) -> Any:
        return score(jax.tree.leaves(layer.apply(parameters, x)))

    value, (of_parameters, of_x) = jax.jit(jax.value_and_grad(loss, (0, 1)))(layer.parameters(), jnp.asarray(x.numpy()))
    found = [value, of_x, *(of_parameters[n] for n, _ in module.named_parameters())]
    for a, b in zip(found, (want.detach(), *wanted), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)


def test_dropout_between_recurrent_layers_is_refused() -> None:
    layer = gj.Layer(nn.LSTM(3, 2, num_layers=2, dropout=0.5).double())
    layer.module.train()
    with pytest.raises(DataError, match="no dropout between layers"):
        layer.apply(layer.parameters(), jnp.ones((1, 2, 3)))


def test_a_step_without_a_meaning_is_named() -> None:
    layer = gj.Layer(Sorted())
    with pytest.raises(NotExpressible, match="sort has no meaning in JAX"):
        layer.apply({}, jnp.ones((2, 3)))


class Sorted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sort(dim=0).values
