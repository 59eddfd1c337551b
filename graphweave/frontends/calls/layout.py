"""How a captured tensor lies in memory: the order of its dims, whose memory it shares, and which calls depend on it.

A message program has values without layouts: it has no copies that only changed strides. Questions about a layout are
therefore answered from the fake tensors of the captured graph. Where a call or a result depends on a layout, the
program establishes the captured one (`LaidOut`).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import fixed, same

aten = torch.ops.aten

QUESTIONS = frozenset({aten.sym_stride.int, aten.sym_storage_offset.default})
"""Calls that return a stride or an offset of a tensor."""

BY_STRIDES = frozenset({aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default})
"""Calls that read memory by strides, whatever the strides of their operand are."""

INTO_COPIES = frozenset({aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default})
"""Calls that copy the memory of their first operand with its strides, and write into the copy. Elements that share
memory, as those of `unfold` do, all get what is written to one of them."""

EMPTY = {
    aten.new_empty_strided.default: (aten.new_empty.default, 2),
    aten.empty_strided.default: (aten.empty.memory_format, 1),
    aten.empty_permuted.default: (aten.empty.memory_format, 1),
}
"""Call that allocates memory in a given layout -> the call that allocates it in row-major order, and how many arguments
that call takes."""


def order_of(value: object) -> tuple[int, ...] | None:
    """The dims of a fake tensor in their order in memory, outermost first; None if there may be gaps or overlaps.

    The answer holds for every call. Adds no guard.
    """
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    sizes, strides = tuple(value.shape), tuple(value.stride())
    left = [d for d in range(value.dim()) if fixed(sizes[d]) != 1]
    inner: list[int] = []
    # Strides may count a dim without elements as one element or as none. Both are right, since there are no elements.
    expected: tuple[Any, Any] = (1, 1)
    while left:
        found = next((d for d in reversed(left) if any(same(strides[d], e) for e in expected)), None)
        if found is None:
            return None
        left.remove(found)
        inner.insert(0, found)
        expected = (expected[0] * torch.sym_max(1, sizes[found]), expected[1] * sizes[found])
    order = tuple(inner)
    ones = tuple(d for d in range(value.dim()) if d not in order)
    if order == tuple(sorted(order)):
        return tuple(range(value.dim()))
    return (*ones, *order)


def aliased(node: object) -> fx.Node | None:
    """The operand of which the result of `node` is a view; None if it is no view."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or not node.args:
        return None
    x = node.args[0]
    if node.target is operator.getitem:
        views = isinstance(x, fx.Node) and _is_view(x.target)
        return x if views else None  # type: ignore[return-value]
    return x if isinstance(x, fx.Node) and _is_view(node.target) else None


def _is_view(op: object) -> bool:
    if not isinstance(op, torch._ops.OpOverload):
        return False
    marks = [r.alias_info for r in op._schema.returns]
    return bool(marks) and all(m is not None and not m.is_write for m in marks)


def root_of(node: fx.Node) -> fx.Node:
    """The node of which `node` is a view, through all views; `node` itself if it is no view."""
    while (x := aliased(node)) is not None:
        node = x
    return node


def views_from(root: fx.Node, node: fx.Node) -> list[fx.Node]:
    """The views that lead from `root` to `node`, in order."""
    chain: list[fx.Node] = []
    while node is not root:
        chain.append(node)
        x = aliased(node)
        assert x is not None
        node = x
    return chain[::-1]


def depends_on_layout(node: fx.Node) -> bool:
    """Whether the result may depend on an operand's strides, or the call refuse some; True if that is not known.

    Random numbers are drawn in the order of memory; attention, recurrent layers and normalisation check strides; an
    operator that is not PyTorch's own may do anything. A call that writes to its operand takes any strides.
    """
    op = node.target
    if not isinstance(op, torch._ops.OpOverload) or op._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags:
        return True
    if torch.Tag.pointwise in op.tags:
        return False
    return not facts(op).any_strides
