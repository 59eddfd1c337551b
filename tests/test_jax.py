"""Operators on edges for JAX against the same functions in plain jax.numpy, and bit for bit against PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from graphweave import ops
from graphweave.core.errors import DataError, IndexRangeError, SettingsError
from tests.programs.graphs import EdgeList, zoo
from tests.support import by_default, threads

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

ZOO = {g.name: g for g in zoo(3)}
HUB = ZOO["hub_dst"]

Call = Callable[..., Any]


def tanh_difference(src: Any, dst: Any, edge: Any) -> Any:
    return jnp.tanh(src["h"] - dst["h"]) * edge["w"][:, None]


def gaussian(src: Any, dst: Any, edge: Any) -> Any:
    return jnp.exp(-((src["h"] - dst["h"]) ** 2).sum(1, keepdims=True)) * src["h"]


def conditioned(src: Any, dst: Any, edge: Any) -> Any:
    return jnp.concatenate([src["h"], edge["w"][:, None]], axis=1) * 2.0


def clipped(src: Any, dst: Any, edge: Any) -> Any:
    return jnp.where(src["h"] > dst["h"], src["h"] ** 2, jax.nn.relu(dst["h"]))


MESSAGES: dict[str, Call] = {
    "tanh difference": tanh_difference,
    "gaussian": gaussian,
    "conditioned": conditioned,
    "clipped": clipped,
}


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def data_of(graph: EdgeList, width: int = 6, seed: int = 0) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(seed)
    src = {"h": jnp.asarray(rng.normal(size=(graph.num_src, width)))}
    dst = {"h": jnp.asarray(rng.normal(size=(graph.num_dst, width)))}
    return src, dst, {"w": jnp.asarray(rng.normal(size=len(graph.src)))}


def fixed(graph: EdgeList) -> Any:
    return gj.FixedGraph(graph.src, graph.dst, graph.num_src, graph.num_dst)


def plain(graph: EdgeList, message: Call, reduce: str, src: Any, dst: Any, edge: Any) -> Any:
    """The definition in jax.numpy."""
    at = [np.asarray(i) for i in (graph.src, graph.dst)]
    rows = message({"h": src["h"][at[0]]}, {"h": dst["h"][at[1]]}, edge)
    n = graph.num_dst
    if reduce in ("sum", "mean"):
        total = jax.ops.segment_sum(rows, at[1], n)
        if reduce == "sum":
            return total
        count = jax.ops.segment_sum(jnp.ones(len(at[1])), at[1], n)
        return total / jnp.maximum(count, 1)[:, None]
    some = jax.ops.segment_sum(jnp.ones(len(at[1])), at[1], n) > 0
    fold = jax.ops.segment_max if reduce == "max" else jax.ops.segment_min
    return jnp.where(some[:, None], fold(rows, at[1], n), 0.0)


def close(got: Any, want: Any, tolerance: float = 1e-10) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("graph", by_default(ZOO, "one_node", "no_edges_no_src", "hub_dst", "bipartite"))
@pytest.mark.parametrize("name", MESSAGES)
def test_values_and_gradients_are_those_of_the_definition(name: str, graph: str) -> None:
    edges, message = ZOO[graph], MESSAGES[name]
    given, g = data_of(edges), fixed(edges)
    for reduce in ("sum", "mean", "max"):

        def ours(src: Any, dst: Any, edge: Any) -> Any:
            return gj.spmm(g, message, reduce, src=src, dst=dst, edge=edge)  # noqa: B023

        want = plain(edges, message, reduce, *given)
        close(ours(*given), want)
        noise = jnp.asarray(np.random.default_rng(1).normal(size=want.shape))
        grads = jax.jit(jax.grad(lambda *a: (ours(*a) * noise).sum(), (0, 1, 2)))(*given)  # noqa: B023
        close(grads, jax.grad(lambda *a: (plain(edges, message, reduce, *a) * noise).sum(), (0, 1, 2))(*given))  # noqa: B023


def test_closures_get_gradients_and_gradients_have_gradients() -> None:
    g, (src, dst, _) = fixed(HUB), data_of(HUB)
    w = jnp.asarray(np.random.default_rng(2).normal(size=(6, 3)))

    def ours(w: Any, x: Any) -> Any:
        return (gj.spmm(g, lambda s, d, e: jnp.tanh(s @ w) * (d @ w), "sum", src=x, dst=dst["h"]) ** 2).sum()

    def definition(w: Any, x: Any) -> Any:
        s, d = x[np.asarray(HUB.src)], dst["h"][np.asarray(HUB.dst)]
        return (jax.ops.segment_sum(jnp.tanh(s @ w) * (d @ w), np.asarray(HUB.dst), HUB.num_dst) ** 2).sum()

    given = w, src["h"]
    close(jax.jit(jax.grad(ours, (0, 1)))(*given), jax.grad(definition, (0, 1))(*given))

    def along(f: Call) -> Call:
        return jax.grad(lambda *a: (jax.grad(f)(*a) ** 2).sum(), (0, 1))

    close(jax.jit(along(ours))(*given), along(definition)(*given), 1e-8)


def test_sddmm_and_attend_are_their_definitions() -> None:
    g, (src, dst, _) = fixed(HUB), data_of(HUB)
    at = np.asarray(HUB.src), np.asarray(HUB.dst)

    def definition(x: Any, y: Any) -> Any:
        score = (x[at[0]] * y[at[1]]).sum(1)
        top = jax.ops.segment_max(score, at[1], HUB.num_dst)
        e = jnp.exp(score - top[at[1]])
        total = jax.ops.segment_sum(e, at[1], HUB.num_dst)
        return jax.ops.segment_sum((e / total[at[1]])[:, None] * x[at[0]], at[1], HUB.num_dst)

    def ours(x: Any, y: Any) -> Any:
        return gj.attend(g, "u_dot_v", "copy_u", src=x, dst=y)

    given = src["h"], dst["h"]
    close(jax.jit(ours)(*given), definition(*given))
    noise = jnp.asarray(np.random.default_rng(3).normal(size=(HUB.num_dst, 6)))
    both = [jax.grad(lambda *a, f=f: (f(*a) * noise).sum(), (0, 1))(*given) for f in (ours, definition)]
    close(*both, 1e-8)
    scores = gj.sddmm(g, lambda s, d, e: jnp.sin(s - d), src=given[0], dst=given[1])
    close(scores, jnp.sin(given[0][at[0]] - given[1][at[1]]))


@pytest.mark.parametrize("count", [1, 2])
def test_results_are_the_bits_of_pytorch(count: int) -> None:
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 700, 9000), rng.integers(0, 700, 9000)
    index = torch.from_numpy(np.stack([src, dst]))
    x = rng.normal(size=(700, 33)).astype(np.float32)
    t = torch.from_numpy(x)
    with threads(count):
        g = gj.FixedGraph(src, dst, 700)
        pairs = [
            (gj.spmm(g, "copy_u", "sum", src=x), ops.spmm(index, "copy_u", "sum", src=t)),
            (
                gj.spmm(g, lambda s, d, e: jnp.tanh(s - d), "max", src=x, dst=x),
                ops.spmm(index, lambda s, d, e: torch.tanh(s - d), "max", src=t, dst=t),
            ),
            (gj.sddmm(g, "u_dot_v", src=x, dst=x), ops.sddmm(index, "u_dot_v", src=t, dst=t)),
            (gj.attend(g, "u_dot_v", "copy_u", src=x, dst=x), ops.attend(index, "u_dot_v", "copy_u", src=t, dst=t)),
        ]
    for got, want in pairs:
        assert np.asarray(got).tobytes() == want.numpy().tobytes()


def test_a_batch_is_mapped() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB)
    batch = jnp.stack([src["h"], 2 * src["h"]])
    got = jax.vmap(lambda x: gj.spmm(g, "copy_u", src=x))(batch)
    one = gj.spmm(g, "copy_u", src=src["h"])
    close(got, jnp.stack([one, 2 * one]))


def test_what_does_not_fit_is_refused() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB)
    x = src["h"]
    with pytest.raises(DataError, match="dst has 3 rows"):
        gj.spmm(g, "u_add_v", src=x, dst=x[:3])
    with pytest.raises(DataError, match="message must be a function"):
        gj.spmm(g, "u_plus_v", src=x)
    with pytest.raises(DataError, match="reduce must be one of"):
        gj.spmm(g, "copy_u", "median", src=x)
    with pytest.raises(DataError, match="cumsum"):
        gj.spmm(g, lambda s, d, e: jnp.cumsum(s, axis=0), src=x)
    with pytest.raises(DataError, match="message returned an array of shape"):
        gj.spmm(g, lambda s, d, e: s.sum(0), src=x)
    with pytest.raises(IndexRangeError, match="sources"):
        gj.FixedGraph([0, 7], [0, 1], 3)
    with pytest.raises(DataError, match="must be known when JAX traces"):
        jax.jit(lambda i: gj.spmm((i, i), "copy_u", src=x))(jnp.arange(3))
    with pytest.raises(SettingsError, match="schedule must be 'auto'"):
        gj.spmm(g, "copy_u", src=x, schedule="rows")


def test_mixing_rows_is_refused() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB)
    with pytest.raises(DataError, match="message"):
        gj.spmm(g, lambda s, d, e: s - s.mean(0), src=src["h"])
