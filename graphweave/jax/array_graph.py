"""`graphweave.jax.Graph`: nodes and edges of one or several types, with arrays of JAX as data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.homogeneous import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.graph import batch as batches
from graphweave.graph import build, readout
from graphweave.graph.assemble import assemble
from graphweave.graph.frame import Frame, TypedFrames
from graphweave.graph.graph import Graph as TensorGraph
from graphweave.graph.relation import CanonicalEtype, Relation
from graphweave.graph.structure import LocalScope
from graphweave.graph.views import EdgeView, NodeView, RowsView
from graphweave.jax.graph_forms import is_traced, known
from graphweave.jax.passing import hosted
from graphweave.jax.tensors import ArrayTensor, array_of, stored, unwrapped, wrapped
from graphweave.jax.traced_graph import traced_graph
from graphweave.jax.user_functions import EdgeFunction, NodeFunction, on_edges, on_nodes

T = TypeVar("T")

Etype: TypeAlias = str | CanonicalEtype | None
"""A relation, by name or whole. None is the only one."""


class ArrayGraph:
    """A `graphweave.Graph` whose data are arrays of JAX, made by `graph`, `heterograph` or `batch` of this module.

    Fields are read and set as `g.ndata["h"]`, `g.edata["w"]`, `g.nodes["user"].data["h"]`. Messages pass by
    `update_all` and its relatives, whose functions are those of `graphweave.function` or written in jax.numpy. They run
    in kernels, under `jit` and `grad` too. Any other method of `graphweave.Graph` is here under its name, and gives
    arrays.

    **As an argument.** A graph is a pytree: its fields are the leaves. Edges are known when JAX traces, since kernels
    walk formats that are made of them once. They are the static part, and two graphs have the same if one has been made
    of the other by setting fields, or by JAX. Integers that are set as arrays of NumPy, types of edges for instance,
    are part of it as well. A function that sets fields of a traced graph should return them, or the graph.

    **Edges as data.** Edges that are made of traced arrays, or with `traced=True`, are leaves, too: a function is
    compiled once for all graphs of one shape, and formats are made in each call.
    """

    def __init__(self, tensors: TensorGraph) -> None:
        """Called by the functions that make graphs. `tensors` has the structure, and the fields as tensors that stand
        for arrays."""
        self.tensors = tensors

    def __repr__(self) -> str:
        return f"jax.{self.tensors!r}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "tensors":
            raise AttributeError(name)
        return outward(getattr(self.tensors, name))

    def __getitem__(self, etype: str | tuple[object, object, object]) -> ArrayGraph:
        """One relation as a graph that shares this graph's fields."""
        return ArrayGraph(self.tensors[etype])

    def update_all(
        self, message: EdgeFunction, reduce: NodeFunction, apply: NodeFunction | None = None, etype: Etype = None
    ) -> None:
        """`graphweave.Graph.update_all`: messages along all edges of a relation, reduced at their destinations."""
        with hosted():
            self.tensors.update_all(on_edges(message), on_nodes(reduce), on_nodes(apply), etype)

    def multi_update_all(
        self,
        functions: Mapping[Etype, Sequence[Any]],
        cross_reducer: str | Callable[[list[Array]], Array],
        apply: NodeFunction | None = None,
    ) -> None:
        """`graphweave.Graph.multi_update_all`: `update_all` for several relations, whose results `cross_reducer`
        combines: "sum", "mean", "max", "min", "stack", or a function of a list of arrays."""
        inner = {
            etype: (on_edges(message), on_nodes(reduce), *map(on_nodes, more))
            for etype, (message, reduce, *more) in functions.items()
        }
        with hosted():
            self.tensors.multi_update_all(inner, inward(cross_reducer), on_nodes(apply))

    def apply_edges(self, function: EdgeFunction, edges: object = None, etype: Etype = None) -> None:
        """`graphweave.Graph.apply_edges`: fields of edges from those of edges and of their ends."""
        with hosted():
            self.tensors.apply_edges(on_edges(function), inward(edges), etype)

    def apply_nodes(self, function: NodeFunction, v: object = None, ntype: str | None = None) -> None:
        """`graphweave.Graph.apply_nodes`: fields of nodes from their fields."""
        with hosted():
            self.tensors.apply_nodes(on_nodes(function), inward(v), ntype)

    def send_and_recv(
        self,
        edges: object,
        message: EdgeFunction,
        reduce: NodeFunction,
        apply: NodeFunction | None = None,
        etype: Etype = None,
    ) -> None:
        """`graphweave.Graph.send_and_recv`: `update_all` along some of the edges."""
        with hosted():
            self.tensors.send_and_recv(inward(edges), on_edges(message), on_nodes(reduce), on_nodes(apply), etype)

    def pull(
        self,
        v: object,
        message: EdgeFunction,
        reduce: NodeFunction,
        apply: NodeFunction | None = None,
        etype: Etype = None,
    ) -> None:
        """`graphweave.Graph.pull`: `update_all` along the edges that end in some of the nodes."""
        with hosted():
            self.tensors.pull(inward(v), on_edges(message), on_nodes(reduce), on_nodes(apply), etype)

    def push(
        self,
        u: object,
        message: EdgeFunction,
        reduce: NodeFunction,
        apply: NodeFunction | None = None,
        etype: Etype = None,
    ) -> None:
        """`graphweave.Graph.push`: `update_all` along the edges that start in some of the nodes."""
        with hosted():
            self.tensors.push(inward(u), on_edges(message), on_nodes(reduce), on_nodes(apply), etype)


