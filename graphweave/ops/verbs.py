"""`spmm`, `sddmm` and `attend`: one function for each edge, and a kernel for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.edge_functions import (
    BUILT_IN,
    SDDMM,
    SPMM,
    EdgeFunction,
    EdgeOperator,
    Features,
    PairFunction,
    check_schedule,
    find_function,
    sloped_reducer,
    weights_of,
)
from graphweave.core.errors import DataError
from graphweave.frontends.dynamo.compile import compile
from graphweave.frontends.dynamo.explain import Explanation, explain
from graphweave.frontends.dynamo.own_reducers import own_reducer
from graphweave.frontends.dynamo.uncompiled import inside_a_transform
from graphweave.graph.softmax import softmax
from graphweave.ops.body import as_one_call, traced_apart
from graphweave.ops.ends import Ends, ends_of, unwrapped
from graphweave.ops.messages import evaluated, gathered, is_built_in, on_edges
from graphweave.ops.perform import key_of, options_of, performed
from graphweave.ops.reducers import reduce_messages
from graphweave.ops.row_check import check_row_wise, drawn, modules_of, once, plainly
from graphweave.ops.tree import tree_reduced


def _text(function: Callable[..., Tensor], *args: object, **kwargs: object) -> str:
    """The code of the kernels of a call, which is compiled anew, as `graphweave.explain` does."""
    told: Callable[..., Explanation] = explain
    compiled = compile(function, options=options_of(kwargs.pop("schedule", "auto")))
    return told(compiled, *args, **kwargs).text("kernels")


_operator = functools.partial(EdgeOperator, "graphweave.ops", _text)


@_operator
def spmm(
    graph: object, message: object, reduce: object = "sum", *, src: Features = None, dst: Features = None,
    edge: Features = None, num_dst: int | None = None, schedule: object = "auto",
) -> Tensor:  # fmt: skip
    """out[v] = reduce of message(src[u], dst[v], edge[e]) over the edges e: u -> v. -> [destinations, ...].

    This is DGL's g-SpMM (Wang et al., "Deep Graph Library", 2019, section 3) with messages of one's own, as FeatGraph
    has them (Hu et al., SC 2020, section 3): the traversal of the graph and the function are one kernel, forward and
    backward, and no message is stored unless the mathematics needs it.

    `graph`: a `graphweave.Graph` of one relation; an edge_index [2, edges] of sources and destinations, PyG's EdgeIndex
    among them; a pair (src, dst) of index tensors; or a torch.sparse CSR, CSC or COO matrix A, which is read as in
    A @ x: rows are destinations, columns sources, and entries the values of edges, in the order in which A stores them.
    Indices are int32 or int64. Gradients in the entries of A are a sparse matrix.

    `message`: a function of (src, dst, edge), plain PyTorch, that gets each as it was given, a tensor or a dict of
    tensors, but with one row for each edge, and returns one row for each edge, [edges, ...]. It must be row-wise: the
    row of an edge may depend on nothing else that varies from edge to edge. It may close over weights, which then get
    gradients. Or a name: "copy_u", "copy_v", "copy_e", or "u_add_v" and the like, of u (`src`), v (`dst`) and e
    (`edge`), with add, sub, mul, div and dot, whose features broadcast as DGL's do, and "copy_lhs" and "copy_rhs",
    which are copy_u and copy_e.

    `reduce`: "sum"; "mean"; "max" and "min", whose ties share the gradient evenly; "prod". Destinations without edges
    get 0, of "prod" 1. Or a pair (function, identity): an associative function of two values [k, ...], row-wise as
    well, and a number, which destinations without edges get. If it computes each number from two numbers, floats, and
    is commutative, kernels fold it like a named one. (function, identity, slope) also says the derivative of the result
    in a message, slope(message, result). Without it, the gradient of a function that is flat somewhere takes two more
    passes over the edges, and has no gradient. Values of other functions are combined in the order of edges, by a
    balanced tree; this stores the messages and the values of all its inner nodes for the backward, fewer than 2 edges +
    destinations rows, and takes one kernel for each power of two up to the largest degree.

    `src` [sources, ...], `dst` [destinations, ...], `edge` [edges, ...]: a tensor, or a dict of tensors, or None, which
    the message then gets. Without `edge`, the message gets the values of a sparse matrix. How many destinations there
    are, a Graph, a matrix or a sized EdgeIndex says; else the rows of `dst`; else `num_dst`; else the rows of `src`,
    both ends being the same nodes.

    `schedule`: "auto", the compiler's choice; "tune", the best that measuring finds in the first call
    (`graphweave.tune`); or a `graphweave.Schedule` for the kernels of this call, forward and backward. With one of the
    latter, a call inside a compiled function is compiled by itself, and breaks the graph there.

    Outside of compiled functions the call is compiled at its first use with functions of this code and features of
    these widths; whether the functions are row-wise is checked then, by trying (`ops/row_check.py`). Inside
    `graphweave.compile` it is traced with what surrounds it; inside other people's `torch.compile` it is one registered
    operator (`ops/body.py`). There a tree breaks the graph, since the number of its rounds is data.

    Raises DataError, which names the argument, for what does not fit; IndexRangeError for an index out of range;
    ScheduleError, a SettingsError, for a schedule that no kernel of the call can take.
    """
    check_schedule(schedule, "tune")
    fold = _fold_of(reduce)
    alone = _is_tree(fold) or schedule != "auto"
    return _here(_spmm, alone, graph, message, fold, src, dst, edge, num_dst, schedule)


@_operator
def sddmm(
    graph: object, edge_function: object, *, src: Features = None, dst: Features = None, edge: Features = None,
    schedule: object = "auto",
) -> Tensor:  # fmt: skip
    """out[e] = edge_function(src[u], dst[v], edge[e]) for each edge e: u -> v. -> [edges, ...], in the order of edges.

    DGL's g-SDDMM (Wang et al., "Deep Graph Library", 2019, section 3) with functions of one's own. `edge_function` is
    what `message` is in `spmm`, with the same names, but "copy_rhs" is copy_v, as in DGL's `gsddmm`. The other
    arguments, what is checked and what is raised are `spmm`'s. No edges give no rows.
    """
    check_schedule(schedule, "tune")
    return _here(_sddmm, schedule != "auto", graph, edge_function, src, dst, edge, schedule)


@_operator
def attend(
    graph: object, score: object, value: object, *, src: Features = None, dst: Features = None, edge: Features = None,
    num_dst: int | None = None, schedule: object = "auto",
) -> Tensor:  # fmt: skip
    """out[v] = sum of a[e] value(src[u], dst[v], edge[e]) over the edges e: u -> v, a being the softmax of the scores
    of the edges into v: a[e] = exp(s[e]) / sum of exp(s[f]) over the edges f into v. -> [destinations, ...].

    Attention along a graph (Velickovic et al., "Graph Attention Networks", 2018, equations 3 and 4) around any score,
    as FlexAttention's `score_mod` is for dense attention. `score` and `value` are functions as `message` is in `spmm`,
    or the names of such. Scores are [edges], [edges, heads] or more; values [edges, ...], [edges, heads, ...]: a dim of
    scores is 1 or that of values at the same place, so that each head weighs its own values. Scores are not scaled.

    Destinations without edges get zeros. The largest score of a destination is subtracted first, so no exponential
    overflows. The other arguments, what is checked and what is raised are `spmm`'s.
    """
    check_schedule(schedule, "tune")
    return _here(_attend, schedule != "auto", graph, score, value, src, dst, edge, num_dst, schedule)


@_operator
def reduce_edges(
    messages: Tensor, index: Tensor, reduce: object = "sum", *, num_rows: int, schedule: object = "auto"
) -> Tensor:
    """out[v] = reduce of messages[e] over the edges e with index[e] = v. [edges, ...] -> [num_rows, ...].

    `spmm` for messages that are there already, as in PyG's `aggr`: in a compiled function the reduction and what
    computes the messages are one kernel. `index` [edges] holds int32 or int64 numbers below `num_rows`; `reduce`,
    `schedule`, rows without edges, what is checked and what is raised are `spmm`'s.
    """
    check_schedule(schedule, "tune")
    fold = _fold_of(reduce)
    alone = _is_tree(fold) or schedule != "auto"
    return _here(_reduce_edges, alone, (index, index), messages, fold, num_rows, schedule)


# ---------------------------------------------------------------- inside and outside of other compilations


class _Pair(NamedTuple):
    """A function of two values and its identity. `text` is the reducer of floats that kernels fold, if it is one."""

    combine: PairFunction
    identity: float
    text: str | None


def _fold_of(reduce: object) -> str | _Pair:
    found = sloped_reducer(reduce)
    return found if isinstance(found, str) else _Pair(*found[:2], own_reducer(*found))


def _is_tree(fold: str | _Pair) -> bool:
    return isinstance(fold, _Pair) and fold.text is None


def _here(function: Callable[..., Tensor], alone: bool, graph: object, *args: object) -> Tensor:
    """`function(graph, *args)`. While something is compiled, a function that is `alone` is compiled by itself. Any
    other function becomes part of our compilation, or a single call in that of another compiler."""
    if torch.compiler.is_compiling():
        if alone:
            return _by_itself(function, graph, *args)
        if traced_apart():
            graph = unwrapped(graph)
            return as_one_call(lambda: function(graph, *args))
    return function(graph, *args)


@torch.compiler.disable(reason="a schedule of an operator's own, or a tree of a function: its number of rounds is data")
def _by_itself(function: Callable[..., Tensor], *args: object) -> Tensor:
    """`function(*args)`, apart from what is being compiled around it."""
    return function(*args)


def _directly(function: Callable[..., Tensor], *args: object) -> Tensor:
    return function(*args)


# ---------------------------------------------------------------- of arguments in any form


def _spmm(
    graph: object, message: object, fold: str | _Pair, src: Features, dst: Features, edge: Features,
    num_dst: int | None, schedule: object,
) -> Tensor:  # fmt: skip
    ends, edge = _ends(graph, src, dst, edge, num_dst)
    rows = _destinations(ends)
    function = find_function("message", message, SPMM, src, dst, edge)
    data = schedule, ends, rows, src, dst, edge
    if isinstance(fold, str):
        return _call(_messages_reduced, (function, fold), {"message": function}, *data)
    if fold.text is None:
        messages = _call(_of_each, ("message", function), {"message": function}, *data)
    else:
        messages = _call(_floats_reduced, (function, fold.text), {"message": function}, *data)
        if messages.is_floating_point():
            return messages
    reduced_by = _by_itself if torch.compiler.is_compiling() else _directly
    return reduced_by(tree_reduced, messages, ends.dst, rows.shape[0], fold.combine, fold.identity)


def _reduce_edges(
    graph: object, messages: Tensor, fold: str | _Pair, num_rows: int, schedule: object
) -> Tensor:  # fmt: skip
    return _spmm(graph, "copy_e", fold, None, None, messages, num_rows, schedule)


def _sddmm(graph: object, given: object, src: Features, dst: Features, edge: Features, schedule: object) -> Tensor:
    ends, edge = _ends(graph, src, dst, edge, None)
    function = find_function("edge_function", given, SDDMM, src, dst, edge)
    own = {"edge_function": function}
    return _call(_of_each, ("edge_function", function), own, schedule, ends, None, src, dst, edge)


def _attend(
    graph: object, score: object, value: object, src: Features, dst: Features, edge: Features, num_dst: int | None,
    schedule: object,
) -> Tensor:  # fmt: skip
    ends, edge = _ends(graph, src, dst, edge, num_dst)
    scores = find_function("score", score, BUILT_IN, src, dst, edge)
    values = find_function("value", value, BUILT_IN, src, dst, edge)
    own = {"score": scores, "value": values}
    return _call(_attended, (scores, values), own, schedule, ends, _destinations(ends), src, dst, edge)


def _ends(graph: object, src: Features, dst: Features, edge: Features, num_dst: int | None) -> tuple[Ends, Features]:
    """The graph, and values of edges: those of a sparse matrix where none are given."""
    ends = ends_of(graph, src, dst, edge, num_dst)
    return ends, ends.values if edge is None else edge


def _destinations(ends: Ends) -> Tensor:
    if ends.dst_rows is None:
        raise DataError(
            "num_dst must be given: neither graph nor dst nor src says how many destinations there are (got None)."
            " Pass num_dst=..., or a graphweave.Graph."
        )
    return ends.dst_rows


# ---------------------------------------------------------------- what is compiled


def _of_each(
    what: str, function: EdgeFunction, src_index: Tensor, dst_index: Tensor, dst_rows: object, src: Features,
    dst: Features, edge: Features,
) -> Tensor:  # fmt: skip
    return on_edges(what, function, src_index, dst_index, src, dst, edge)


def _messages_reduced(
    function: EdgeFunction, fold: str, src_index: Tensor, dst_index: Tensor, dst_rows: Tensor, src: Features,
    dst: Features, edge: Features,
) -> Tensor:  # fmt: skip
    messages = on_edges("message", function, src_index, dst_index, src, dst, edge)
    return reduce_messages(messages, dst_index, dst_rows, fold)


def _floats_reduced(
    function: EdgeFunction, fold: str, src_index: Tensor, dst_index: Tensor, dst_rows: Tensor, src: Features,
    dst: Features, edge: Features,
) -> Tensor:  # fmt: skip
    """Like `_messages_reduced`, but messages that are no floats are returned as they are."""
    messages = on_edges("message", function, src_index, dst_index, src, dst, edge)
    return reduce_messages(messages, dst_index, dst_rows, fold) if messages.is_floating_point() else messages


def _attended(
    score: EdgeFunction, value: EdgeFunction, src_index: Tensor, dst_index: Tensor, dst_rows: Tensor, src: Features,
    dst: Features, edge: Features,
) -> Tensor:  # fmt: skip
    scores = on_edges("score", score, src_index, dst_index, src, dst, edge)
    values = on_edges("value", value, src_index, dst_index, src, dst, edge)
    weights = weights_of(scores, values, scores.is_floating_point(), lambda x: softmax(x, dst_index, dst_rows))
    return reduce_messages(weights * values, dst_index, dst_rows, "sum")


# ---------------------------------------------------------------- how it is called


def _call(
    plain: Callable[..., Tensor], chosen: tuple[object, ...], functions: Mapping[str, EdgeFunction], schedule: object,
    ends: Ends, rows: Tensor | None, src: Features, dst: Features, edge: Features,
) -> Tensor:  # fmt: skip
    """Calls `plain`, one of the functions that are compiled, with what was chosen, the graph and the data, after a
    check.

    `functions`: those of `chosen` that the user gave, by the names of the arguments.
    """
    if torch.compiler.is_compiling():
        return plain(*chosen, ends.src, ends.dst, rows, src, dst, edge)
    fold = tuple([c for c in chosen if isinstance(c, str)])
    key = (plain.__name__, fold, *key_of(tuple(functions.values()), src, dst, edge))
    try:
        if ends.src.shape[0] and not inside_a_transform():
            kinds = tuple([modules_of(f) for f in functions.values()])
            once((key, kinds), lambda: _check(plain, chosen, functions, ends, src, dst, edge))
        out: Tensor = performed(key, plain, *chosen, ends.src, ends.dst, rows, src, dst, edge, schedule=schedule)
    except IndexError as error:
        found = ends.explained()
        if found is None:
            raise
        raise found from error
    return out


def _check(
    plain: Callable[..., Tensor], chosen: tuple[object, ...], functions: Mapping[str, EdgeFunction], ends: Ends,
    src: Features, dst: Features, edge: Features,
) -> None:  # fmt: skip
    """Raises DataError if a user's function mixes rows, and whatever `plain` raises for a few of the edges."""
    every = torch.arange(ends.src.shape[0], device=ends.src.device)
    operands = [(src, drawn(ends.src)), (dst, drawn(ends.dst)), (edge, drawn(every))]
    for what, function in functions.items():
        if not is_built_in(function):
            check_row_wise(what, functools.partial(evaluated, what, function), operands)
    few = [gathered(x, at) for x, at in operands]
    places = torch.arange(drawn(every).shape[0], device=every.device)
    plainly(lambda: plain(*chosen, places, places, places.new_empty((places.shape[0], 0)), *few), few)
