"""Message passing on a graph with arrays of JAX: `graphweave.udf`, traced for kernels.

Messages and reductions are the functions of `udf/passing.py`, on tensors that stand for arrays (`tensors.py`). Their
results are one `GraphFunction` of the fields: a kernel or a few, with gradients. A reduce function that does more with
mailboxes than these can is called for each number of messages, as in PyTorch; XLA computes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax.numpy as jnp
import torch
from jax import Array
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from graphweave.core.counters import bump
from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.core.schedule import COMPILERS_CHOICE
from graphweave.graph.softmax import softmax
from graphweave.graph.structure import Structure
from graphweave.jax.differentiable import call
from graphweave.jax.fixed_graph import FixedGraph
from graphweave.jax.graph_function import GraphFunction
from graphweave.jax.importer import Rows
from graphweave.jax.kernel_graph import graph_of_rows
from graphweave.jax.moves import End, push
from graphweave.jax.several import SeveralRelations
from graphweave.jax.tensors import ArrayTensor, EndTensor, argument, array_of
from graphweave.jax.traced_graph import TracedGraph, traced_graph
from graphweave.tensorlike.answers import NotExpressible
from graphweave.udf import run
from graphweave.udf.arguments import Frames, RelationEdges
from graphweave.udf.passing import Message, Reduce, bucketed, edge_results, reduce_at_once

Fields = dict[str, Tensor]

_log = logger(__name__)


class _Refused(Exception):
    """A reduce function does more with its mailboxes than a kernel can."""


class ArrayHost:
    """`graphweave.udf.run.Host` for arrays of JAX."""

    def update_all(self, ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce) -> Fields:
        who = "the message function"
        if run.inside_kernel.get():
            return _at_once(ends, frames, message, reduce)

        try:
            return _by_kernels(
                ends, frames, lambda ends, frames: _at_once(ends, frames, message, reduce), "dst", "update_all"
            )
        except _Refused:
            if isinstance(ends.dst, ArrayTensor):
                raise DataError(
                    "the reduce function does more with messages than a mailbox can, and the numbers of messages are"
                    f" not known (got edges that JAX traces: {ends.dst!r}). Write it as reductions along dim 1 (sum,"
                    " mean, max, softmax, ...), or close over the graph."
                ) from None
            return bucketed(ends, frames, self.apply_edges(ends, frames, message, who), reduce)

    def apply_edges(self, ends: RelationEdges, frames: Frames, function: Message, who: str) -> Fields:
        if run.inside_kernel.get():
            return edge_results(ends, frames, function, who)
        return _by_kernels(
            ends, frames, lambda ends, frames: edge_results(ends, frames, function, who), "edge", "apply_edges"
        )

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if function is not softmax or run.inside_kernel.get():
            return function(*args)
        x, at, rows = args
        frames = Frames({}, {}, {"x": x}, {}, {}, ("", "", ""))

        def weights(ends: RelationEdges, frames: Frames) -> Fields:
            return {"x": softmax(frames.edge["x"], ends.dst, rows)}

        return _by_kernels(RelationEdges(at, at, rows, rows, None), frames, weights, "edge", "softmax")["x"]

    def holds(self, x: Tensor) -> bool:
        return isinstance(x, ArrayTensor)

    def degrees(self, index: Tensor, num_rows: int) -> Tensor:
        at = array_of(index)
        if isinstance(index, EndTensor):
            return ArrayTensor(push(jnp.ones(index.shape[0], at.dtype), index.end, num_rows))
        graph = traced_graph(at, at, num_rows, None)

        def plain(*indices: Array) -> Sequence[Array]:
            return [push(jnp.ones(graph.num_edges, at.dtype), "dst", num_rows)]

        whole = GraphFunction(plain, graph.kinds, ("dst",), graph.walked, "degrees", COMPILERS_CHOICE)
        return ArrayTensor(call(whole, *graph.indices)[0])

    def on_relations(
        self, function: Callable[..., run.Results], graph: Structure, *inputs: Mapping[str, Tensor]
    ) -> run.Results:
        if run.inside_kernel.get() or len(graph.relations) == 1:
            return function(graph, *inputs)
        try:
            return SeveralRelations(graph).call(function, inputs, _inside_kernel)
        except (_Refused, DataError, NotExpressible) as reason:
            bump("relations_apart")
            _log.info("relations run one after the other, since one program cannot have them: %s", reason)
            return function(graph, *inputs)

    def on_rows(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        if run.inside_kernel.get():
            return function(*rows)

        def plain(*arrays: Array) -> Sequence[Array]:
            with _inside_kernel():
                return [array_of(function(*map(ArrayTensor, arrays)))]

        graph = graph_of_rows(rows[0].shape[0])
        arguments: list[Rows] = ["edge"] * len(rows)
        whole = GraphFunction(plain, tuple(arguments), ("edge",), graph, "a function of rows", COMPILERS_CHOICE)
        return ArrayTensor(call(whole, *map(array_of, rows))[0])


def _at_once(ends: RelationEdges, frames: Frames, message: Message, reduce: Reduce) -> Fields:
    out = reduce_at_once(ends, frames, edge_results(ends, frames, message, "the message function"), reduce)
    if out is None:
        raise _Refused("a reduce function does more with its mailboxes than a kernel can")
    return out


@contextmanager
def hosted() -> Iterator[None]:
    """Within it, tensors may stand for arrays of JAX, and none of them has gradients of PyTorch's."""
    token = run.host.set(ArrayHost())
    try:
        with torch.no_grad():
            yield
    finally:
        run.host.reset(token)


