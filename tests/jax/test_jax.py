"""Operators on edges for JAX against the same functions in plain jax.numpy, and bit for bit against PyTorch's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
import torch

from graphweave import Schedule, explain, ops
from graphweave.core.errors import DataError, DerivativeError, IndexRangeError, ScheduleError, SettingsError
from graphweave.core.types import Fold, Op
from graphweave.execute import region_step
from graphweave.execute.cpp_divided import DividedRows
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Reduce
from graphweave.runtime import long_rows
from tests.core.test_operators import alone, operands
from tests.programs.graphs import EdgeList, zoo
from tests.sanitizer_support import run_sanitized
from tests.support import by_default, threads

jax = pytest.importorskip("jax", reason="JAX is absent: pip install graphweave[jax]")
jnp = jax.numpy
gj = pytest.importorskip("graphweave.jax")

pytestmark = pytest.mark.usefixtures("float64")
ELEMENTWISE = pytest.importorskip("graphweave.jax.elementwise").ELEMENTWISE
evaluate = pytest.importorskip("graphweave.jax.calls").evaluate
kernel_graph = pytest.importorskip("graphweave.jax.kernel_graph")

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


CASES = [(name, graph) for name in MESSAGES for graph in ZOO]
BY_DEFAULT = [(name, "hub_dst") for name in MESSAGES] + [
    ("tanh difference", graph) for graph in ("one_node", "no_edges_no_src", "bipartite")
]


@pytest.mark.parametrize("case", by_default(CASES, *BY_DEFAULT), ids=", ".join)
def test_values_and_gradients_are_those_of_the_definition(case: tuple[str, str]) -> None:
    name, graph = case
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


def test_threads_are_chosen_when_compiled_functions_run() -> None:
    g, x = fixed(HUB), data_of(HUB)[0]["h"]

    def inside(jaxpr: Any) -> Iterator[Any]:
        for eqn in jaxpr.eqns:
            yield from [eqn.params["table"]] if "table" in eqn.params else []
            for body in eqn.params.values():
                yield from inside(body.jaxpr) if hasattr(body, "jaxpr") else ()

    def tables(schedule: Any) -> list[Any]:
        f = functools.partial(gj.spmm, g, "copy_u", schedule=schedule)
        return list(inside(jax.make_jaxpr(lambda x: f(src=x))(x).jaxpr))

    def found(schedule: Any) -> set[int]:
        return {table.threads for table in tables(schedule)}

    summed = jax.jit(lambda x: gj.spmm(g, "copy_u", src=x))
    with threads(1):
        before, kept = summed(x), tables("auto")
        try:
            gj.set_num_threads(2)
            assert {table.threads for table in kept} == {2}, "which had been compiled for one thread"
            assert found(Schedule(threads=1)) == {1}
            close(summed(x), before, 0)
        finally:
            gj.set_num_threads(None)
        assert found("auto") == {1}
    with pytest.raises(SettingsError, match="from 1 on"):
        gj.set_num_threads(0)


def attention(g: Any, h: Any, w: Any, a: Any, b: Any) -> Any:
    def score(src: Any, dst: Any, edge: Any) -> Any:
        return jax.nn.leaky_relu(((src @ w) * a).sum(1) + ((dst @ w) * b).sum(1), 0.2)

    return gj.attend(g, score, lambda src, dst, edge: src @ w, src=h, dst=h)


def attention_segments(graph: EdgeList, h: Any, w: Any, a: Any, b: Any) -> Any:
    src, dst = np.asarray(graph.src), np.asarray(graph.dst)
    z = h @ w
    score = jax.nn.leaky_relu((z @ a)[src] + (z @ b)[dst], 0.2)
    e = jnp.exp(score - jax.ops.segment_max(score, dst, graph.num_dst)[dst])
    weight = e / jax.ops.segment_sum(e, dst, graph.num_dst)[dst]
    return jax.ops.segment_sum(weight[:, None] * z[src], dst, graph.num_dst)


def square(nodes: int, edges: int, seed: int = 4) -> EdgeList:
    """A graph in which some nodes have no incoming edges and some no outgoing ones."""
    rng = np.random.default_rng(seed)
    src, dst = (torch.from_numpy(rng.integers(0, nodes - 3, edges)) for _ in range(2))
    return EdgeList("square", src, dst, nodes, nodes)


def test_what_depends_on_one_end_is_computed_on_nodes_forward_and_backward() -> None:
    graph = square(20, 150)
    rng = np.random.default_rng(6)
    given = [jnp.asarray(rng.normal(size=size)) for size in ((20, 6), (6, 4), (4,), (4,))]
    g = gj.FixedGraph(graph.src, graph.dst, graph.num_src)

    def loss(f: Call, of: Any) -> Call:
        return jax.grad(lambda *a: (f(of, *a) ** 2).sum(), (0, 1, 2, 3))

    close(jax.jit(loss(attention, g))(*given), loss(attention_segments, graph)(*given), 1e-9)


def test_sums_of_features_of_one_end_are_computed_on_its_nodes_by_both_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = square(300, 6_000), []
    compiling = kernel_graph.compiled_halves
    monkeypatch.setattr(kernel_graph, "compiled_halves", lambda *args: made.append(compiling(*args)) or made[-1])
    rng = np.random.default_rng(6)
    given = [rng.normal(size=size).astype(np.float32) for size in ((300, 32), (32, 16), (16,), (16,))]
    g = gj.FixedGraph(graph.src, graph.dst, graph.num_src)
    jax.grad(lambda *a: attention(g, *a).sum(), (0, 1, 2, 3))(*map(jnp.asarray, given))
    program = made[0].forward.plan.program
    sums = [str(program.types[r].space) for r, n in enumerate(program.nodes) if isinstance(n, Reduce)]
    assert sums == ["nodes", "nodes"]

    def score(src: Any, dst: Any, edge: Any) -> Any:
        return torch.nn.functional.leaky_relu(((src @ w) * a).sum(1) + ((dst @ w) * b).sum(1), 0.2)

    h, w, a, b = (torch.from_numpy(x).requires_grad_() for x in given)
    index = torch.stack([graph.src, graph.dst])
    told = explain(lambda h: ops.attend(index, score, lambda s, d, e: s @ w, src=h, dst=h).sum(), h)
    assert any(step.taken and "postpone-whole" in step.rules for note in told.rewrites for step in note.steps)


def test_forward_and_backward_walk_the_edges_once_each() -> None:
    graph = square(20, 150)
    h = jnp.asarray(np.random.default_rng(6).normal(size=(20, 6)))
    text = gj.attend.text(
        gj.FixedGraph(graph.src, graph.dst, 20), lambda s, d, e: jax.nn.leaky_relu(s["a"] + d["b"], 0.2),
        lambda s, d, e: s["h"], src={"h": h, "a": h[:, 0]}, dst={"b": h[:, 1]},
    )  # fmt: skip
    walks = [line for line in text.splitlines() if line.startswith("== ") and "edges along" in line]
    own = [line.split(",")[0].rpartition("_")[2] for line in walks if "kernel prelude" not in line]
    # the forward also computes the sums over a destination's edges that the backward needs
    assert own == ["inference", "forward", "backward"]


def test_what_is_computed_on_nodes_knows_its_rows() -> None:
    graph = square(20, 150)
    g, x = gj.FixedGraph(graph.src, graph.dst, 20), jnp.asarray(np.random.default_rng(7).normal(size=(20, 6)))
    at = x[np.asarray(graph.src)]
    w = x[:6, :2]
    got = gj.sddmm(g, lambda s, d, e: (s / s.shape[0]) @ w, src=x)
    close(got, (at / 150) @ w)
    turned = gj.sddmm(g, lambda s, d, e: jnp.einsum("nf,fh->hn", s, w).T * d[:, :2], src=x, dst=x)  # the rows are dim 1
    close(turned, (at @ w) * x[np.asarray(graph.dst), :2])
    close(gj.sddmm(g, lambda s, d, e: s @ (w * np.full((6, 2), 1 / s.shape[0])), src=x), (at / 150) @ w)
    close(gj.sddmm(g, lambda s, d, e: (s + jnp.ones((150, 1))) @ w, src=x), (at + 1) @ w)


@pytest.mark.parametrize("wide", [False, True])
def test_rows_with_many_edges_are_divided(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 32 bits by native code, those of 64 bits by Python, as long as the function is traced."""
    monkeypatch.setattr(long_rows, "LONG", 40)
    monkeypatch.setattr(long_rows, "SHARE", 1 << 40)
    monkeypatch.setattr(long_rows, "PIECE", 16)
    if wide:
        monkeypatch.setattr(region_step, "INT32_MAX", -1)
    built, build = list[DividedRows](), DividedRows.build
    monkeypatch.setattr(DividedRows, "build", lambda rows: built.append(rows) or build(rows))
    rng = np.random.default_rng(12)
    src, dst = rng.integers(0, 30, 500), rng.integers(0, 30, 500)
    dst[::2], src[1::5] = 7, 3
    graph, x, w = EdgeList("hubs", src, dst, 30, 30), rng.normal(size=(30, 6)), rng.normal(size=500)
    for reduce in ("sum", "max"):
        built.clear()
        got = gj.spmm(fixed(graph), lambda s, d, e: s * e[:, None], reduce, src=x, edge=w)
        assert built
        index, edge = torch.from_numpy(np.stack([src, dst])), torch.from_numpy(w)
        close(got, ops.spmm(index, "u_mul_e", reduce, src=torch.from_numpy(x), edge=edge[:, None]).numpy())
        data = {"h": jnp.asarray(x)}, {"h": jnp.asarray(x[::-1].copy())}, {"w": jnp.asarray(w)}

        def loss(data: Any, call: Any) -> Any:
            return (call(*data) ** 2).sum()

        def ours(src: Any, dst: Any, edge: Any, reduce: Any = reduce) -> Any:
            return gj.spmm(fixed(graph), gaussian, reduce, src=src, dst=dst, edge=edge)

        def definition(src: Any, dst: Any, edge: Any, reduce: Any = reduce) -> Any:
            return plain(graph, gaussian, reduce, src, dst, edge)

        close(jax.jit(jax.grad(lambda d, f=ours: loss(d, f)))(data), jax.grad(lambda d: loss(d, definition))(data))