# ---------------------------------------------------------------- making graphs


def graph(data: object, num_nodes: int | None = None, *, traced: bool = False) -> ArrayGraph:
    """`graphweave.graph`: a homogeneous graph of a pair (sources, destinations) of index arrays, or an edge_index [2,
    edges]. They are copied. Arrays that JAX traces need `num_nodes`. With `traced`, edges are data for JAX in any
    case."""
    if traced or _are_traced(data):
        key = HOMOGENEOUS_NTYPE, HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
        return _of_traced({key: data}, {HOMOGENEOUS_NTYPE: _given("num_nodes", num_nodes)})
    return ArrayGraph(build.graph(_ends("data", data), num_nodes))


def heterograph(
    data: Mapping[CanonicalEtype, object], num_nodes: Mapping[str, int] | None = None, *, traced: bool = False
) -> ArrayGraph:
    """`graphweave.heterograph`: a graph of several relations, (source type, name, destination type) -> edges. `traced`
    as in `graph`, for the edges of all relations."""
    if traced or any(map(_are_traced, data.values())):
        return _of_traced(data, _given("num_nodes", num_nodes))
    return ArrayGraph(build.heterograph({key: _ends(str(key), ends) for key, ends in data.items()}, num_nodes))


def _are_traced(data: Any) -> bool:
    return is_traced(data) or any(map(is_traced, data))


def _given(name: str, num_nodes: T | None) -> T:
    if num_nodes is None:
        raise DataError(
            f"{name} must be given where edges are data for JAX (got None): the largest index is not known. Pass it."
        )
    return num_nodes


def _of_traced(data: Mapping[CanonicalEtype, Any], num_nodes: Mapping[str, int]) -> ArrayGraph:
    relations = {}
    for key in sorted(data):
        src, dst = map(jnp.asarray, data[key])
        ends = traced_graph(src, dst, num_nodes[key[0]], num_nodes[key[2]])
        relations[key] = Relation(*key, ArrayTensor(ends.src), ArrayTensor(ends.dst))
    return ArrayGraph(assemble(TensorGraph, dict(sorted(num_nodes.items())), relations))


def batch(graphs: Sequence[ArrayGraph]) -> ArrayGraph:
    """`graphweave.batch`: one graph in which the nodes and edges of each graph follow those of the one before it."""
    with hosted():
        return ArrayGraph(batches.batch([g.tensors for g in graphs]))


def unbatch(batched: ArrayGraph) -> list[ArrayGraph]:
    """`graphweave.unbatch`: the graphs of a batch."""
    with hosted():
        return [ArrayGraph(g) for g in batches.unbatch(batched.tensors)]


def _ends(name: str, data: Any) -> tuple[Tensor, Tensor]:
    src, dst = (torch.from_numpy(np.array(known(f"{name}[{i}]", data[i]))) for i in (0, 1))
    return src if len(src) else src.long(), dst if len(dst) else dst.long()  # no numbers have no dtype in a list


def readout_nodes(
    graph: ArrayGraph, feat: str, weight: str | None = None, *, op: str = "sum", ntype: str | None = None
) -> Array:
    """`graphweave.readout_nodes`: "sum", "mean", "max" or "min" of a field over the nodes of each graph of a batch.
    [nodes, ...] -> [graphs, ...]. XLA computes it."""
    with hosted():
        return array_of(readout.readout_nodes(graph.tensors, feat, weight, op=op, ntype=ntype))


def readout_edges(
    graph: ArrayGraph, feat: str, weight: str | None = None, *, op: str = "sum", etype: Etype = None
) -> Array:
    """`graphweave.readout_edges`: the same over the edges of each graph. [edges, ...] -> [graphs, ...]."""
    with hosted():
        return array_of(readout.readout_edges(graph.tensors, feat, weight, op=op, etype=etype))


# ---------------------------------------------------------------- arrays outside, tensors inside


