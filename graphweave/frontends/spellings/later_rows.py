"""Each call on tensors whose rows are in a later dim, as a call on the same tensors with their rows in front.

A tensor with exactly one size that varies has its rows there: [H, rows, F] or [H, F, rows]. In a call that is written
here, `Front(x, order)` stands for x with its dims in another order, that of the rows first, and a node for that node.
Every such call is right whatever its dims mean; `rows_first.py` says which tensors are worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.core.calls import Elements, Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_graph import is_random
from graphweave.frontends.calls.captured_sizes import (
    argument,
    changed_arguments,
    dim_of,
    fixed,
    is_tensor,
    rank,
    same,
    shape,
    val,
)
from graphweave.frontends.calls.declared import operator_of
from graphweave.frontends.calls.row_rules import GRAM, PRODUCT, is_pointwise, permutation

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Front:
    """`x` with its dims in another order: dim i is dim order[i] of x."""

    x: fx.Node
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FrontCall:
    """A call, some of whose arguments may be `Front` or calls themselves."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Rule: TypeAlias = Callable[[fx.Node], "FrontCall | None"]


def place(x: Any) -> int | None:
    """The dim of the rows of `x`, the only one whose size varies from call to call; None if there is no such dim."""
    if not is_tensor(x):
        return None
    varying = [d for d, n in enumerate(shape(x)) if fixed(n) is None]
    return varying[0] if len(varying) == 1 else None


def order_of_rows(x: fx.Node) -> tuple[int, ...]:
    """The dims of `x`, which has a `place`, with that of the rows first and the others in their order."""
    return _first(place(x) or 0, rank(x))


def is_seed(node: fx.Node) -> bool:
    """Whether `node` multiplies rows in a later dim by shared matrices, or moves such rows along an index."""
    if node.target in (aten.bmm.default, aten.mm.default):
        return moved(node) is not None or (node.target is aten.bmm.default and leaves(node) is not None)
    index = facts(node.target).index
    if index is None or not place(node) or moved(node) is None:
        return False
    if index.listed:
        return True
    dim = argument(node, "dim")
    return isinstance(dim, int) and dim_of(dim, rank(node)) == place(node)


def moved(node: fx.Node) -> FrontCall | None:
    """`node`, whose rows are in a later dim, with its rows in front; None if no call gives that, and for other
    nodes."""
    if node.op != "call_function" or not place(node) or is_random(node):
        return None
    rule = _rule(node)
    return rule(node) if rule is not None else None


def leaves(node: fx.Node) -> FrontCall | None:
    """`node`, which has no rows or has them in front, from operands that may have them in a later dim; None for other
    calls."""
    rule = None if place(node) else _EXITS.get(node.target) or _same(node)
    return rule(node) if rule is not None else None


# ---------------------------------------------------------------- arguments


def _first(dim: int, ndim: int) -> tuple[int, ...]:
    return (dim, *(d for d in range(ndim) if d != dim))


def _front(x: Any) -> Any:
    """`x` with its rows in front, if it has rows; `x` itself else."""
    return Front(x, order_of_rows(x)) if place(x) else x


def _changed(node: fx.Node, **new: Any) -> FrontCall:
    """The call of `node` with some of its schema's arguments replaced."""
    return FrontCall(node.target, *changed_arguments(node, new))


def _dim(node: fx.Node, of: fx.Node, default: Any = None) -> int | None:
    """The argument `dim`, which names a dim of `of`, for `of` with its rows in front; None if it is no number."""
    dim = argument(node, "dim", default)
    return order_of_rows(of).index(dim_of(dim, rank(of))) if isinstance(dim, int) else None


def _beside(x: Any, node: fx.Node) -> Any:
    """The operand `x` of a call that broadcasts to the dims of `node`, for operands with the rows of `node` in
    front."""
    if not is_tensor(x):
        return x
    order, lead = order_of_rows(node), rank(node) - rank(x)
    if lead == 0:
        return Front(x, order)
    if lead > order[0] or rank(x) == 0:
        return x
    if lead == order[0]:
        for _ in range(lead):
            x = FrontCall(aten.unsqueeze.default, (x, 1))
        return x
    for _ in range(lead):
        x = FrontCall(aten.unsqueeze.default, (x, 0))
    return FrontCall(aten.permute.default, (x, list(order)))


