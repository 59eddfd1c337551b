"""The parameters of a kernel: its buffers and sizes, what each stands for, and the names of values in the kernel."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.analysis.cones import map_type, type_of
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.loop.nodes import Buffer, Role
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Input, Program, Ref
from graphweave.lower.items import Items


@dataclass(frozen=True, slots=True)
class NodeTensor:
    """The tensor of a node: read by the kernel, or written where the buffer is an output."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Perm:
    """The edge at each position of a map's CSR."""

    map: Ref


@dataclass(frozen=True, slots=True)
class Column:
    """For each position of `map`'s CSR, the row to which `other` sends the edge there."""

    map: Ref
    other: Ref


@dataclass(frozen=True, slots=True)
class Flat:
    """The checked index of a map, in the user's order."""

    map: Ref


@dataclass(frozen=True, slots=True)
class Table:
    """A named index table of the format that the kernel walks."""

    name: str


Binding: TypeAlias = NodeTensor | Perm | Column | Flat | Table


class Parameters:
    """The parameters of a kernel in progress. Each is added when it is first asked for, and has one name."""

    def __init__(
        self, program: Program, rows: Space, index: DType, own: tuple[str, ...] = (), runs: Ref | None = None,
        items: Items | None = None,
    ) -> None:  # fmt: skip
        """`rows` is the space that the kernel walks. Its row count is the first size behind the sizes `own`, which are
        not row counts of spaces. `index` is the dtype of row numbers. A kernel of shared data walks its one row. The
        edges of the map `runs` are walked in the user's order. With `items` it walks the rows of one item at a time."""
        self._program, self.index, self._own, self._runs, self._items = program, index, own, runs, items
        of_one = None if items is None else items.spaces[rows]
        self._spaces: dict[Space, None] = dict.fromkeys((rows,) if of_one is None else (of_one, rows))
        self._buffers: dict[tuple[Binding, Role], Buffer] = {}

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._buffers.values())

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """The values that the buffers hold, in the same order."""
        return tuple(binding for binding, _ in self._buffers)

    @property
    def spaces(self) -> tuple[Space, ...]:
        """The spaces whose rows the sizes behind `own` count, in the same order."""
        return tuple(self._spaces)

    @property
    def sizes(self) -> tuple[str, ...]:
        return (*self._own, *(_size_name(s) for s in self._spaces))

    def tensor(self, ref: Ref, role: Role = Role.input, fold: Fold | None = None) -> str:
        """The name of the buffer for the tensor of `ref`; there is one for each role, as it may be read and written."""
        t, space = type_of(self._program, ref), type_of(self._program, ref).space
        name = value_name(self._program, ref) + ("" if role is Role.input else "_out")
        of_items = self._items is not None and space in self._items.spaces
        if self._items is not None and of_items:
            self._spaces.setdefault(space)
            space = self._items.spaces[space] or UNIT
        rows = self._rows(space)
        return self._add(NodeTensor(ref), Buffer(name, role, t.dtype, rows, (numel(t.shape),), fold, of_items))

    def perm(self, m: Ref) -> str:
        m = self._of_one(m)
        return self._add(Perm(m), self._of_rows(m, "perm", Role.column))

    def column(self, m: Ref, other: Ref) -> str:
        m, other = self._of_one(m), self._of_one(other)
        binding = Flat(other) if m == self._runs else Column(m, other)
        return self._add(binding, self._of_rows(m, f"{map_name(other)}_column", Role.column))

    def flat(self, m: Ref) -> str:
        m = self._of_one(m)
        return self._add(Flat(m), self._of_rows(m, f"{map_name(m)}_index", Role.index))

    @property
    def items(self) -> str | None:
        """The name of the size that counts the rows of all items, if the kernel walks items."""
        return None if self._items is None else _size_name(self._items.rows)

    def edges(self, m: Ref) -> str:
        """The name of the size that counts the edges of a map."""
        self._spaces.setdefault(map_type(self._program, m).dom)
        return _size_name(map_type(self._program, m).dom)

    def table(self, table: Table, rows: str) -> str:
        return self._add(table, Buffer(table.name, Role.column, self.index, rows, (), None))

    def _of_one(self, m: Ref) -> Ref:
        """The map that the kernel reads for `m`: that of one item, if it walks items. It may lead to another space
        than the kernel's rows, of equal size, which must be counted as well."""
        if self._items is None:
            return m
        item = self._items.maps[m]
        self._spaces.setdefault(map_type(self._program, item).cod)
        return item

    def _of_rows(self, m: Ref, name: str, role: Role) -> Buffer:
        return Buffer(name, role, self.index, self._rows(map_type(self._program, m).dom), (), None)

    def _rows(self, space: Space) -> str | None:
        if space == UNIT and UNIT not in self._spaces:
            return None
        self._spaces.setdefault(space)
        return _size_name(space)

    def _add(self, binding: Binding, buffer: Buffer) -> str:
        return self._buffers.setdefault((binding, buffer.role), buffer).name


def _size_name(space: Space) -> str:
    return f"num_{space.name}"


def value_name(program: Program, ref: Ref) -> str:
    """A readable name, unique in its program, that a kernel does not use for anything else (v, k, e, perm, ...)."""
    node = program.nodes[ref]
    if isinstance(node, Input):
        kind = re.sub(r"\W", "_", node.name, flags=re.ASCII)
        return f"{kind}_{ref}" if kind[:1].isalpha() else f"input{kind}_{ref}"
    kind = getattr(getattr(node, "op", None), "value", None) or type(node).__name__.lower()
    return f"{kind}_{ref}"


def map_name(m: Ref) -> str:
    return f"map_{m}"
