"""Several relations in one program of JAX: a few kernels, equal to PyTorch's in float64, forward and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import graphweave as gw
import graphweave.function as fn
from graphweave import counters
from graphweave import nn as gnn
from graphweave.core.settings import override
from tests.support import by_default

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

pytestmark = pytest.mark.usefixtures("float64")

NODES = {"a": 9, "b": 6, "lone": 2}
RELATIONS = {
    ("a", "p", "b"): 20, ("b", "q", "a"): 14, ("a", "r", "a"): 17, ("b", "s", "b"): 0, ("a", "t", "b"): 1,
    ("b", "u", "a"): 30,
}  # fmt: skip


def edges_of(seed: int) -> dict[tuple[str, str, str], tuple[Tensor, Tensor]]:
    """With duplicates, self-loops, nodes without edges, a relation without edges, one of one edge, and a type of nodes
    that no relation has."""
    made = torch.Generator().manual_seed(seed)
    return {
        key: tuple(torch.randint(NODES[t], (count,), generator=made) for t in (key[0], key[2]))  # type: ignore[misc]
        for key, count in RELATIONS.items()
    }


def features(width: int = 5) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(1)
    return {t: torch.randn(n, width, generator=made, dtype=torch.float64) for t, n in NODES.items()}


def foreign_calls(function: Any, *args: Any) -> int:
    return str(jax.make_jaxpr(function)(*args)).count("= graphweave_kernels")


LAYERS: dict[str, Any] = {
    "gcn": lambda: gnn.GraphConv(5, 4),
    "sage": lambda: gnn.SAGEConv((5, 5), 4, "mean"),
    "gat": lambda: gnn.GATConv((5, 5), 4, 2),
    "pool": lambda: gnn.SAGEConv((5, 5), 4, "pool"),
}
CASES = [(name, aggregate) for name in LAYERS for aggregate in ("sum", "mean", "max", "stack")]


@pytest.mark.parametrize("case", by_default(CASES, ("gcn", "sum")), ids=", ".join)
def test_a_layer_for_each_relation_is_a_few_kernels(case: tuple[str, str]) -> None:
    name, aggregate = case
    graph, data = gw.heterograph(edges_of(0), NODES), features()
    torch.manual_seed(0)
    module = gnn.HeteroGraphConv({key[1]: LAYERS[name]() for key in RELATIONS}, aggregate=aggregate).double()
    with override(eager_kernels=False):
        given = {t: x.clone().requires_grad_() for t, x in data.items()}
        want = sum((out**2 + out).sum() for out in module(graph, given).values())
        leaves = [*given.values(), *module.parameters()]
        wanted = torch.autograd.grad(want, leaves, allow_unused=True, materialize_grads=True)
    layer, own, before = gj.Layer(module), gj.Graph(graph), counters()["relations_apart"]

    def loss(parameters: Any, x: Any) -> Any:
        return sum((out**2 + out).sum() for out in layer.apply(parameters, own, x).values())

    arrays = {t: jnp.asarray(x.numpy()) for t, x in data.items()}
    both = jax.value_and_grad(loss, (0, 1))
    value, (of_parameters, of_x) = jax.jit(both)(layer.parameters(), arrays)
    found = [value, *of_x.values(), *(of_parameters[n] for n, _ in module.named_parameters())]
    for a, b in zip(found, (want.detach(), *wanted), strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-9, atol=1e-9)
    assert counters()["relations_apart"] == before
    if name == "gcn":
        assert foreign_calls(both, layer.parameters(), arrays) <= 4 < 2 * len(RELATIONS)


def messages(cross: str) -> Any:
    """Relations whose messages are reduced by a maximum, but for the first two, if `cross` is one."""
    last = fn.max if cross == "max" else fn.sum

    def received(g: Any, x: Any) -> Any:
        for ntype, rows in x.items():
            g.nodes[ntype].data["h"] = rows
        pairs: dict[str, Any] = {key[1]: (fn.copy_u("h", "m"), last("m", "o")) for key in RELATIONS}
        pairs["p"] = lambda edges: {"m": edges.src["h"] * edges.dst["h"]}, fn.sum("m", "o")
        pairs["q"] = pairs["p"][0], lambda nodes: {"o": nodes.mailbox["m"].mean(1)}
        g.multi_update_all(pairs, cross)
        return sum((g.nodes[t].data["o"] ** 2).sum() for t in ("a", "b"))

    return received


@pytest.mark.parametrize("cross", by_default(["sum", "max", "stack"], "sum"))
def test_traced_edges_of_several_relations_are_one_program(cross: str) -> None:
    """Nodes to which a relation sends nothing take no part in a maximum."""
    received, traces = messages(cross), []
    x = {t: jnp.asarray(rows.numpy()) for t, rows in features(3).items()}

    @jax.jit
    def ours(x: Any, edges: Any) -> Any:
        traces.append(1)
        return jax.value_and_grad(lambda x: received(gj.heterograph(edges, NODES), x))(x)

    before = counters()["relations_apart"]
    for seed in (3, 4):
        edges = {key: tuple(i.numpy() for i in ends) for key, ends in edges_of(seed).items()}
        known = gj.heterograph(edges, NODES)
        got, want = ours(x, edges), jax.value_and_grad(lambda x: received(known, x))(x)  # noqa: B023
        apart = 0.0
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
            apart += float(abs(np.asarray(b)).sum())
        assert apart > 0
    assert len(traces) == 1 and counters()["relations_apart"] == before


def test_what_is_no_program_runs_relation_by_relation() -> None:
    edges = {("a", "p", "b"): (np.array([0, 1]), np.array([0, 1])), ("a", "t", "b"): (np.array([2]), np.array([0]))}
    g, x = gj.heterograph(edges, NODES), jnp.asarray(features(3)["a"].numpy())

    def smallest(nodes: Any) -> dict[str, Any]:
        return {"o": jnp.sort(nodes.mailbox["m"], axis=1)[:, 0]}

    def received(x: Any) -> Any:
        with g.local_scope():
            g.nodes["a"].data["h"] = x
            g.multi_update_all({name: (fn.copy_u("h", "m"), smallest) for name in ("p", "t")}, "sum")
            return (g.nodes["b"].data["o"] ** 2).sum()

    def definition(x: Any) -> Any:
        total = 0.0
        for src, dst in edges.values():
            rows = jax.ops.segment_min(x[src], dst, NODES["b"])
            total += jnp.where(jnp.isinf(rows), 0, rows)
        return (total**2).sum()

    before = counters()["relations_apart"]
    with pytest.warns(UserWarning, match="smallest cannot reduce"):
        got = jax.jit(jax.value_and_grad(received))(x)
    assert counters()["relations_apart"] == before + 1
    for a, b in zip(got, jax.value_and_grad(definition)(x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["known", "traced"])
def test_types_of_edges_in_several_relations(kind: str) -> None:
    """A look-up by types that are known, and by types that JAX traces, in one program."""
    edges = {key: tuple(i.numpy() for i in ends) for key, ends in edges_of(6).items()}
    tables = jnp.asarray(np.random.default_rng(7).normal(size=(3, 4)))
    x = {t: jnp.asarray(rows.numpy()) for t, rows in features(4).items()}
    types = {name: np.random.default_rng(8).integers(0, 3, RELATIONS[key]) for key in RELATIONS for name in key[1]}

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(3, 4, dtype=torch.float64))

        def forward(self, g: Any, x: Any) -> Any:
            def message(edges: Any) -> Any:
                return {"m": edges.src["h"] * self.table.index_select(0, edges.data["type"])}

            with g.local_scope():
                for ntype, rows in x.items():
                    g.nodes[ntype].data["h"] = rows
                g.multi_update_all({name: (message, fn.sum("m", "o")) for name in ("p", "u")}, "sum")
                return {t: g.nodes[t].data["o"] for t in ("a", "b")}

    layer, before = gj.Layer(Scaled()), counters()["relations_apart"]

    def loss(table: Any, kinds: Any) -> Any:
        g = gj.heterograph(edges, NODES)
        for name in ("p", "u"):
            g.edges[name].data["type"] = kinds[name]
        return sum((rows**2).sum() for rows in layer.apply({"table": table}, g, x).values())

    def definition(table: Any) -> Any:
        total = 0.0
        for key in (("a", "p", "b"), ("b", "u", "a")):
            src, dst = edges[key]
            rows = x[key[0]][src] * table[types[key[1]]]
            total += (jax.ops.segment_sum(rows, dst, NODES[key[2]]) ** 2).sum()
        return total

    want = jax.value_and_grad(definition)(tables)
    given = {name: jnp.asarray(t) for name, t in types.items()}
    if kind == "known":
        got = jax.jit(jax.value_and_grad(lambda table: loss(table, types)))(tables)
    else:
        got = jax.jit(jax.value_and_grad(loss))(tables, given)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)
    assert counters()["relations_apart"] == before