def _in_order(sizes: Any, node: fx.Node) -> list[Any]:
    return [sizes[d] for d in order_of_rows(node)]


# ---------------------------------------------------------------- row by row


def _pointwise(node: fx.Node) -> FrontCall | None:
    if any(isinstance(a, list | tuple) for a in node.args):
        return None
    args = tuple(_beside(a, node) for a in node.args)
    return FrontCall(node.target, args, {name: _beside(a, node) for name, a in node.kwargs.items()})


def _along(node: fx.Node) -> FrontCall | None:
    """A call that works along `dim`, and has tensor arguments with the dims of the result."""
    xs, dim = {name: argument(node, name) for name in facts(node.target).alike}, _dim(node, node, 0)
    if dim is None or not all(is_tensor(x) and rank(x) == rank(node) for x in xs.values()):
        return None
    return _changed(node, **{name: Front(x, order_of_rows(node)) for name, x in xs.items()}, dim=dim)


def _cat(node: fx.Node) -> FrontCall | None:
    xs: Any = node.args[0]
    dim = _dim(node, node, 0)
    if dim is None or any(rank(x) != rank(node) for x in xs):
        return None
    return FrontCall(aten.cat.default, ([Front(x, order_of_rows(node)) for x in xs], dim))


def _select(node: fx.Node) -> FrontCall | None:
    """An item of a dim; the other dims keep their order."""
    x = node.args[0]
    dim = _dim(node, x) if place(x) else None  # type: ignore[arg-type]
    return None if dim is None else _changed(node, self=_front(x), dim=dim)


def _select_backward(node: fx.Node) -> FrontCall | None:
    grad, sizes, dim = argument(node, "grad_output"), argument(node, "input_sizes"), _dim(node, node)
    if dim is None:
        return None
    return _changed(node, grad_output=_front(grad), input_sizes=_in_order(sizes, node), dim=dim)


def _slice_backward(node: fx.Node) -> FrontCall | None:
    grad, sizes, dim = argument(node, "grad_output"), argument(node, "input_sizes"), _dim(node, node)
    if dim is None:
        return None
    front = Front(grad, order_of_rows(node))
    return _changed(node, grad_output=front, input_sizes=_in_order(sizes, node), dim=dim)


def _created(node: fx.Node) -> FrontCall:
    """A tensor of one number. The tensor that it is created like gives no more than its type."""
    like = argument(node, "self")
    new = {} if like is None else {"self": _front(like)}
    return _changed(node, size=_in_order(argument(node, "size"), node), **new)


# ---------------------------------------------------------------- views


def _reshape(node: fx.Node) -> FrontCall | None:
    """A view that keeps the rows, and the number of items in front of them. (What lies behind them is kept too.)"""
    x, rows = node.args[0], place(node)
    if node.target is aten.expand.default:
        return _expand(node) if rows else None
    at = place(x)
    if at is None or rows is None or not (at or rows) or not same(shape(x)[at], shape(node)[rows]):  # type: ignore[arg-type]
        return None
    before, after = (prod(map(fixed, sizes)) for sizes in (shape(x)[:at], shape(node)[:rows]))  # type: ignore[arg-type]
    if before != after:
        return None
    features = [fixed(n) for d, n in enumerate(shape(node)) if d != rows]
    return FrontCall(aten.reshape.default, (_front(x), [-1, *features])) if 0 not in features else None


def _expand(node: fx.Node) -> FrontCall | None:
    x, sizes = node.args[:2]
    return FrontCall(aten.expand.default, (_beside(x, node), _in_order(sizes, node)))


def _permute(node: fx.Node) -> FrontCall | None:
    x, perm = node.args[0], permutation(node)
    if place(x) is None or place(node) is None:
        return None
    own = order_of_rows(x)  # type: ignore[arg-type]
    return FrontCall(aten.permute.default, (_front(x), [own.index(perm[d]) for d in order_of_rows(node)]))


# ---------------------------------------------------------------- reductions