SCHEDULES = [
    Schedule(feature_tile=8, source_partitions=4),
    Schedule(walk="divided"),
    Schedule(walk="edges", row_order="degree"),
    Schedule(edge_order="hilbert", source_partitions=3),
    Schedule(threads=2, chunks=3, unroll=4, vector_bytes=16, prefetch=0),
]


@pytest.mark.parametrize("schedule", by_default(SCHEDULES, SCHEDULES[0]), ids=repr)
def test_a_schedule_reaches_the_kernels(schedule: Schedule) -> None:
    rng = np.random.default_rng(8)
    src, dst = rng.integers(0, 300, 4000), np.minimum(rng.integers(0, 500, 4000), 299)
    x = rng.normal(size=(300, 16))
    g, index = gj.FixedGraph(src, dst, 300), torch.from_numpy(np.stack([src, dst]))
    got = gj.spmm(g, "copy_u", src=x, schedule=schedule)
    want = ops.spmm(index, "copy_u", src=torch.from_numpy(x), schedule=schedule)
    assert np.asarray(got).tobytes() == want.numpy().tobytes()

    def loss(x: Any, schedule: Any) -> Any:
        return (gj.spmm(g, lambda s, d, e: jnp.tanh(s - d), "sum", src=x, dst=x, schedule=schedule) ** 2).sum()

    close(jax.grad(loss)(jnp.asarray(x), schedule), jax.grad(loss)(jnp.asarray(x), "auto"), 1e-8)


