"""Built-in message and reduce functions, written in the same way as user-defined ones.

A message function copies a field of sources (`u`) or edges (`e`), or combines two fields of sources, edges and
destinations (`v`). Feature dims, those after dim 0, broadcast from the right, as in DGL.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from graphweave.core.edge_functions import OPERATIONS, combined
from graphweave.udf.arguments import EdgeBatch, FieldReader, NodeBatch

TARGETS = {"u": "sources", "e": "edges", "v": "destinations"}
"""Meaning of the letters in the names of message functions."""


def _hash_of_fields(self: object) -> int:
    """The hash of the fields that are set. PyTorch 2.11 hashes an object that a trace makes and calls before it has
    any."""
    return hash((type(self), *vars(self).values()))


@dataclass(frozen=True)
class CopyMessage:
    """out[e] = field[e], field[src[e]] or field[dst[e]]."""

    target: str
    field: str
    out: str

    __hash__ = _hash_of_fields

    def __call__(self, edges: EdgeBatch) -> dict[str, Tensor]:
        return {self.out: _fields(edges, self.target)[self.field]}


@dataclass(frozen=True)
class BinaryMessage:
    """out[e] = op(lhs field, rhs field) at the ends of edge e; `dot` sums the last dim and keeps it with size 1.

    Fields with one number a row, [rows], give messages [edges], also with `dot`. Raises DataError if the last dims of
    the operands of `dot` differ in size, since it does not broadcast them.
    """

    lhs: str
    op: str
    rhs: str
    lhs_field: str
    rhs_field: str
    out: str

    __hash__ = _hash_of_fields

    def __call__(self, edges: EdgeBatch) -> dict[str, Tensor]:
        x, y = _fields(edges, self.lhs)[self.lhs_field], _fields(edges, self.rhs)[self.rhs_field]
        name = f"{self.lhs}_{self.op}_{self.rhs}"
        return {self.out: combined(name, self.op, x, y, (self.lhs_field, self.rhs_field))}


@dataclass(frozen=True)
class ReduceMessages:
    """out[v] = sum, mean, max or min over the messages that v received; 0 if it received none."""

    op: str
    field: str
    out: str

    __hash__ = _hash_of_fields

    def __call__(self, nodes: NodeBatch) -> dict[str, Tensor]:
        box: Any = nodes.mailbox[self.field]
        if self.op == "sum":
            return {self.out: box.sum(1)}
        if self.op == "mean":
            return {self.out: box.mean(1)}
        return {self.out: box.amax(1) if self.op == "max" else box.amin(1)}


def _fields(edges: EdgeBatch, target: str) -> FieldReader:
    if target == "u":
        return edges.src
    return edges.data if target == "e" else edges.dst


def copy_u(u: str, out: str) -> CopyMessage:
    """Message that copies field `u` of the source. out[e] = u[src[e]]."""
    return CopyMessage("u", u, out)


def copy_e(e: str, out: str) -> CopyMessage:
    """Message that copies field `e` of the edge. out[e] = e[e]."""
    return CopyMessage("e", e, out)


def _binary(lhs: str, op: str, rhs: str) -> Callable[[str, str, str], BinaryMessage]:
    def build(lhs_field: str, rhs_field: str, out: str) -> BinaryMessage:
        return BinaryMessage(lhs, op, rhs, lhs_field, rhs_field, out)

    build.__name__ = build.__qualname__ = f"{lhs}_{op}_{rhs}"
    build.__doc__ = (
        f"Message: {op} of the field `lhs_field` of {TARGETS[lhs]} and `rhs_field` of {TARGETS[rhs]}, as `out`."
    )
    return build


BINARY = {
    f"{lhs}_{op}_{rhs}": _binary(lhs, op, rhs) for op in OPERATIONS for lhs in TARGETS for rhs in TARGETS if lhs != rhs
}
"""The message functions of two fields by name, such as `u_mul_e`."""


def _reduce(op: str) -> Callable[[str, str], ReduceMessages]:
    def build(msg: str, out: str) -> ReduceMessages:
        return ReduceMessages(op, msg, out)

    build.__name__ = build.__qualname__ = op
    build.__doc__ = f"Reduce: out[v] = {op} of `msg` over the messages that v received; 0 for nodes that received none."
    return build


REDUCE = {op: _reduce(op) for op in ("sum", "mean", "max", "min")}
"""The reduce functions, by name."""
