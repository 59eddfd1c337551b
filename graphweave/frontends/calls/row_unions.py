"""Rows of several spaces one after the other: which calls make such a union, and which take one of its segments out.

`torch.cat` along rows puts the rows of its operands one after the other. A slice of rows whose bounds are sums of the
first operands' row counts takes the rows of one of them back, and so does the backward of the cat. What lies on equal
segments lies on corresponding rows, whichever call put it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_sizes import Size, argument, dim_of, fixed, is_tensor, rank, val

aten = torch.ops.aten

END = 2**63 - 1
"""The end of a slice that goes to the last row."""


def joined_rows(node: fx.Node) -> list[fx.Node] | None:
    """The operands of a call that concatenates their rows; None for other calls."""
    if node.target is not aten.cat.default or not is_tensor(node) or rank(node) == 0:
        return None
    xs: Any = node.args[0]
    if len(xs) < 2 or dim_of(argument(node, "dim", 0), rank(node)) != 0 or any(rank(x) != rank(node) for x in xs):
        return None
    return list(xs)


def sliced_rows(node: fx.Node) -> tuple[fx.Node, fx.Node, object, object] | None:
    """(part, whole, start, end) for a slice of rows or its gradient: `part` are the rows start..end of `whole`."""
    part: Any
    whole: Any
    if node.target is aten.slice.Tensor:
        part, whole = node, node.args[0]
    elif node.target is aten.slice_backward.default:
        part, whole = node.args[0], node
    else:
        return None
    if not is_tensor(part) or not is_tensor(whole) or rank(whole) == 0:
        return None
    dim, step = fixed(val(argument(node, "dim", 0))), fixed(val(argument(node, "step", 1)))
    if dim is None or dim_of(dim, rank(whole)) != 0 or step != 1:
        return None
    start, end = argument(node, "start"), argument(node, "end")
    return part, whole, 0 if start is None else start, END if end is None else end


def places(sizes: Sequence[Size]) -> Mapping[tuple[object, object], int]:
    """(start, end), in the form of `bound`, of each segment's rows -> its position, for segments of `sizes`."""
    found: dict[tuple[object, object], int] = {}
    before: Any = bound(0)
    for k, size in enumerate(sizes):
        after = before + bound(size)
        found.setdefault((before, after), k)
        before = after
    if sizes:
        found.setdefault((before - bound(sizes[-1]), END), len(sizes) - 1)
    return found


def bound(size: Any) -> Any:
    """A size, or the FX node of one, as an expression that is equal for equal sums."""
    size = val(size)
    number = fixed(size)
    return number if number is not None else size.node.expr
