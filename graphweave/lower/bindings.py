"""What the parameters of a kernel stand for, and the names that message values have in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

from graphweave.core.types import Space
from graphweave.ir.loop.nodes import Kernel
from graphweave.ir.message.nodes import Input, Program, Ref


@dataclass(frozen=True, slots=True)
class Value:
    """The tensor of a node: read by the kernel, or written where the buffer is an output."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Perm:
    """The edge at each position of a map's CSR."""

    map: Ref


@dataclass(frozen=True, slots=True)
class Column:
    """For each position of `map`'s CSR, the row that `other` sends its edge to."""

    map: Ref
    other: Ref


@dataclass(frozen=True, slots=True)
class Flat:
    """The checked index of a map, in the order of its rows."""

    map: Ref


Binding: TypeAlias = Value | Perm | Column | Flat


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, and what its parameters stand for: `bindings` for its buffers, `spaces` for its sizes."""

    kernel: Kernel
    map: Ref | None
    bindings: tuple[Binding, ...]
    spaces: tuple[Space, ...]


def value_name(program: Program, ref: Ref) -> str:
    """A readable name, unique in its program, and none that a kernel uses for anything else (v, k, e, perm, ...)."""
    node = program.nodes[ref]
    if isinstance(node, Input):
        kind = re.sub(r"\W", "_", node.name, flags=re.ASCII)
        return f"{kind}_{ref}" if kind[:1].isalpha() else f"input{kind}_{ref}"
    kind = getattr(getattr(node, "op", None), "value", None) or type(node).__name__.lower()
    return f"{kind}_{ref}"


def map_name(program: Program, ref: Ref) -> str:
    return f"map_{ref}"
