"""Loops, the fields of the rows they run over, and the rules for reading and writing fields inside a loop.

A loop over all edges is run once, for all edges together. The result equals that of the loop if no iteration reads what
another one writes. So `Log` records what an iteration does with fields, and raises LoopError for two accesses that make
the order of iterations matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

from graphweave.core.errors import DataError, LoopError
from graphweave.graph.frame import Frame
from graphweave.udf.arguments import fix_sizes

End: TypeAlias = Literal["src", "dst"]
Number: TypeAlias = bool | int | float

FOLDS = {"add": "sum", "mul": "prod", "maximum": "amax", "minimum": "amin"}
"""Operations that may gather values of edges in a node's field -> PyTorch's name of the reduction."""


class RowFields:
    """Fields of the rows of one space. Each is a tensor [rows, ...], or a number that all rows have.

    `rows` is a tensor [rows, 0]. In errors, `one` is the name of a row ("n"), `where` the name of the data ("ndata"),
    and `unit` the name of the rows ("nodes").
    """

    def __init__(self, one: str, where: str, unit: str, rows: Tensor, fields: Mapping[str, Tensor]) -> None:
        self.one, self.where, self.unit, self.rows = one, where, unit, rows
        self._given = fields
        self._set: dict[str, Tensor | Number] = {}

    def num_rows(self) -> int:
        return self.rows.shape[0]

    def names(self) -> list[str]:
        return [*self._given, *(name for name in self._set if name not in self._given)]

    def get(self, name: str) -> Tensor | Number:
        if name in self._set:
            return self._set[name]
        if name not in self._given:
            known = ", ".join(repr(k) for k in self.names()) or "none"
            raise LoopError(
                f"{self.one}[{name!r}] is read before it is set. Fields that exist: {known}. "
                f"Set it first, in a loop or as g.{self.where}[{name!r}] = tensor."
            )
        value = self._given[name]
        if guard_or_false(value.shape[0] != self.rows.shape[0]):
            raise DataError(
                f"{self.where}[{name!r}] has {value.shape[0]} rows, but the graph has {self.num_rows()} {self.unit}."
                " Give it a row for each."
            )
        if torch.compiler.is_compiling():
            fix_sizes(value)
            # this tells the compiler that the field has as many rows as the graph
            torch._check(value.shape[0] == self.rows.shape[0])
        return value

    def set(self, name: str, value: Tensor | Number) -> None:
        if not isinstance(name, str):
            raise LoopError(
                f"expected a string as the name of a field of {self.where} (got {name!r}). Name it by a string."
            )
        self._set[name] = value

    def replace(self, name: str, value: Tensor) -> None:
        """Set a field to a tensor of the user's. DataError if its number of rows is not the graph's."""
        Frame(self.where, self.rows, self.unit)[name] = value
        self.set(name, value)

    def tensor(self, name: str) -> Tensor:
        """The field as a tensor [rows, ...]."""
        return as_rows(self.get(name), self.rows)

    def results(self) -> dict[str, Tensor]:
        return {name: self.tensor(name) for name in self._set}


def as_rows(value: Tensor | Number, rows: Tensor) -> Tensor:
    """`value` as a tensor. A number becomes [rows], with the dtype that PyTorch gives to such a number."""
    if isinstance(value, Tensor):
        return value
    return torch.full((rows.shape[0],), value, dtype=torch.tensor(value).dtype, device=rows.device)


class LoopGraph:
    """The edges `src`, `dst` [edges], and the fields of sources, of destinations and of edges.

    `sources` and `destinations` are one object if they are the same nodes.
    """

    def __init__(
        self, src: Tensor, dst: Tensor, sources: RowFields, destinations: RowFields, edges: RowFields, checked: bool
    ) -> None:  # fmt: skip
        self.src, self.dst = src, dst
        self.sources, self.destinations, self.edges = sources, destinations, edges
        self.checked = checked
        """Whether the function has run as Python without an error."""
        self.current: Loop | None = None
        """The innermost loop that is running."""

    def index(self, end: End) -> Tensor:
        return self.src if end == "src" else self.dst

    def at(self, end: End) -> RowFields:
        return self.sources if end == "src" else self.destinations


class Loop:
    """One `for` over edges or nodes. `store` holds the fields of its rows.

    In a loop over the edges of a node, `via` is the end of the edges at which that node is: "dst" for incoming edges.
    In a loop over all edges or nodes it is None.
    """

    def __init__(
        self, structure: LoopGraph, store: RowFields, parent: Loop | None = None, via: End | None = None
    ) -> None:
        self.structure, self.store, self.parent, self.via = structure, store, parent, via
        self.over_edges = store is structure.edges
        self.log: Log = Log() if parent is None else parent.log

    def is_running(self) -> bool:
        current = self.structure.current
        return current is self or (current is not None and current.parent is self)

    def index_of_parent(self) -> Tensor:
        """For each row of this loop, its row in the loop around it."""
        assert self.via is not None
        return self.structure.index(self.via)


class Once:
    """An iterator that returns one object, which stands for all rows while the body of the loop runs."""

    def __init__(self, loop: Loop, row: object) -> None:
        self._loop, self._row, self._left = loop, row, 1

    def __iter__(self) -> Once:
        return self

    def __next__(self) -> Any:
        structure = self._loop.structure
        if self._left == 0:
            structure.current = self._loop.parent
            raise StopIteration
        self._left = 0
        if structure.current is not self._loop.parent:
            raise LoopError(
                "a loop over all edges or nodes inside another loop. Inside `for n in g.nodes()`, expected "
                "n.incoming_edges() or n.outgoing_edges(); else write one loop after the other."
            )
        structure.current = self._loop
        return self._row


class Log:
    """Records what the iterations of an outermost loop do with fields, and refuses accesses that depend on their order.

    An iteration over nodes reads and sets fields of its own node, and across an edge those of other nodes.
    """

    def __init__(self) -> None:
        self.reads: list[tuple[RowFields, str, Loop, End | None]] = []
        self.folds: list[tuple[RowFields, str, Loop, End, str]] = []
        self.writes: list[tuple[RowFields, str, End | None]] = []

    def read(self, store: RowFields, name: str, loop: Loop, end: End | None) -> None:
        """Record that a field of a node is read. The node is at `end` of an edge of `loop`; None in a loop over
        nodes."""
        self.reads.append((store, name, loop, end))
        self._check(store, name)

    def fold(self, store: RowFields, name: str, loop: Loop, end: End, op: str) -> None:
        """Record that `op` gathers values of edges in a field of the node at `end`."""
        self.folds.append((store, name, loop, end, op))
        self._check(store, name)

    def write(self, store: RowFields, name: str) -> None:
        """Record that the field of the iteration's node is set."""
        self.writes.append((store, name, None))
        self._check(store, name)

    def edge(self, store: RowFields, name: str, loop: Loop, wrote: bool) -> None:
        """Record that a field of the iteration's edge is read or set."""
        if wrote:
            self.writes.append((store, name, loop.via))
        else:
            self.reads.append((store, name, loop, loop.via))
        vias = [v for s, f, v in self.writes if s is store and f == name]
        vias += [v for s, f, _, v in self.reads if s is store and f == name] if vias else []
        if any(v != vias[0] for v in vias):
            raise LoopError(
                f"e[{name!r}] is set on the edges of one direction and used on those of the other inside one loop over "
                "nodes: an edge has two ends, so one node would see what another has set, or not yet. Write two loops."
            )

    def _check(self, store: RowFields, name: str) -> None:
        reads = [(loop, end) for s, f, loop, end in self.reads if s is store and f == name]
        folds = [(loop, end, op) for s, f, loop, end, op in self.folds if s is store and f == name]
        if any(a is b for a, _ in reads for b, _, _ in folds):
            raise LoopError(
                f"the field {name!r} of a node is read in the loop over edges that is still adding to it: the value "
                "would depend on the order of the edges. Read it in a loop of its own, after this one."
            )
        if len({op for _, _, op in folds}) > 1 and (
            any(a is b and x != y for a, _, x in folds for b, _, y in folds) or any(_far(a, e) for a, e, _ in folds)
        ):
            raise LoopError(
                f"the field {name!r} of a node gathers values by two operations in one loop. Use two fields."
            )
        changed = any(s is store and f == name for s, f, _ in self.writes)
        near = any(not _far(loop, end) for loop, end, _ in folds)
        across = any(_far(loop, end) for loop, end in reads)
        if across and (changed or near):
            raise LoopError(
                f"the field {name!r} of a node is set in the same loop over nodes in which it is read across an edge: "
                "one node would see what another has set, or not yet. Set it in a loop of its own, or rename it."
            )
        if any(_far(loop, end) for loop, end, _ in folds) and (changed or reads):
            raise LoopError(
                f"the field {name!r} of the node across an edge is added to in the same loop over nodes in which the "
                "field is read or set: the value would depend on the order of the nodes. Write two loops."
            )


def _far(loop: Loop, end: End | None) -> bool:
    """Whether the node at `end` is not the node of the iteration."""
    return end is not None and end != loop.via