def test_the_code_of_kernels_is_an_attribute_away() -> None:
    g, (src, dst, _) = fixed(HUB), data_of(HUB)
    w = jnp.ones((6, 2))
    text = gj.spmm.text(g, lambda s, d, e: jnp.tanh(s - d) @ w, "sum", src=src["h"], dst=dst["h"])
    assert "gw_tanh" in text and "tests/jax/test_jax.py" in text
    for part in ("_inference, kernel", "_forward, kernel", "_backward, kernel"):
        assert part in text
    tiled = gj.spmm.text(g, "copy_u", src=src["h"], schedule=Schedule(feature_tile=2))
    assert tiled != gj.spmm.text(g, "copy_u", src=src["h"])


@pytest.mark.filterwarnings("ignore:Sparse CS[CR] tensor support is in beta")
def test_sparse_matrices_are_graphs() -> None:
    sparse = pytest.importorskip("scipy.sparse", reason="SciPy is absent")
    from jax.experimental.sparse import BCOO, BCSR

    a = sparse.random_array((5, 8), density=0.4, rng=np.random.default_rng(9), format="csr")
    x = jnp.asarray(np.random.default_rng(1).normal(size=(8, 3)))
    dense = torch.from_numpy(a.toarray())
    of_jax = BCOO.from_scipy_sparse(a)
    forms = [a, a.tocsc(), a.todok(), of_jax, BCSR.from_scipy_sparse(a), dense.to_sparse(), dense.to_sparse_csc()]
    for graph in forms:
        close(gj.spmm(graph, "u_mul_e", src=x), a.toarray() @ np.asarray(x))
    close(gj.sddmm(a.tocsc(), "copy_e"), a.tocsc().data)

    def loss(values: Any) -> Any:
        return (gj.spmm(of_jax, "u_mul_e", src=x, edge=values) ** 2).sum()

    rows, columns = a.tocoo().coords
    grad = 2 * ((a.toarray() @ np.asarray(x))[rows] * np.asarray(x)[columns]).sum(1)
    close(jax.jit(jax.grad(loss))(of_jax.data), grad)
    with pytest.raises(DataError, match="got 14 of 30 whose index is out of range"):
        gj.spmm(BCOO.fromdense(jnp.asarray(a.toarray()), nse=30), "u_mul_e", src=x)
    close(jax.jit(lambda m: gj.spmm(m, "u_mul_e", src=x))(of_jax), a.toarray() @ np.asarray(x))
    with pytest.raises(DataError, match=r"graph\.indptr must be known"):
        jax.jit(lambda m: gj.spmm(m, "u_mul_e", src=x))(BCSR.from_scipy_sparse(a))
    with pytest.raises(DataError, match="without batches"):
        gj.spmm(BCOO.fromdense(jnp.ones((2, 3, 3)), n_batch=1), "u_mul_e", src=x)


