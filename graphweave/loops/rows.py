"""The edge or node that a loop passes to its body, where it stands for all of them, and the ends of an edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from graphweave.core.errors import LoopError
from graphweave.loops.scope import End, Loop, Number, Once, RowFields
from graphweave.loops.values import FieldRead, LoopValue, gather
from graphweave.udf.arguments import TYPE


def _as_field(value: object, loop: Loop) -> Tensor | Number:
    """`value` in the form in which a field of the rows of `loop` stores it."""
    if isinstance(value, LoopValue):
        return value.within(loop)
    if isinstance(value, Tensor):
        return value.expand(loop.store.num_rows(), *value.shape).clone()  # a field shares no memory with an argument
    if isinstance(value, (bool, int, float)):
        return value
    raise LoopError(f"a field holds a value, a tensor or a number (got {type(value).__name__}). Set one of these.")


class _Row:
    """A row whose fields are read as `row[name]` or `row.name`, and set by `row[name] = value`."""

    __slots__ = ("_loop",)
    _loop: Loop

    def __init__(self, loop: Loop) -> None:
        object.__setattr__(self, "_loop", loop)

    def __setattr__(self, name: str, value: object) -> None:
        raise LoopError(
            f"fields are set by name: e[{name!r}] = ..., n[{name!r}] = ... (an attribute is only read). Write it so."
        )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: object, args: tuple[Any, ...] = (), kwargs: object = None
    ) -> LoopValue:
        """x[n], x[e.src]: the row of this node (or edge) in a tensor that has a row for each."""
        if func.__name__ != "__getitem__" or not isinstance(args[0], Tensor) or not isinstance(args[1], _Row):
            raise LoopError(
                "an edge or a node is no number and no tensor: take one of its fields, or index a tensor: x[n]."
                " Name a field."
            )
        return args[1]._row_of(args[0])

    def _row_of(self, x: Tensor) -> LoopValue:
        raise NotImplementedError

    def _checked(self, x: Tensor, store: RowFields) -> Tensor:
        if x.dim() == 0 or x.shape[0] != store.num_rows():
            raise LoopError(
                f"x[{store.one}] takes a tensor with one row for each of {store.where}, {store.num_rows()} "
                f"(got shape {tuple(x.shape)})."
                " Pass such a tensor."
            )
        return x

    def __getattr__(self, name: str) -> LoopValue:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        raise NotImplementedError


class Edge(_Row):
    """An edge `e`, with fields `e["x"]` or `e.x`, its ends `e.src` and `e.dst`, and its type `e.etype`."""

    __slots__ = ()

    @property
    def src(self) -> EdgeEnd:
        return EdgeEnd(self._loop, "src")

    @property
    def dst(self) -> EdgeEnd:
        return EdgeEnd(self._loop, "dst")

    @property
    def etype(self) -> LoopValue:
        if TYPE not in self._loop.store.names():
            raise LoopError(
                f"the edges have no types: set g.edata[{TYPE!r}], whole numbers [edges] (graphweave.ETYPE)."
                " Set them first."
            )
        return self[TYPE]

    def __getitem__(self, name: str) -> Any:
        self._check()
        value = LoopValue(self._loop.store.get(name), self._loop)
        self._loop.log.edge(self._loop.store, name, self._loop, False)
        return value

    def __setitem__(self, name: str, value: object) -> None:
        self._check()
        self._loop.log.edge(self._loop.store, name, self._loop, True)
        self._loop.store.set(name, _as_field(value, self._loop))

    def _check(self) -> None:
        if self._loop.structure.current is not self._loop:
            raise LoopError("an edge is used outside its loop. Its fields live on: for e in g.edges(): e['x'] ...")

    def _row_of(self, x: Tensor) -> LoopValue:
        self._check()
        return LoopValue(self._checked(x, self._loop.store), self._loop)


class EdgeEnd(_Row):
    """`e.src` or `e.dst`: the node at that end of the edge."""

    __slots__ = ("_end",)
    _end: End

    def __init__(self, loop: Loop, end: End) -> None:
        super().__init__(loop)
        object.__setattr__(self, "_end", end)

    @property
    def ntype(self) -> LoopValue:
        _check_types(self._store())
        return self[TYPE]

    def _store(self) -> RowFields:
        if self._loop.structure.current is not self._loop:
            raise LoopError("an end of an edge is used outside the loop over edges. Use it in the loop.")
        return self._loop.structure.at(self._end)

    def __getitem__(self, name: str) -> LoopValue:
        return FieldRead(self._loop, self._store(), name, self._end)

    def __setitem__(self, name: str, value: object) -> None:
        gather(self._loop, self._store(), name, self._end, value)

    def _row_of(self, x: Tensor) -> LoopValue:
        data = self._checked(x, self._store())
        return LoopValue(data.index_select(0, self._loop.structure.index(self._end)), self._loop)

    def incoming_edges(self) -> NoReturn:
        raise LoopError(
            "a loop over the edges of an edge's end (paths of two edges). Gather at the nodes first, then loop again."
        )

    outgoing_edges = incoming_edges


class Node(_Row):
    """A node `n`, with fields `n["x"]` or `n.x`, its type `n.ntype`, and loops over its edges."""

    __slots__ = ()

    @property
    def ntype(self) -> LoopValue:
        _check_types(self._loop.store)
        return self[TYPE]

    def __getitem__(self, name: str) -> LoopValue:
        inner = self._inner()
        if inner is not None:
            assert inner.via is not None
            return FieldRead(inner, self._loop.store, name, inner.via)
        value = LoopValue(self._loop.store.get(name), self._loop)
        self._loop.log.read(self._loop.store, name, self._loop, None)
        return value

    def __setitem__(self, name: str, value: object) -> None:
        inner = self._inner()
        if inner is not None:
            assert inner.via is not None
            gather(inner, self._loop.store, name, inner.via, value)
            return
        self._loop.log.write(self._loop.store, name)
        self._loop.store.set(name, _as_field(value, self._loop))

    def incoming_edges(self) -> Once:
        """A loop over the edges that end in this node."""
        return self._edges("dst")

    def outgoing_edges(self) -> Once:
        """A loop over the edges that start in this node."""
        return self._edges("src")

    def _edges(self, end: End) -> Once:
        structure = self._loop.structure
        if structure.at(end) is not self._loop.store:
            ends = "end" if end == "dst" else "start"
            raise LoopError(f"no edge can {ends} in these nodes: the graph is bipartite. Loop over the other nodes.")
        loop = Loop(structure, structure.edges, self._loop, end)
        return Once(loop, Edge(loop))

    def _inner(self) -> Loop | None:
        """The running loop over this node's edges; None outside of one."""
        current = self._loop.structure.current
        if current is not self._loop and (current is None or current.parent is not self._loop):
            raise LoopError("a node is used outside its loop. Its fields live on: for n in g.nodes(): n['x'] ...")
        return None if current is self._loop else current

    def _row_of(self, x: Tensor) -> LoopValue:
        data, inner = self._checked(x, self._loop.store), self._inner()
        if inner is None:
            return LoopValue(data, self._loop)
        return LoopValue(data.index_select(0, inner.index_of_parent()), inner)


def _check_types(store: RowFields) -> None:
    if TYPE not in store.names():
        raise LoopError(
            f"the nodes have no types: set g.{store.where}[{TYPE!r}], whole numbers [nodes] (graphweave.NTYPE)."
            " Set them first."
        )