def _reduce(node: fx.Node) -> FrontCall | None:
    """A reduction of any dims. What is left keeps its order but for the rows, which stay in front."""
    x, dims, keepdim = node.args[0], argument(node, "dim"), bool(argument(node, "keepdim", False))
    if not place(x):
        return None
    if dims is None or dims == []:
        return _changed(node, self=_front(x)) if not keepdim else None
    order = order_of_rows(x)  # type: ignore[arg-type]
    here: Any = [order.index(dim_of(d, rank(x))) for d in (dims if isinstance(dims, list | tuple) else [dims])]  # type: ignore[arg-type]
    call = _changed(node, self=_front(x), dim=here if isinstance(dims, list | tuple) else here[0])
    if 0 not in here or not keepdim:
        return call
    return FrontCall(aten.permute.default, (call, [order.index(d) for d in range(len(order))]))


# ---------------------------------------------------------------- moves and products


def _indexed(node: fx.Node) -> FrontCall | None:
    """x[:, index] and the write to it, for a vector of row numbers."""
    indices: Any
    x, indices = node.args[:2]
    *before, index = indices
    if place(x) != len(before) or place(node) != len(before) or any(i is not None for i in before):
        return None
    if not is_tensor(index) or rank(index) != 1 or val(index).dtype not in (torch.int64, torch.int32):
        return None
    values: Any = node.args[2:3]
    if any(rank(v) != rank(node) for v in values):
        return None
    front = (*(Front(v, order_of_rows(node)) for v in values), *node.args[3:])
    return FrontCall(node.target, (_front(x), [index], *front), node.kwargs)


def _bmm(node: fx.Node) -> FrontCall | None:
    """Rows times a matrix for each item of the first dim; or, where no rows are left, the sum over rows of outer
    products."""
    a, b = node.args[:2]
    match place(a), place(b), place(node):
        case 1, None, 1 if _is_shared(b):
            return FrontCall(aten.einsum.default, (PRODUCT, [_front(a), b]))
        case None, 2, 2 if _is_shared(a):
            return FrontCall(
                aten.einsum.default, (PRODUCT, [_front(b), FrontCall(aten.permute.default, (a, [0, 2, 1]))])
            )
        case 2, 1, None if _is_shared(node):
            return FrontCall(aten.einsum.default, (GRAM, [_front(a), _front(b)]))
        case _:
            return None


def _mm(node: fx.Node) -> FrontCall | None:
    """A matrix times columns of rows; or the sum over rows of outer products."""
    a, b = node.args[:2]
    match place(a), place(b), place(node):
        case None, 1, 1 if _is_shared(a):
            return FrontCall(aten.mm.default, (_front(b), FrontCall(aten.t.default, (a,))))
        case 1, 0, None if _is_shared(node):
            return FrontCall(aten.mm.default, (FrontCall(aten.t.default, (_front(a),)), b))
        case _:
            return None


def _is_shared(x: Any) -> bool:
    return all(fixed(n) is not None for n in shape(x))


def _size(node: fx.Node) -> FrontCall | None:
    x = node.args[0]
    dim = _dim(node, x) if place(x) else None  # type: ignore[arg-type]
    return None if dim is None else FrontCall(node.target, (_front(x), dim))


def _rule(node: fx.Node) -> Rule | None:
    """How to do `node`, whose result has its rows in a later dim; None if that is not known."""
    known = facts(node.target)
    if known.index is not None and known.index.listed:
        return _indexed
    if known.alike:
        return _along
    if node.target in _RULES:
        return _RULES[node.target]
    found = _same(node)
    return found or (_pointwise if is_pointwise(node) and operator_of(node.target) is None else None)


def _same(node: fx.Node) -> Rule | None:
    """How to do calls that are done in the same way whether the rows of the result are in front, in a later dim, or
    gone."""
    known = facts(node.target)
    if node.target in _SAME:
        return _SAME[node.target]
    if known.elements is Elements.reshaped:
        return _reshape
    return {Lead.reduced: _reduce, Lead.permuted: _permute, Lead.taken: _select}.get(known.rows)  # type: ignore[arg-type]


_SAME: Mapping[Any, Rule] = {aten.bmm.default: _bmm, aten.mm.default: _mm}

_RULES: Mapping[Any, Rule] = {
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros.default,
                     aten.ones.default, aten.full.default), _created),
    aten.cat.default: _cat,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
}  # fmt: skip

_EXITS: Mapping[Any, Rule] = {
    **dict.fromkeys((aten.sum.default, aten.mean.default), lambda node: _changed(node, self=_front(node.args[0]))),
    aten.sym_size.int: _size,
}  # fmt: skip
"""How to do calls from operands with their rows in front whose result has no rows."""