def test_slices_with_steps_and_padding_between_features_have_gradients() -> None:
    g, x = fixed(HUB), jnp.asarray(np.random.default_rng(3).normal(size=(HUB.num_src, 7)))
    at = np.asarray(HUB.src)

    def message(s: Any) -> Any:
        padded = jax.lax.pad(s, 0.0, ((0, 0, 0), (-1, 2, 2)))
        return s[:, ::3] * s[:, 1:6:2] * padded[:, :3]

    def definition(x: Any) -> Any:
        return jax.ops.segment_sum(message(x[at]), np.asarray(HUB.dst), HUB.num_dst)

    def ours(x: Any) -> Any:
        return gj.spmm(g, lambda s, d, e: message(s), src=x)

    close(*(jax.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (ours, definition)))
    close(ours(x), definition(x))


def test_products_have_first_and_second_derivatives_where_messages_are_0() -> None:
    src, dst = np.array([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 0]), np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4])
    x = np.random.default_rng(2).normal(size=(6, 3))
    x[0], x[3, 1], x[1, 0], x[2, 0], x[4, 2] = 0, 0, 0, 0, 0  # rows with one, two and three zeros, and without
    g, given = gj.FixedGraph(src, dst, 6), jnp.asarray(x)
    noise = jnp.asarray(np.random.default_rng(3).normal(size=(6, 3)))

    def definition(x: Any) -> Any:
        return jnp.stack([jnp.prod(x[src[dst == v]], axis=0) for v in range(6)])

    def ours(x: Any) -> Any:
        return gj.spmm(g, "copy_u", "prod", src=x)

    def gradient(f: Call) -> Call:
        return jax.grad(lambda x: ((f(x) + 1) ** 2 * noise).sum())

    def second(f: Call) -> Call:
        return jax.grad(lambda x: (gradient(f)(x) * noise[::-1]).sum())

    close(ours(given), definition(given))
    close(gradient(ours)(given), gradient(definition)(given))
    close(second(ours)(given), second(definition)(given))
    with pytest.raises(DerivativeError, match="third derivative of reduce='prod'"):
        jax.grad(lambda x: second(ours)(x).sum())(given)


