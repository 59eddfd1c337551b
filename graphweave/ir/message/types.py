"""Types of values in message programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.sizes import Size, show
from graphweave.core.types import DType, Space
from graphweave.ir.syntax import Language

Ref: TypeAlias = int
"""Position of a node in its program; operands always come earlier."""

MESSAGE = Language(operand="Ref", unsaid=("Type", "Type | AnyType"))
"""The text of message programs; `values.py` adds how values of each annotation are written."""

value_type = MESSAGE.union("ValueType")


@value_type("{space}[{shape}] {dtype}")
@dataclass(frozen=True, slots=True)
class Type:
    """A value with a dense row for each row of `space`: a tensor `[rows, *shape]`, on unit `[*shape]`."""

    space: Space
    shape: tuple[int, ...]
    dtype: DType


@value_type("{dom} -> {cod}")
@dataclass(frozen=True, slots=True)
class MapType:
    """A function from the rows of `dom` to the rows of `cod`."""

    dom: Space
    cod: Space


@dataclass(frozen=True, slots=True)
class AnyType:
    """A value outside the algebra: a tensor of `dims` (edge_index: 2, s43), a number `size`, or several `items`.

    `other` describes any other value, and a tensor whose layout or element type programs do not know; then `dtype` is
    None.
    """

    dtype: DType | None = None
    dims: tuple[Size, ...] | None = None
    size: Size | None = None
    items: tuple[AnyType, ...] | None = None
    other: str = ""

    def __str__(self) -> str:
        """The text in programs: "i64[2, s43]", "Sym(u0)"."""
        if self.dims is not None:
            return f"{self.dtype.value if self.dtype else self.other}[{', '.join(map(show, self.dims))}]"
        if self.size is not None:
            return f"Sym({show(self.size)})"
        return self.other if self.items is None else f"({', '.join(map(str, self.items))})"


@value_type("distinct {dom} -> {space}")
@dataclass(frozen=True, slots=True)
class DistinctType:
    """The different rows of `dom`, each a row of `space`. It is no tensor; only `DistinctRow` and `DistinctKey` read
    it."""

    dom: Space
    space: Space


ValueType: TypeAlias = Type | MapType | AnyType | DistinctType
