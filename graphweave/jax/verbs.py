"""`spmm`, `sddmm` and `attend` for JAX: one function for each edge, and a kernel for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from graphweave.core.edge_functions import (
    BUILT_IN,
    FOLDS,
    SDDMM,
    SPMM,
    EdgeOperator,
    Features,
    check_schedule,
    find_function,
    grown,
    not_numbers,
    reducer,
    weights_of,
)
from graphweave.core.types import Fold
from graphweave.jax.data import EdgeData
from graphweave.jax.differentiable import text_of
from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.graph_forms import sized_edges
from graphweave.jax.moves import count, pull, push
from graphweave.jax.traced_graph import TracedGraph
from graphweave.jax.tree import tree_reduced


def _text(function: Callable[..., Array], *args: Any, **kwargs: Any) -> str:
    return text_of(lambda: function(*args, **kwargs))


_operator = functools.partial(EdgeOperator, "graphweave.jax", _text)


@_operator
def spmm(
    graph: Any, message: Any, reduce: Any = "sum", *, src: Features = None, dst: Features = None, edge: Features = None,
    num_dst: int | None = None, schedule: Any = "auto",
) -> Array:  # fmt: skip
    """out[v] = reduce of message(src[u], dst[v], edge[e]) over the edges e: u -> v. -> [destinations, ...].

    For functions of JAX, under `jit` and `grad`: DGL's g-SpMM (Wang et al., "Deep Graph Library", 2019, section 3) with
    messages of one's own, as FeatGraph has them (Hu et al., SC 2020, section 3). The kernels are those that PyTorch's
    programs get.

    `graph`: a `FixedGraph`; a `graphweave.Graph` of one relation; an edge_index [2, edges] of sources and destinations,
    PyG's EdgeIndex among them; a pair (src, dst) of index arrays; or a sparse matrix A of JAX (BCOO, BCSR), SciPy or
    PyTorch, which is read as in A @ x: rows are destinations, columns sources, and entries the values of edges, in the
    order in which A stores them. Close over the graph, or make it static, and its formats are made once. Index arrays
    may be traced, too; then each call makes the formats of its edges. Where only the entries of a matrix are traced, as
    under `jit`, close over the matrix and pass them as `edge`.

    `message`: a function of (src, dst, edge) in jax.numpy, which gets each as it was given, an array or a dict of
    arrays, but with one row for each edge, and returns one row for each edge, [edges, ...]. The row of an edge may
    depend on nothing else that varies from edge to edge. It may close over weights, which then get gradients. Or a
    name: "copy_u", "u_mul_e", "u_dot_v" and the like, of u (`src`), v (`dst`) and e (`edge`), whose features broadcast
    as DGL's do.

    `reduce`: "sum", "mean", "max", "min" or "prod". Destinations without edges get 0, of "prod" 1. Of "max" and "min",
    edges that reach the extreme share its gradient evenly. "prod" has a first and a second derivative, and no third. Or
    a pair (function, identity): an associative function of two values [k, ...], row-wise as well, and a number, which
    destinations without edges get. Values are combined in the order of edges, by a balanced tree; this keeps the
    messages and the values of all its inner nodes for the backward, fewer than 2 edges + destinations rows, and takes
    one kernel for each power of two up to the largest degree. Prefer a name where there is one.

    `src` [sources, ...], `dst` [destinations, ...], `edge` [edges, ...]: an array, a dict of arrays, or None, which the
    message then gets. Without `edge`, it gets the entries of a sparse matrix. How many destinations there are, a graph
    or matrix with sizes says; else the rows of `dst`; else `num_dst`; else the rows of `src`, both ends being the same
    nodes.

    `schedule`: "auto", the compiler's choice, or a `graphweave.Schedule` for the kernels of this call, forward and
    backward; with a pair as `reduce`, for those of the messages.

    Raises DataError, which names the argument, for what does not fit, and for what kernels cannot compute, with JAX's
    primitive and the line; IndexRangeError for an index out of range; ScheduleError, a SettingsError, for a schedule
    that no kernel of the call can take. Forward mode (`jax.jvp`) is not defined.
    `jax.vmap` makes the batch a dim of features.
    """
    check_schedule(schedule)
    fold = reducer(reduce)
    graph, edge = _entries(graph, edge)
    data = EdgeData(graph, src, dst, edge, num_dst)
    message = data.traced("message", find_function("message", message, SPMM, src, dst, edge))
    if isinstance(fold, str):
        return data.called("message", lambda *rows: _reduced(message(*rows), fold, data.graph), "dst", schedule)
    return tree_reduced(data.called("message", message, "edge", schedule), data.graph, *fold)


@_operator
def sddmm(
    graph: Any, edge_function: Any, *, src: Features = None, dst: Features = None, edge: Features = None,
    schedule: Any = "auto",
) -> Array:  # fmt: skip
    """out[e] = edge_function(src[u], dst[v], edge[e]) for each edge e: u -> v. -> [edges, ...], in the order of edges.

    DGL's g-SDDMM (Wang et al., "Deep Graph Library", 2019, section 3) with functions of one's own, for functions of
    JAX. `edge_function` is what `message` is in `spmm`, with the same names, but "copy_rhs" is copy_v, as in DGL's
    `gsddmm`. The other arguments, what is checked and what is raised are `spmm`'s. No edges give no rows.
    """
    check_schedule(schedule)
    graph, edge = _entries(graph, edge)
    data = EdgeData(graph, src, dst, edge)
    what = "edge_function"
    function = data.traced(what, find_function(what, edge_function, SDDMM, src, dst, edge))
    return data.called(what, function, "edge", schedule)


@_operator
def attend(
    graph: Any, score: Any, value: Any, *, src: Features = None, dst: Features = None, edge: Features = None,
    num_dst: int | None = None, schedule: Any = "auto",
) -> Array:  # fmt: skip
    """out[v] = sum of a[e] value(src[u], dst[v], edge[e]) over the edges e: u -> v, a being the softmax of the scores
    of the edges into v: a[e] = exp(s[e]) / sum of exp(s[f]) over the edges f into v. -> [destinations, ...].

    Attention along a graph (Velickovic et al., "Graph Attention Networks", 2018, equations 3 and 4) around any score,
    for functions of JAX. `score` and `value` are functions as `message` is in `spmm`, or the names of such. Scores are
    [edges], [edges, heads] or more; values [edges, ...], [edges, heads, ...]: a dim of scores is 1 or that of values at
    the same place, so that each head weighs its own values. Scores are not scaled.

    Destinations without edges get zeros. The largest score of a destination is subtracted first, so no exponential
    overflows. The other arguments, what is checked and what is raised are `spmm`'s.
    """
    check_schedule(schedule)
    graph, edge = _entries(graph, edge)
    data = EdgeData(graph, src, dst, edge, num_dst)
    scores = data.traced("score", find_function("score", score, BUILT_IN, src, dst, edge))
    values = data.traced("value", find_function("value", value, BUILT_IN, src, dst, edge))
    return data.called("score", lambda *rows: _attended(scores(*rows), values(*rows), data.graph), "dst", schedule)


# ---------------------------------------------------------------- in jax.numpy


def _reduced(messages: Array, reduce: str, graph: FixedGraph | TracedGraph) -> Array:
    """[edges, ...] -> [destinations, ...]."""
    if messages.dtype == jnp.bool_:
        if reduce != "sum":
            raise not_numbers(reduce, messages.dtype)
        messages = messages.astype(jnp.int32)
    out = push(messages, "dst", graph.num_dst, FOLDS.get(reduce, Fold.sum))
    if reduce != "mean":
        return out
    if not jnp.issubdtype(out.dtype, jnp.floating):
        out = out.astype(jnp.result_type(float))
    return out / grown(count("dst", graph.num_edges, graph.num_dst, out.dtype), out.ndim)


def _attended(scores: Array, values: Array, graph: FixedGraph | TracedGraph) -> Array:
    is_floating = jnp.issubdtype(scores.dtype, jnp.floating)
    weights = weights_of(scores, values, is_floating, lambda x: _softmax(x, graph))
    return push(weights * values, "dst", graph.num_dst)


def _softmax(x: Array, graph: FixedGraph | TracedGraph) -> Array:
    """Softmax of [edges, ...] over the edges of each destination, as `graphweave.ops.attend` computes it."""
    top = push(jax.lax.stop_gradient(x), "dst", graph.num_dst, Fold.max)
    e = jnp.exp(x - pull(top, "dst", graph.num_edges))
    # exp(0) = 1 is among the terms, so 1e-16 changes no bit of the sum, but a row without edges has no sum of 0.
    total = push(e, "dst", graph.num_dst) + jnp.asarray(1e-16, x.dtype)
    return e / pull(total, "dst", graph.num_edges)


def _entries(graph: Any, edge: Features) -> tuple[Any, Features]:
    """The graph, and values of edges: the entries of a sparse matrix where none are given."""
    found = sized_edges(graph)
    if found is None:
        return graph, edge
    return found, found.values if edge is None else edge