def test_a_function_of_two_values_reduces_in_the_order_of_edges() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB, 4)

    def product(a: Any, b: Any) -> Any:
        return jnp.einsum("kij,kjl->kil", a.reshape(-1, 2, 2), b.reshape(-1, 2, 2)).reshape(-1, 4)

    def definition(x: Any) -> Any:
        out = []
        for v in range(HUB.num_dst):
            rows = [x[int(s)].reshape(2, 2) for s, d in zip(HUB.src, HUB.dst, strict=True) if d == v]
            out.append(functools.reduce(jnp.matmul, rows).reshape(4) if rows else jnp.full(4, 7.0))
        return jnp.stack(out)

    def ours(x: Any) -> Any:
        return gj.spmm(g, "copy_u", (product, 7.0), src=x)

    x = src["h"]
    close(ours(x), definition(x))
    close(*(jax.jit(jax.grad(lambda x, f=f: jnp.sin(f(x)).sum()))(x) for f in (ours, definition)))


@pytest.mark.slow
def test_a_function_of_two_values_gives_the_bits_of_pytorch() -> None:
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 60, 300), rng.integers(0, 60, 300)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    got = gj.spmm((src, dst), "copy_u", (lambda a, b: a * b + a, 0.0), src=x)
    index = torch.from_numpy(np.stack([src, dst]))
    want = ops.spmm(index, "copy_u", (lambda a, b: a * b + a, 0.0), src=torch.from_numpy(x))
    assert np.asarray(got).tobytes() == want.numpy().tobytes()


def test_reducers_that_do_not_fit_are_refused() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB)
    x = src["h"]
    with pytest.raises(DataError, match="mixes rows"):
        gj.spmm(g, "copy_u", (lambda a, b: a + b.mean(0), 0.0), src=x)
    with pytest.raises(DataError, match=r"its identity, a number \(got bool\)"):
        gj.spmm(g, "copy_u", (jnp.add, True), src=x)
    with pytest.raises(DataError, match="must return what it takes"):
        gj.spmm(g, "copy_u", (lambda a, b: (a + b)[:, :2], 0.0), src=x)
    with pytest.raises(DataError, match="identity of messages of int"):
        gj.spmm(g, "copy_u", (jnp.add, -np.inf), src=x.astype(int))


def test_integers_are_features_too() -> None:
    g, x = fixed(HUB), jnp.asarray(np.random.default_rng(1).integers(-5, 5, (HUB.num_src, 3)))
    w = jnp.asarray(np.random.default_rng(2).normal(size=(HUB.num_src, 3)))
    src, dst = np.asarray(HUB.src), np.asarray(HUB.dst)
    got = jax.jit(lambda x: gj.spmm(g, lambda s, d, e: s * s, src=x))(x)
    assert np.array_equal(got, jax.ops.segment_sum((x * x)[src], dst, HUB.num_dst))

    def ours(w: Any) -> Any:
        return gj.spmm(g, lambda s, d, e: jnp.where(s["x"] > 0, s["w"], 0.5), src={"x": x, "w": w})

    def definition(w: Any) -> Any:
        return jax.ops.segment_sum(jnp.where(x > 0, w, 0.5)[src], dst, HUB.num_dst)

    close(*(jax.jit(jax.grad(lambda w, f=f: (f(w) ** 2).sum()))(w) for f in (ours, definition)))


