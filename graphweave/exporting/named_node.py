"""A node of a program as C++ sees it: the names, sizes and element types of what it reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from graphweave.core.errors import ExportError
from graphweave.core.types import UNIT, DType, Space
from graphweave.exporting.dtypes import DTYPE_CODE
from graphweave.ir.message import nodes as ir


class NotExported(ExportError):
    """A node that only PyTorch computes, by its call and its line."""


def is_number(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether a value is a whole number, not a tensor."""
    t = program.types[ref]
    return isinstance(t, ir.AnyType) and t.size is not None and t.dims is None


@dataclass(frozen=True, slots=True)
class NamedNode:
    """A node of a program, the C++ name of each value and row count, the user's words for an index, and the name of the
    places at which a mask is true."""

    program: ir.Program
    ref: ir.Ref
    name: Callable[[ir.Ref], str]
    count: Callable[[Space], str]
    words: Callable[[ir.Ref], str]
    places: Callable[[ir.Ref], str]

    @property
    def node(self) -> ir.Node:
        return self.program.nodes[self.ref]

    def refused(self) -> NotExported:
        """The error for a node that cannot leave Python."""
        node, line = self.node, self.program.locs[self.ref].shown
        what = node.target if isinstance(node, ir.Aten) else type(node).__name__
        return NotExported(f"{what}{f' ({line})' if line else ''}")

    # -------------------------------------------------------- arguments

    def text(self, arg: object) -> str:
        """A number or an operand as C++."""
        match arg:
            case ir.Operand(ref):
                return self.name(ref)
            case bool() | int() | float():
                return number_text(arg)
            case _:
                raise self.refused()

    def operand(self, arg: object) -> ir.Ref:
        """An argument that must be a value."""
        if not isinstance(arg, ir.Operand):
            raise self.refused()
        return arg.ref

    def is_value(self, arg: object) -> bool:
        """Whether an argument is a tensor."""
        return isinstance(arg, ir.Operand) and not is_number(self.program, arg.ref)

    def type_of(self, ref: ir.Ref) -> ir.Type | ir.AnyType:
        t = self.program.types[ref]
        if not isinstance(t, ir.Type | ir.AnyType):
            raise self.refused()
        return t

    def dims(self, ref: ir.Ref) -> int:
        """The number of dims of a tensor."""
        match self.type_of(ref):
            case ir.Type(space, shape):
                return len(shape) + (space != UNIT)
            case ir.AnyType(dims=dims) if dims is not None:
                return len(dims)
        raise self.refused()

    def dim(self, arg: object, ref: ir.Ref, more: int = 0) -> int:
        """A dim of a tensor, counted from the front."""
        if not isinstance(arg, int):
            raise self.refused()
        return arg + (self.dims(ref) + more if arg < 0 else 0)

    def dtype(self, ref: ir.Ref | None = None) -> DType:
        found = self.type_of(self.ref if ref is None else ref).dtype
        if found is None:
            raise self.refused()
        return found

    @property
    def code(self) -> str:
        """The C interface's code of the result's element type."""
        return DTYPE_CODE[self.dtype()]

    def array(self, sizes: Iterable[object]) -> str:
        """A list of sizes as an array's items."""
        return "{" + (", ".join(map(self.text, sizes)) or "0") + "}"


def number_text(number: bool | int | float) -> str:
    """A number in C++."""
    match number:
        case bool():
            return "true" if number else "false"
        case int():
            return "INT64_MIN" if number == -(2**63) else f"int64_t({number})"
        case _ if math.isnan(number):
            return '__builtin_nan("")'
        case _ if math.isinf(number):
            return "__builtin_inf()" if number > 0 else "-__builtin_inf()"
        case _:
            return repr(number)


def quoted(text: str) -> str:
    """A text in C++."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
