"""`graphweave.jax.Graph`: data, message passing, several relations and batches, as an argument of JAX's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import graphweave as gw
import graphweave.function as fn
from graphweave.core.errors import DataError
from graphweave.core.settings import override
from tests.programs.graphs import EdgeList, zoo
from tests.support import by_default

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

pytestmark = pytest.mark.usefixtures("float64")
compiled_halves = pytest.importorskip("graphweave.jax.compiled").compiled_halves

ZOO = {g.name: g for g in zoo(3)}
SQUARE = [name for name, g in ZOO.items() if g.square]


def with_data(edges: EdgeList, width: int = 3) -> Any:
    rng = np.random.default_rng(1)
    g = gj.graph((edges.src, edges.dst), edges.num_src)
    g.ndata["h"] = jnp.asarray(rng.normal(size=(edges.num_src, width)))
    g.edata["w"] = jnp.asarray(rng.normal(size=(len(edges.src), 1)))
    return g


def in_pytorch(g: Any) -> Any:
    """The same graph with tensors as data."""
    edges = g.tensors.edges()
    out = gw.graph(edges, g.num_nodes())
    for mine, theirs in ((out.ndata, g.ndata), (out.edata, g.edata)):
        for name, x in theirs.items():
            mine[name] = torch.from_numpy(np.array(x))
    return out


def attention(edges: Any) -> dict[str, Any]:
    return {"s": (edges.src["h"] * edges.dst["h"]).sum(-1)[:, None] * edges.data["w"], "m": edges.src["h"]}


def weighted(nodes: Any) -> dict[str, Any]:
    return {"o": (nodes.mailbox["s"].softmax(1) * nodes.mailbox["m"]).sum(1)}


def spread(nodes: Any) -> dict[str, Any]:
    box = nodes.mailbox["m"]
    return {"o": box.mean(1) + box.max(1) - nodes.data["h"]}


PAIRS: dict[str, tuple[Any, Any]] = {
    "built-in": (fn.u_mul_e("h", "w", "m"), fn.mean("m", "o")),
    "attention": (attention, weighted),
    "spread": (fn.u_sub_v("h", "h", "m"), spread),
}


def spread_in_pytorch(nodes: Any) -> dict[str, Any]:
    box = nodes.mailbox["m"]
    return {"o": box.mean(1) + box.amax(1) - nodes.data["h"]}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("name", by_default(SQUARE, "hub_dst"))
def test_update_all_is_that_of_pytorch(pair: str, name: str) -> None:
    """Forward and the gradient of a graph, which is a graph."""
    g = with_data(ZOO[name])
    message, reduce = PAIRS[pair]

    def score(g: Any) -> Any:
        with g.local_scope():
            g.update_all(message, reduce)
            return (g.ndata["o"] ** 2 + g.ndata["o"]).sum(), g.ndata["o"]

    (_, got), grad = jax.jit(jax.value_and_grad(score, has_aux=True))(g)
    assert "o" not in g.ndata and "o" not in grad.ndata
    with override(eager_kernels=False):
        theirs = in_pytorch(g)
        leaves = [theirs.ndata["h"].requires_grad_(), theirs.edata["w"].requires_grad_()]
        theirs.update_all(message, spread_in_pytorch if reduce is spread else reduce)
        want = theirs.ndata["o"]
        wanted = torch.autograd.grad((want**2 + want).sum(), leaves, allow_unused=True, materialize_grads=True)
    for a, b in zip((got, grad.ndata["h"], grad.edata["w"]), (want, *wanted), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-9, atol=1e-9)


def test_one_trace_serves_all_data_of_one_structure() -> None:
    g = with_data(ZOO["hub_dst"])
    traces = []

    @jax.jit
    def summed(g: Any) -> Any:
        traces.append(g)
        g.update_all(fn.copy_u("h", "m"), fn.sum("m", "h"))
        return g

    once = summed(g)
    other = g.local_var()
    other.ndata["h"] = g.ndata["h"] * 2
    twice = summed(other)
    assert len(traces) == 1
    np.testing.assert_allclose(twice.ndata["h"], 2 * once.ndata["h"])
    assert jax.tree.structure(g) == jax.tree.structure(jax.tree.map(lambda x: x + 1, g))
    assert jax.tree.structure(g) != jax.tree.structure(with_data(ZOO["hub_dst"]))


def test_another_structure_of_the_same_sizes_has_the_same_kernels() -> None:
    """As padded batches have. XLA compiles the calls of them anew."""
    first, rng = with_data(ZOO["hub_dst"]), np.random.default_rng(7)

    def score(g: Any) -> Any:
        g.update_all(attention, weighted)
        return (g.ndata["o"] ** 2).sum()

    jax.jit(jax.grad(score))(first.local_var())
    made = compiled_halves.cache_info().misses
    other = gj.graph(tuple(rng.integers(0, first.num_nodes(), (2, first.num_edges()))), first.num_nodes())
    other.ndata["h"], other.edata["w"] = first.ndata["h"], first.edata["w"]
    jax.jit(jax.grad(score))(other)
    assert compiled_halves.cache_info().misses == made


def test_integers_of_numpy_are_structure_and_those_of_jax_are_data() -> None:
    g = with_data(ZOO["hub_dst"])
    g.edata["type"], g.ndata["n"] = np.arange(g.num_edges()) % 3, jnp.arange(g.num_nodes())
    leaves = jax.tree.leaves(g)
    assert sorted(str(x.dtype) for x in leaves) == ["float64", "float64", "int64"]
    back = jax.jit(lambda g: g)(g)
    np.testing.assert_array_equal(back.edata["type"], g.edata["type"])


def test_a_reduce_function_that_mailboxes_cannot_do_runs_in_buckets() -> None:
    g = with_data(ZOO["isolated"])

    def smallest(nodes: Any) -> dict[str, Any]:
        return {"o": jnp.sort(nodes.mailbox["m"], axis=1)[:, 0]}

    def score(h: Any, reduce: Any) -> Any:
        with g.local_scope():
            g.ndata["h"] = h
            g.update_all(fn.copy_u("h", "m"), reduce)
            return (g.ndata["o"] ** 2).sum()

    before = gw.counters()["bucketed_reductions"]
    with pytest.warns(UserWarning, match=r"smallest cannot reduce .*test_jax_graph.py"):
        got = jax.jit(jax.grad(score), static_argnums=1)(g.ndata["h"], smallest)
    assert gw.counters()["bucketed_reductions"] == before + 1
    np.testing.assert_allclose(got, jax.grad(score)(g.ndata["h"], fn.min("m", "o")), rtol=1e-12)


def relational() -> Any:
    g = gj.heterograph(
        {("a", "x", "b"): ([0, 1, 1], [0, 0, 1]), ("b", "y", "b"): ([0, 1], [1, 0]), ("b", "z", "a"): ([], [])},
        {"a": 2, "b": 3},
    )
    rng = np.random.default_rng(0)
    for ntype in ("a", "b"):
        g.nodes[ntype].data["h"] = jnp.asarray(rng.normal(size=(g.num_nodes(ntype), 4)))
    return g


@pytest.mark.parametrize("cross", ["sum", "max", lambda xs: xs[0] * 2 + xs[1]])
def test_several_relations(cross: Any) -> None:
    g = relational()

    def doubled(edges: Any) -> dict[str, Any]:
        return {"m": edges.src["h"] * 2}

    pairs = {"x": (fn.copy_u("h", "m"), fn.sum("m", "o")), "y": (doubled, fn.max("m", "o"))}

    @jax.jit
    def received(g: Any) -> Any:
        g.multi_update_all(pairs, cross)
        return g.nodes["b"].data["o"]

    a, b = np.asarray(g.nodes["a"].data["h"]), np.asarray(g.nodes["b"].data["h"])
    x, y = np.stack([a[0] + a[1], a[1], 0 * a[0]]), np.stack([2 * b[1], 2 * b[0], 0 * b[0]])
    want = cross([x, y]) if callable(cross) else x + y if cross == "sum" else np.maximum(x, y)
    want[2] = want[2] if callable(cross) else 0
    np.testing.assert_allclose(received(g), want, rtol=1e-12)
    assert g["y"].num_edges() == 2 and g.num_nodes("a") == 2


def test_batches_and_readouts() -> None:
    graphs = [with_data(ZOO[name]) for name in ("hub_dst", "one_node", "duplicates")]
    both = gj.batch(graphs)
    assert both.batch_size == 3 and list(both.batch_num_nodes()) == [12, 1, 4]
    got = jax.jit(lambda g: gj.readout_nodes(g, "h", op="mean"))(both)
    np.testing.assert_allclose(got, [g.ndata["h"].mean(0) for g in graphs], rtol=1e-12)
    assert [g.num_edges() for g in gj.unbatch(both)] == [g.num_edges() for g in graphs]
    np.testing.assert_array_equal(gj.unbatch(both)[2].ndata["h"], graphs[2].ndata["h"])


def test_edges_nodes_and_parts() -> None:
    g = with_data(ZOO["hub_dst"])
    g.apply_edges(lambda edges: {"d": edges.src["h"] - edges.dst["h"]})
    g.apply_nodes(lambda nodes: {"n": nodes.data["h"] ** 2})
    src, dst = g.edges()
    np.testing.assert_allclose(g.edata["d"], g.ndata["h"][src] - g.ndata["h"][dst])
    np.testing.assert_allclose(g.ndata["n"], g.ndata["h"] ** 2)
    few = jnp.asarray([3, 5])
    g.send_and_recv(few, fn.copy_u("h", "m"), fn.sum("m", "p"))
    want = jax.ops.segment_sum(g.ndata["h"][src[few]], dst[few], 12)
    np.testing.assert_allclose(g.ndata["p"], want)
    part = g.subgraph(jnp.asarray([5, 1]))
    np.testing.assert_array_equal(part.ndata["h"], g.ndata["h"][jnp.asarray([5, 1])])


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rows": (lambda g: g.ndata.update(x=jnp.ones(5)), "5 rows, but the graph has 12 nodes"),
    "no dict": (lambda g: g.apply_nodes(lambda nodes: 1), "a dict of arrays"),
    "no array": (lambda g: g.apply_edges(lambda edges: {"x": 1}), "must return tensors"),
    "sort": (lambda g: g.apply_edges(lambda e: {"x": jnp.sort(e.src["h"], 0)}), "sort has no meaning"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    do, words = REFUSED[case]
    with pytest.raises(DataError, match=words):
        do(with_data(ZOO["hub_dst"]))
