"""The parts with which rules are written: the nodes of message programs, their types, and the builder that makes them.

`build.nodes[ref]` is the node at position `ref` of a program, `build.types[ref]` its type, `build.locs[ref]` the user's
line. `build.add(node, loc)` adds and types a node, and returns its position. The docstring of each node says what it
means.
"""

from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder, operands
from graphweave.ir.message.nodes import (
    AddMatMul,
    AnyType,
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    Join,
    MapOf,
    MapType,
    MatMul,
    Pad,
    Part,
    Permute,
    Pointwise,
    Pull,
    Push,
    Random,
    Reduce,
    Reshape,
    Slice,
    ToUnit,
    Type,
)

__all__ = [
    "UNIT",
    "AddMatMul",
    "AnyType",
    "Broadcast",
    "Builder",
    "Cast",
    "Concat",
    "Const",
    "DType",
    "Fold",
    "Gram",
    "Input",
    "Join",
    "MapOf",
    "MapType",
    "MatMul",
    "Op",
    "Pad",
    "Part",
    "Permute",
    "Pointwise",
    "Pull",
    "Push",
    "Random",
    "Reduce",
    "Reshape",
    "Slice",
    "Space",
    "ToUnit",
    "Type",
    "operands",
]