@pytest.mark.parametrize("op", Op)
def test_an_operator_is_the_same_in_jax(op: Op) -> None:
    """Its row names a function of JAX, which computes what the interpreter computes, and primitives, which are imported
    as the operator."""
    program, values = alone(op), operands(op)
    (want,) = interp(program, dict(zip("xyz", values, strict=False)))
    given = [jnp.asarray(v.numpy()) for v in values]
    got = evaluate(program, len(values), lambda ref: given[ref], {})
    close(got, want.numpy())
    for name in op.facts.jax[1:]:
        assert name in ELEMENTWISE
    traced = jax.make_jaxpr(attrgetter(op.facts.jax[0])(jax))(*given)
    assert len(op.facts.jax) == 1 or any(name in str(traced) for name in op.facts.jax[1:])


@pytest.mark.parametrize("fold", Fold)
def test_a_fold_is_the_same_in_jax(fold: Fold) -> None:
    g, x = fixed(HUB), data_of(HUB)[0]["h"]
    got = gj.spmm(g, "copy_u", fold.facts.jax, src=x)
    of_jax = getattr(jax.ops, f"segment_{fold.facts.jax}")(x[np.asarray(HUB.src)], np.asarray(HUB.dst), HUB.num_dst)
    some = np.bincount(np.asarray(HUB.dst), minlength=HUB.num_dst) > 0
    close(got[some], of_jax[some])
    inside = gj.sddmm(g, lambda s, d, e: getattr(s, fold.facts.jax)(1), src=x)
    close(inside, getattr(jnp, fold.facts.jax)(x, axis=1)[np.asarray(HUB.src)])


def test_a_batch_is_features_of_one_walk_along_the_edges() -> None:
    """Forward and gradients equal those of the elements one by one, and no kernel runs in a loop over them."""
    g, (src, _, edge) = fixed(HUB), data_of(HUB)
    rng = np.random.default_rng(4)
    batch, w = jnp.stack([src["h"], 2 * src["h"], src["h"] ** 2]), jnp.asarray(rng.normal(size=(3, 6, 2)))

    def loss(x: Any, w: Any) -> Any:
        def message(s: Any, d: Any, e: Any) -> Any:
            return jnp.tanh((s - d) @ w) * e["w"][:, None]

        scores = gj.attend(g, lambda s, d, e: (s * d).sum(-1), message, src=x, dst=x, edge=edge)
        return (scores**2).sum() + gj.spmm(g, message, "max", src=x, dst=x, edge=edge).sum()

    both = jax.value_and_grad(loss, (0, 1))
    for dims in ((0, 0), (0, None), (None, 0)):
        args = [x if d == 0 else x[0] for x, d in zip((batch, w), dims, strict=True)]
        got = jax.jit(jax.vmap(both, in_axes=dims))(*args)
        for i in range(3):
            one = both(*(x[i] if d == 0 else x for x, d in zip(args, dims, strict=True)))
            close(jax.tree.map(lambda x, i=i: x[i], got), one, 1e-9)

    assert "scan" not in str(jax.make_jaxpr(jax.vmap(both))(batch, w))
    assert jax.jacrev(lambda x: gj.spmm(g, "copy_u", src=x)[:, 0])(src["h"]).shape == (12, 12, 6)