class _Fields(MutableMapping[str, Any]):
    """Fields of a frame, or of several types, as arrays."""

    def __init__(self, fields: MutableMapping[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        with hosted():
            return unwrapped(self._fields[name])

    def __setitem__(self, name: str, value: Any) -> None:
        with hosted():
            self._fields[name] = {k: stored(x) for k, x in value.items()} if isinstance(value, dict) else stored(value)

    def __delitem__(self, name: str) -> None:
        del self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return repr(dict(self))


class _View:
    """`g.nodes` and `g.edges`: ids when called, data when indexed."""

    def __init__(self, view: NodeView | EdgeView) -> None:
        self._view: Any = view

    def __call__(self, *args: object, **options: object) -> Any:
        return outward(self._view(*args, **options))

    def __getitem__(self, key: object) -> Any:
        return outward(self._view[key if isinstance(key, (str, tuple)) else inward(key)])


@dataclass(frozen=True)
class _RowsOfArrays:
    """Nodes or edges of one type."""

    data: MutableMapping[str, Any]


def inward(value: object) -> Any:
    """Arguments of a method of a tensors' graph."""
    if isinstance(value, ArrayGraph):
        return value.tensors
    return (lambda *args: wrapped(value(*map(unwrapped, args)))) if callable(value) else wrapped(value)


def outward(value: object) -> Any:
    """The result of a method of a tensors' graph, or an attribute, with arrays."""
    match value:
        case TensorGraph():
            return ArrayGraph(value)
        case Frame() | TypedFrames():
            return _Fields(value)
        case NodeView() | EdgeView():
            return _View(value)
        case RowsView(data):
            return _RowsOfArrays(_Fields(data))
        case LocalScope() | type():
            return value
        case tuple() | list() if not isinstance(value, torch.Size):
            return type(value)(map(outward, value))
    if callable(value):
        return wraps(value)(lambda *args, **options: _called(value, args, options))
    return unwrapped(value)


def _called(method: Callable[..., Any], args: Sequence[object], options: Mapping[str, object]) -> Any:
    with hosted():
        named = {name: inward(x) for name, x in options.items()}
        return outward(method(*map(inward, args), **named))


# ---------------------------------------------------------------- graphs as pytrees


@dataclass(frozen=True)
class _KnownParts:
    """The part of a graph that JAX does not trace: structure, and fields of PyTorch's own tensors, by identity."""

    structure: TensorGraph
    identity: tuple[Any, ...]
    places: tuple[tuple[int, str], ...]
    """Frame and name of each leaf that is a field."""
    traced: tuple[CanonicalEtype, ...]
    """The relations whose edges are leaves, two each, which come first."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _KnownParts) and (self.identity, self.places) == (other.identity, other.places)

    def __hash__(self) -> int:
        return hash((self.identity, self.places))


def _flatten(g: ArrayGraph) -> tuple[list[Array], _KnownParts]:
    leaves, places, fixed = [], [], []
    structure = g.tensors.local_var()
    traced = tuple(key for key, r in g.tensors.relations.items() if isinstance(r.src, ArrayTensor))
    for key in traced:
        r = structure.relations[key]
        leaves += [array_of(r.src), array_of(r.dst)]
        shape = torch.empty(r.num_edges, 0, dtype=torch.uint8, device="cpu")
        structure.relations[key] = Relation(*key, shape, shape)
        structure.edge_frames[key] = structure.edge_frames[key].map(lambda x: x, shape)
    for i, frame in enumerate(_frames(g.tensors)):
        for name in sorted(frame):
            x = frame._fields[name]
            if isinstance(x, Tensor) and not isinstance(x, ArrayTensor):
                fixed.append((i, name, id(x)))
            else:
                leaves.append(unwrapped(x))
                places.append((i, name))
    _drop_arrays(structure)
    relations = tuple(
        (key, r.num_edges) if key in traced else (key, id(r.src), id(r.dst)) for key, r in g.tensors.relations.items()
    )
    sizes = tuple((ntype, frame.num_rows) for ntype, frame in g.tensors.node_frames.items())
    counts = id(g.tensors.batch_counts)
    return leaves, _KnownParts(structure, (relations, sizes, counts, tuple(fixed)), tuple(places), traced)


def _unflatten(static: _KnownParts, leaves: Sequence[Any]) -> ArrayGraph:
    g = static.structure.local_var()
    frames, rest = _frames(g), iter(leaves)
    for key in static.traced:
        g.relations[key] = Relation(*key, *(_tensor(next(rest)) for _ in ("src", "dst")))
    for (i, name), leaf in zip(static.places, rest, strict=True):
        frames[i]._fields[name] = _tensor(leaf)
    return ArrayGraph(g)


def _tensor(leaf: object) -> Any:
    return ArrayTensor(leaf) if isinstance(leaf, Array) else leaf  # JAX passes other objects


def _frames(g: TensorGraph) -> list[Frame]:
    """All frames of a graph, in an order that its structure decides."""
    return [*g.node_frames.values(), *g.edge_frames.values(), g.ntype_data, g.etype_data]


def _drop_arrays(g: TensorGraph) -> None:
    for frame in _frames(g):
        for name in [name for name, x in frame._fields.items() if isinstance(x, ArrayTensor)]:
            del frame._fields[name]


jax.tree_util.register_pytree_node(ArrayGraph, _flatten, _unflatten)
