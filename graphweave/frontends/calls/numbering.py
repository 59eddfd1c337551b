"""Finds FX nodes with equal values and a representative for each: skips identities, unites spellings of one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphweave.core.calls import Elements
from graphweave.frontends.calls.call_facts import facts, is_reshape
from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, rank, same, shape, text, unbacked, val
from graphweave.frontends.calls.layout import depends_on_layout

aten = torch.ops.aten

_SLICES = frozenset({aten.slice.Tensor, aten.slice_backward.default, aten.slice_scatter.default})
"""Calls that are identities if they take a whole dim."""


def number(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """node -> the first node with the same value. Random and in-place calls are equal only to themselves."""
    same_as: dict[fx.Node, fx.Node] = {}
    seen: dict[Any, fx.Node] = {}
    for node in graph.nodes:
        same_as[node] = node
        if node.op != "call_function":
            if isinstance(val(node), torch.SymInt):
                seen.setdefault(_symbolic(node), node)
            continue
        behind = identity(node, same_as)
        if behind is not None:
            same_as[node] = behind
            continue
        if pure(node):
            first = seen.setdefault(_key(node, same_as), node)
            if first is not node and equal_sizes(val(first), val(node)):
                same_as[node] = first
    return same_as


def identity(node: fx.Node, same_as: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """The representative of the operand whose values `node` returns unchanged; None for other nodes."""
    # slice_scatter(base, x) over a whole dim is x
    position = 1 if node.target is aten.slice_scatter.default else 0
    x = node.args[position] if len(node.args) > position else None
    if not isinstance(x, fx.Node):
        return None
    here, before = val(node), val(x)
    if not isinstance(here, torch.Tensor) or not isinstance(before, torch.Tensor):
        return None
    alike = here.dtype == before.dtype and here.device == before.device and here.layout == before.layout
    if not alike or here.dtype.is_complex or unbacked(here) - unbacked(before):
        return None
    repeats = facts(node.target).elements in (Elements.same, Elements.converted)
    reshapes = is_reshape(node.target) or (node.target in _SLICES and argument(node, "step", 1) == 1)
    if not repeats and not (reshapes and _same_shape(node, x)):
        return None
    return same_as[x]


def pure(node: fx.Node) -> bool:
    """Whether two equal calls may be merged: not if they draw random numbers or write."""
    op = node.target
    if isinstance(op, torch._ops.OpOverload):
        return not op._schema.is_mutable and torch.Tag.nondeterministic_seeded not in op.tags
    return callable(op) and not isinstance(op, torch._ops.HigherOrderOperator)


def equal_sizes(a: object, b: Any) -> bool:
    """Whether the values of two equal calls have equal sizes. Sizes that data decides are declared equal.

    Each call in which data decides a size has a symbol of its own. Equal calls on equal operands give equal sizes, so
    these symbols are declared equal. The self-loops that each layer of a model inserts thus become one graph.
    """
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal_sizes, a, b))
    if isinstance(a, torch.Tensor):
        return a.dim() == b.dim() and all(map(equal_sizes, a.shape, b.shape))
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt) and not same(a, b) and unbacked(a) and unbacked(b):
        torch._check(a == b)
    return same(a, b) if isinstance(a, int | torch.SymInt) else True


def _same_shape(a: fx.Node, b: fx.Node) -> bool:
    return rank(a) == rank(b) and all(same(m, n) for m, n in zip(shape(a), shape(b), strict=True))


def _symbolic(node: fx.Node) -> tuple[str, ...]:
    return ("size", str(val(node).node.expr))


def _key(node: fx.Node, same_as: dict[fx.Node, fx.Node]) -> object:
    value = val(node)
    if isinstance(value, torch.SymInt):
        return _symbolic(node)
    if is_reshape(node.target):
        return ("reshape", node.target is aten.expand.default, same_as[node.args[0]], tuple(map(text, value.shape)))  # type: ignore[index]
    row = row_of(node)
    if row is not None:
        return ("select", same_as[row[0]], *row[1:])
    lies = tuple(map(_layout, node.all_input_nodes)) if depends_on_layout(node) else ()
    return (node.target, _frozen(node.args, same_as), _frozen(node.kwargs, same_as), lies)


def _layout(node: fx.Node) -> tuple[tuple[str, ...], str] | None:
    value = val(node)
    plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return (tuple(map(text, value.stride())), text(value.storage_offset())) if plain else None


def row_of(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """x, dim and index if `node` is x.select(dim, index), spelled as a select or as an item of unbind; else None."""
    x: Any = node.args[0] if node.args else None
    if node.target is aten.select.int:
        dim, index = node.args[1:3]
    elif _is_item(node) and x.target is aten.unbind.int:
        dim, index, x = argument(x, "dim", 0), node.args[1], x.args[0]
    else:
        return None
    dim = dim_of(dim, rank(x))  # type: ignore[arg-type]
    size = fixed(shape(x)[dim])
    if not isinstance(index, int) or (index < 0 and size is None):
        return None
    return x, dim, index + size if index < 0 and size is not None else index


def _is_item(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[0], fx.Node)


def _frozen(arg: object, same_as: dict[fx.Node, fx.Node]) -> object:
    if isinstance(arg, fx.Node):
        return same_as[arg]
    if isinstance(arg, list | tuple):
        return tuple(_frozen(a, same_as) for a in arg)
    if isinstance(arg, dict):
        return tuple((k, _frozen(v, same_as)) for k, v in arg.items())
    if isinstance(arg, slice):
        return ("slice", _frozen((arg.start, arg.stop, arg.step), same_as))
    return type(arg).__name__, repr(arg)