def test_gradients_go_through_other_transformations() -> None:
    graph = square(20, 150)
    at = np.asarray(graph.src), np.asarray(graph.dst)
    rng = np.random.default_rng(3)
    g, x, w = gj.FixedGraph(*at, 20), jnp.asarray(rng.normal(size=(20, 4))), jnp.asarray(rng.normal(size=(4, 4)))

    def message(s: Any, d: Any) -> Any:
        return jnp.tanh((s - d) @ w) * jnp.arange(4.0)  # a constant within the trace

    def ours(x: Any) -> Any:
        return (gj.spmm(g, lambda s, d, e: message(s, d), src=x, dst=x) ** 2).sum()

    def definition(x: Any) -> Any:
        return (jax.ops.segment_sum(message(x[at[0]], x[at[1]]), at[1], 20) ** 2).sum()

    def step(f: Call) -> Call:
        return lambda x: jax.lax.scan(lambda c, _: (c - 1e-3 * jax.grad(f)(c), f(c)), x, None, length=2)

    for change in (lambda f: jax.grad(jax.checkpoint(f)), step, lambda f: lambda x: jax.vmap(jax.grad(f))(x[None])):
        close(jax.jit(change(ours))(x), jax.jit(change(definition))(x), 1e-9)


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
    with pytest.raises(SettingsError, match="schedule must be 'auto'"):
        gj.spmm(g, "copy_u", src=x, schedule="rows")
    with pytest.raises(ScheduleError, match="expected a field for a CPU"):
        gj.spmm(g, "copy_u", src=x, schedule=Schedule(gpu_warps=4))


def test_the_row_of_the_only_edge_is_found_in_any_dim_of_size_1() -> None:
    """Of sizes that are all 1, JAX's own rules of derivatives squeeze one dim and put another in its place."""
    edges = EdgeList("one_edge", torch.tensor([2]), torch.tensor([1]), 3, 3)
    g, given = fixed(edges), data_of(edges)

    def message(src: Any, dst: Any, edge: Any) -> Any:
        return (src["h"][None] * dst["h"][:, None] * jnp.squeeze(edge["w"]))[0]

    def ours(*data: Any) -> Any:
        return gj.spmm(g, message, "sum", src=data[0], dst=data[1], edge=data[2])

    def definition(*data: Any) -> Any:
        return plain(edges, message, "sum", *data)

    close(ours(*given), definition(*given))
    found, want = (jax.jit(jax.grad(lambda *a: (f(*a) ** 2).sum(), (0, 1, 2)))(*given) for f in (ours, definition))  # noqa: B023
    close(found, want)


def test_mixing_rows_is_refused() -> None:
    g, (src, _, _) = fixed(HUB), data_of(HUB)
    with pytest.raises(DataError, match="message"):
        gj.spmm(g, lambda s, d, e: s - s.mean(0), src=src["h"])


@pytest.mark.sanitize
def test_foreign_calls_are_clean_under_sanitizers() -> None:
    run_sanitized(
        "import numpy as np, jax, jax.numpy as jnp\n"
        "import graphweave.jax as gj\n"
        "from graphweave import Schedule\n"
        "from graphweave.runtime import long_rows\n"
        "long_rows.LONG, long_rows.SHARE, long_rows.PIECE = 8, 1 << 40, 3\n"
        "rng = np.random.default_rng(0)\n"
        "src, dst = rng.integers(0, 30, 200), rng.integers(0, 30, 200)\n"
        "dst[::2] = 7\n"
        "x, w = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((30, 5), (200, 1)))\n"
        "def want(x, w):\n"
        "    return (jax.ops.segment_sum(jnp.tanh(x[src] - x[dst]) * w, dst, 30) ** 2).sum()\n"
        "for schedule in ('auto', Schedule(source_partitions=4)):\n"
        "    def got(x, w, src=src, dst=dst):\n"
        "        message = lambda s, d, e: jnp.tanh(s - d) * e\n"
        "        return (gj.spmm((src, dst), message, src=x, dst=x, edge=w, schedule=schedule) ** 2).sum()\n"
        "    theirs = jax.grad(want, (0, 1))(x, w)\n"
        "    for edges in ((), (src, dst)):\n"  # the latter are traced
        "        ours = jax.jit(jax.grad(got, (0, 1)))(x, w, *edges)\n"
        "        for a, b in zip(ours, theirs):\n"
        "            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)\n"
    )