@contextmanager
def _inside_kernel() -> Iterator[None]:
    token = run.inside_kernel.set(True)
    try:
        yield
    finally:
        run.inside_kernel.reset(token)


_graphs: WeakIdKeyDictionary = WeakIdKeyDictionary()


def graph_of(ends: RelationEdges, is_square: bool) -> FixedGraph | TracedGraph:
    """The graph of these edges, the same one for the same index tensors."""
    rows = ends.src_rows.shape[0], None if is_square else ends.dst_rows.shape[0]
    if isinstance(ends.src, ArrayTensor):
        return traced_graph(array_of(ends.src), array_of(ends.dst), *rows)
    known = _graphs.setdefault(ends.src, {})
    key = id(ends.dst), *rows
    if key not in known:
        known[key] = ends.dst, FixedGraph(ends.src, ends.dst, *rows)
    found: FixedGraph = known[key][1]
    return found


def _by_kernels(
    ends: RelationEdges, frames: Frames, function: Callable[[RelationEdges, Frames], Fields], rows: Rows, what: str
) -> Fields:
    """The fields that `function` computes, of `rows` each."""
    is_square = frames.src is frames.dst
    edge = _chosen(frames.edge, ends.eids)
    given = {"src": frames.src, "dst": {} if is_square else frames.dst, "edge": edge}
    places = [(end, name, x) for end, fields in given.items() for name, x in fields.items()]
    names: list[str] = []

    def plain(*arrays: Array) -> Sequence[Array]:
        made: dict[str, dict[str, Tensor]] = {rows: {} for rows in given}
        for (end, name, x), array in zip(places, arrays, strict=False):  # the rest are indices
            made[end][name] = argument(x, array, end)
        dst = made["src"] if is_square else made["dst"]
        inner = Frames(made["src"], dst, made["edge"], frames.ntype, frames.etype, frames.relation)
        indices = arrays[len(places) :]
        src_at, dst_at = _end("src", ends.src, indices[:1]), _end("dst", ends.dst, indices[1:])
        with _inside_kernel():
            out = function(RelationEdges(src_at, dst_at, ends.src_rows, ends.dst_rows, None), inner)
        names[:] = out
        return [array_of(x) for x in out.values()]

    graph = graph_of(ends, is_square)
    arguments: tuple[Rows, ...] = (*(end for end, _, _ in places), *graph.kinds)
    whole = GraphFunction(plain, arguments, (rows,), graph.walked, what, COMPILERS_CHOICE)
    made = call(whole, *(array_of(x) for _, _, x in places), *graph.indices)
    return {name: ArrayTensor(x) for name, x in zip(names, made, strict=True)}


def _end(end: End, index: Tensor, traced: Sequence[Array]) -> EndTensor:
    """The ends of all edges, which are the first argument of `traced` if there is one."""
    return EndTensor.at(end, traced[0], None) if traced else EndTensor.at(end, jnp.asarray(index.numpy()), index)


def _chosen(fields: Mapping[str, Tensor], eids: Tensor | None) -> Mapping[str, Tensor]:
    return fields if eids is None else {name: x.index_select(0, eids) for name, x in fields.items()}
