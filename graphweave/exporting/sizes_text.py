"""Sizes as C++ expressions."""

from __future__ import annotations

from collections.abc import Mapping

from graphweave.core.errors import ExportError
from graphweave.core.sizes import Size, SizeOp, evaluated, show


def as_cpp(size: Size, names: Mapping[Size, str]) -> str:
    """The C++ expression of int64_t that computes `size`; `names` are expressions of its parts."""
    found = evaluated(size, names, _FUNCTIONS)
    if found is None:
        raise ExportError(f"a size is {show(size)}, which a library cannot compute. Give it as a dim of an input.")
    return str(found)


def _infix(operator: str, *parts: object) -> str:
    return f"({f' {operator} '.join(map(str, parts))})"


def _nested(function: str, *parts: object) -> str:
    first, *rest = map(str, parts)
    for part in rest:
        first = f"{function}({first}, {part})"
    return first


_FUNCTIONS = {
    SizeOp.sum: lambda *parts: _infix("+", *parts),
    SizeOp.product: lambda *parts: _infix("*", *parts),
    SizeOp.floor_div: lambda a, b: f"floor_div({a}, {b})",
    SizeOp.modulo: lambda a, b: f"modulo({a}, {b})",
    SizeOp.largest: lambda *parts: _nested("largest", *parts),
    SizeOp.smallest: lambda *parts: _nested("smallest", *parts),
}  # fmt: skip
