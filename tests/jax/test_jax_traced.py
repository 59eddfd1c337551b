"""Edges as arguments of compiled functions of JAX: one compilation for all graphs of a shape, equal to float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import graphweave.function as fn
from graphweave import counters
from graphweave import nn as gnn
from graphweave.core.errors import DataError
from graphweave.runtime import long_rows
from tests.programs.graphs import zoo
from tests.support import by_default

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

pytestmark = pytest.mark.usefixtures("float64")
compiled_halves = pytest.importorskip("graphweave.jax.compiled").compiled_halves
served = pytest.importorskip("graphweave.jax.served")

ZOO = {g.name: g for g in zoo(3)}
NODES, EDGES = 20, 90

Call = Callable[..., Any]
Edges = tuple[Any, Any]


def random_edges(rng: np.random.Generator, nodes: int = NODES, edges: int = EDGES) -> Edges:
    return rng.integers(0, nodes, edges), rng.integers(0, nodes, edges)


def attention(x: Any, w: Any, src: Any, dst: Any) -> Any:
    """Two walks along traced edges, one of them with counts of edges."""
    out = gj.attend((src, dst), lambda s, d, e: (s * d).sum(-1), lambda s, d, e: jnp.tanh(s - d) @ w, src=x, dst=x)
    return jnp.concatenate([out, gj.spmm((src, dst), "copy_u", "mean", src=x)], 1)


def attention_segments(x: Any, w: Any, src: Any, dst: Any) -> Any:
    n = x.shape[0]
    score = (x[src] * x[dst]).sum(-1)
    e = jnp.exp(score - jax.ops.segment_max(score, dst, n)[dst])
    weight = e / jax.ops.segment_sum(e, dst, n)[dst]
    out = jax.ops.segment_sum(weight[:, None] * (jnp.tanh(x[src] - x[dst]) @ w), dst, n)
    count = jnp.maximum(jax.ops.segment_sum(jnp.ones(dst.shape), dst, n), 1)
    return jnp.concatenate([out, jax.ops.segment_sum(x[src], dst, n) / count[:, None]], 1)


def differences(x: Any, w: Any, src: Any, dst: Any) -> Any:
    """One walk, with counts of edges."""
    return gj.spmm((src, dst), lambda s, d, e: jnp.tanh(s - d) @ w, "mean", src=x, dst=x)


def differences_segments(x: Any, w: Any, src: Any, dst: Any) -> Any:
    count = jnp.maximum(jax.ops.segment_sum(jnp.ones(dst.shape, x.dtype), dst, x.shape[0]), 1)
    return jax.ops.segment_sum(jnp.tanh(x[src] - x[dst]) @ w, dst, x.shape[0]) / count[:, None]


FUNCTIONS = {"differences": (differences, differences_segments), "attention": (attention, attention_segments)}


def loss(function: Call) -> Call:
    return lambda *args: (function(*args) ** 2 + function(*args)).sum()


def close(got: Any, want: Any, tolerance: float = 1e-9) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def features(nodes: int = NODES) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    return jnp.asarray(rng.normal(size=(nodes, 5))), jnp.asarray(rng.normal(size=(5, 3)))


@pytest.mark.parametrize("name", by_default(FUNCTIONS, "differences"))
def test_one_compilation_serves_all_edges_of_one_shape(name: str) -> None:
    """Values, and gradients in features and weights. Neither JAX traces again, nor are kernels made again."""
    (x, w), rng, traces = features(), np.random.default_rng(0), []
    function, definition = FUNCTIONS[name]

    @jax.jit
    def ours(*args: Any) -> Any:
        traces.append(1)
        return jax.value_and_grad(loss(function), (0, 1))(*args)

    theirs, made = jax.jit(jax.value_and_grad(loss(definition), (0, 1))), None
    for _ in range(3):
        edges = random_edges(rng)
        close(ours(x, w, *edges), theirs(x, w, *edges))
        made = made or compiled_halves.cache_info().misses
    assert len(traces) == ours._cache_size() == 1
    assert compiled_halves.cache_info().misses == made


@pytest.mark.parametrize("name", by_default(ZOO, "no_edges"))
@pytest.mark.parametrize("dtype", by_default(["int32", "int64"], "int32"))
def test_awkward_graphs(name: str, dtype: str) -> None:
    graph, rng = ZOO[name], np.random.default_rng(2)
    x, y = (jnp.asarray(rng.normal(size=(n, 4))) for n in (graph.num_src, graph.num_dst))
    edges = [jnp.asarray(np.asarray(i), dtype) for i in (graph.src, graph.dst)]

    def ours(x: Any, y: Any, src: Any, dst: Any) -> Any:
        message = gj.spmm((src, dst), lambda s, d, e: jnp.tanh(s) * d, "max", src=x, dst=y)
        return message + gj.spmm((src, dst), "copy_u", src=x, num_dst=graph.num_dst)

    known = gj.FixedGraph(graph.src, graph.dst, graph.num_src, graph.num_dst)

    def fixed(x: Any, y: Any) -> Any:
        message = gj.spmm(known, lambda s, d, e: jnp.tanh(s) * d, "max", src=x, dst=y)
        return message + gj.spmm(known, "copy_u", src=x)

    got = jax.jit(jax.value_and_grad(loss(ours), (0, 1)))(x, y, *edges)
    close(got, jax.value_and_grad(loss(fixed), (0, 1))(x, y), 1e-12)


def padded(edges: Edges, x: Any, nodes: int, count: int) -> tuple[Any, Any, Any]:
    """As `jraph.pad_with_graphs` pads: rows of zeros, and edges from the last node to itself."""
    src, dst = (np.concatenate([i, np.full(count - len(i), nodes - 1)]) for i in edges)
    return src, dst, jnp.concatenate([x, jnp.zeros((nodes - len(x), x.shape[1]))])


@pytest.mark.parametrize("name", by_default(["gcn", "sage", "gat", "gin", "edge", "rgcn", "hgt"], "gcn", "rgcn"))
def test_graphs_of_all_sizes_that_are_padded_to_one_shape_are_one_compilation(name: str) -> None:
    """Layers run on traced edges, also where the types of edges and nodes are traced."""
    layers: dict[str, Call] = {
        "gcn": lambda: gnn.GraphConv(5, 4), "sage": lambda: gnn.SAGEConv(5, 4, "mean"),
        "gat": lambda: gnn.GATConv(5, 4, 2), "gin": lambda: gnn.GINConv(torch.nn.Linear(5, 4)),
        "edge": lambda: gnn.EdgeConv(5, 4), "rgcn": lambda: gnn.RelGraphConv(5, 4, 3),
        "hgt": lambda: gnn.HGTConv(5, 4, 2, 3, 3),
    }  # fmt: skip
    layer, rng, traces = gj.Layer(layers[name]().double()), np.random.default_rng(3), []
    parameters = layer.parameters()

    def score(out: Any, mask: Any) -> Any:
        return ((out**2 + out).reshape(len(mask), -1) * mask[:, None]).sum()

    @jax.jit
    def ours(parameters: Any, x: Any, src: Any, dst: Any, types: Any, mask: Any) -> Any:
        traces.append(1)
        g = gj.graph((src, dst), x.shape[0])
        return jax.value_and_grad(lambda p, x: score(layer.apply(p, g, x, *types), mask), (0, 1))(parameters, x)

    for nodes, count in ((7, 30), (11, 55), (15, 0)):
        edges, x = random_edges(rng, nodes, count), jnp.asarray(rng.normal(size=(nodes, 5)))
        sizes = {"rgcn": [(count, EDGES)], "hgt": [(nodes, NODES), (count, EDGES)]}.get(name, [])
        types = [rng.integers(0, 3, n) for n, _ in sizes]
        known = gj.graph(edges, nodes)

        def fixed(p: Any, x: Any) -> Any:
            return score(layer.apply(p, known, x, *types), jnp.ones(nodes))  # noqa: B023

        want = jax.value_and_grad(fixed, (0, 1))(parameters, x)
        src, dst, wide = padded(edges, x, NODES, EDGES)
        whole = [np.pad(t, (0, size - n)) for t, (n, size) in zip(types, sizes, strict=True)]
        value, (of_parameters, of_x) = ours(parameters, wide, src, dst, whole, np.arange(NODES) < nodes)
        close((value, of_parameters, of_x[:nodes]), (want[0], *want[1]))
        assert not of_x[nodes:].any()
    assert len(traces) == 1


def test_a_graph_with_traced_edges_is_an_argument() -> None:
    """Its edges are leaves, so graphs of one shape have one structure."""
    rng, traces = np.random.default_rng(4), []
    x, _ = features()

    @jax.jit
    def updated(g: Any) -> Any:
        traces.append(1)
        g.update_all(fn.copy_u("h", "m"), fn.mean("m", "o"))
        g.apply_edges(lambda edges: {"d": edges.src["h"] - edges.dst["o"]})
        return g

    for _ in range(2):
        src, dst = random_edges(rng)
        g = gj.graph((src, dst), NODES, traced=True)
        g.ndata["h"] = x
        assert len(jax.tree.leaves(g)) == 3
        out, known = updated(g), gj.graph((src, dst), NODES)
        known.ndata["h"] = x
        known.update_all(fn.copy_u("h", "m"), fn.mean("m", "o"))
        close(out.ndata["o"], known.ndata["o"])
        close(out.edata["d"], x[src] - known.ndata["o"][dst])
        close(out.in_degrees(), known.in_degrees())
    assert len(traces) == 1


BATCHES: dict[str, tuple[Call, Call]] = {
    "edges": (lambda f: jax.vmap(jax.value_and_grad(f, (0, 1)), (None, None, 0, 0)), lambda x: x),
    "edges and features": (
        lambda f: jax.vmap(jax.value_and_grad(f, (0, 1)), (0, None, 0, 0)),
        lambda x: jnp.stack([x, 2 * x, x**2]),
    ),
    "a sum over graphs": (
        lambda f: jax.grad(lambda *args: jax.vmap(f, (None, None, 0, 0))(*args).sum(), (0, 1)),
        lambda x: x,
    ),
}


@pytest.mark.parametrize("name", by_default(BATCHES, "edges and features"))
def test_a_batch_of_graphs_is_walked_graph_by_graph(name: str) -> None:
    (x, w), rng = features(), np.random.default_rng(6)
    src, dst = (jnp.stack(i) for i in zip(*(map(jnp.asarray, random_edges(rng)) for _ in range(3)), strict=True))
    change, rows = BATCHES[name]
    close(*(jax.jit(change(loss(f)))(rows(x), w, src, dst) for f in (differences, differences_segments)))


def second(f: Call) -> Call:
    return lambda x, w, *edges: jax.grad(lambda x: (jax.grad(f)(x, w, *edges) ** 2).sum())(x)


def steps(f: Call) -> Call:
    """Two steps of descent, each on edges of its own."""

    def one(x: Any, w: Any, *each: Any) -> Any:
        turns = [jnp.stack([i, jnp.roll(i, 1)]) for i in each]
        return jax.lax.scan(lambda x, e: (x - 1e-3 * jax.grad(f)(x, w, *e), None), x, turns)[0]

    return one


@pytest.mark.slow
@pytest.mark.parametrize("change", [second, steps])
def test_gradients_of_gradients_and_scans(change: Call) -> None:
    (x, w), edges = features(), tuple(map(jnp.asarray, random_edges(np.random.default_rng(7))))
    close(*(jax.jit(change(loss(f)))(x, w, *edges) for f in (differences, differences_segments)), 1e-8)


def test_rows_with_many_edges_are_divided_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_rows, "LONG", 20)
    monkeypatch.setattr(long_rows, "SHARE", 1 << 40)
    monkeypatch.setattr(long_rows, "PIECE", 7)
    (x, w), rng = features(), np.random.default_rng(8)
    ours = jax.jit(jax.value_and_grad(loss(differences), (0, 1)))
    for hub in (None, 3, 11):
        src, dst = random_edges(rng)
        if hub is not None:
            dst[::2] = hub
        close(ours(x, w, src, dst), jax.value_and_grad(loss(differences_segments), (0, 1))(x, w, src, dst))


def test_formats_are_made_once_for_edges_that_come_again() -> None:
    """Those of a forward and its backward, as for edges that are known, and of a call with the same numbers in other
    memory."""
    (x, w), (src, dst) = features(), random_edges(np.random.default_rng(9))
    ours = jax.jit(jax.grad(loss(differences), (0, 1)))
    fixed = jax.jit(jax.grad(lambda x, w: loss(differences)(x, w, src, dst), (0, 1)))

    def built(run: Call, *args: Any) -> int:
        before = counters()["format_builds"]
        jax.block_until_ready(run(*args))
        return counters()["format_builds"] - before

    assert built(ours, x, w, src, dst) == built(fixed, x, w) > 0
    assert built(ours, x, w, src.copy(), dst.copy()) == 0


def test_few_index_tensors_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "_MOST_INDICES", 4)
    (x, _), rng = features(), np.random.default_rng(10)
    ours = jax.jit(lambda x, src, dst: gj.spmm((src, dst), "copy_u", src=x))
    for _ in range(8):
        src, dst = random_edges(rng)
        close(ours(x, src, dst), jax.ops.segment_sum(x[src], dst, NODES))
    assert len(served._indices) <= 4


def test_what_does_not_fit_is_refused() -> None:
    (x, w), (src, dst) = features(), random_edges(np.random.default_rng(11))
    ours = jax.jit(differences)
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match=r"index 77 at position 3 is out of range for 20 rows"
    ):
        jax.block_until_ready(ours(x, w, np.where(np.arange(EDGES) == 3, 77, src), dst))
    close(ours(x, w, src, dst), differences_segments(x, w, src, dst))
    with pytest.raises(DataError, match="must be int32 or int64"):
        ours(x, w, src.astype(np.float64), dst)
    with pytest.raises(DataError, match="must have one length"):
        ours(x, w, src[:-1], dst)
    with pytest.raises(DataError, match="reduce must be a name where JAX traces the edges"):
        jax.jit(lambda s, d: gj.spmm((s, d), "copy_u", (jnp.add, 0.0), src=x))(src, dst)
    with pytest.raises(DataError, match="num_nodes must be given"):
        jax.jit(lambda s, d: gj.graph((s, d)))(src, dst)

    def largest(nodes: Any) -> dict[str, Any]:
        return {"o": jnp.sort(nodes.mailbox["m"], axis=1)[:, -1]}

    def sorted_messages(s: Any, d: Any) -> Any:
        g = gj.graph((s, d), NODES)
        g.ndata["h"] = x
        g.update_all(fn.copy_u("h", "m"), largest)
        return g.ndata["o"]

    with pytest.raises(DataError, match="numbers of messages are not known"):
        jax.jit(sorted_messages)(src, dst)


@pytest.mark.slow
def test_edges_of_32_bits_in_float32() -> None:
    jax.config.update("jax_enable_x64", False)
    (x, w), (src, dst) = features(), random_edges(np.random.default_rng(12))
    got = jax.jit(jax.value_and_grad(loss(differences), (0, 1)))(x, w, src, dst)
    close(got, jax.value_and_grad(loss(differences_segments), (0, 1))(x, w, src, dst), 1e-3)  # float32, sums of squares
