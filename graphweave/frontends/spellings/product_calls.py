"""Each call on tensors with rows in several dims, as calls on their flat forms (`product_shape.py`).

A rule says which operands it takes in the flat form, and how the flat form of the result is made from these. It has
None for a call that it cannot write so, which then stays as it is. Rows along which an operand does not vary, such as
[nodes, features] next to [batch, nodes, features], are picked by the numbers of its own rows, so that they are read
along a map and never repeated in memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import torch
from torch import fx
from torch.fx.node import Argument

from graphweave.core.calls import Elements, Lead
from graphweave.core.types import Fold, Op
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_graph import is_random
from graphweave.frontends.calls.captured_sizes import (
    Size,
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
from graphweave.frontends.calls.dim_classes import aligned, is_whole_slice
from graphweave.frontends.calls.row_rules import is_pointwise, permutation
from graphweave.frontends.calls.softmax import SOFTMAXES
from graphweave.frontends.spellings.product_moves import FlatCall, FlatWriter, flat_move, row_numbers
from graphweave.frontends.spellings.product_shape import ProductShape
from graphweave.frontends.spellings.product_weights import flat_product

aten = torch.ops.aten


Rule: TypeAlias = Callable[[fx.Node, ProductShape], "FlatCall | None"]


def flat_call(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """How to write `node` with flat forms; None if it has no rows in several dims, or no rule knows it."""
    if node.op != "call_function" or not is_tensor(node) or is_random(node):
        return None
    tensors = [node, *(x for x in node.all_input_nodes if is_tensor(x))]
    if all(shapes.is_flat(x) for x in tensors) or not all(map(shapes.has_features, tensors)):
        return None
    known = facts(node.target)
    rule = _SPECIAL.get(node.target) or (_RULES.get(known.rows) if known.rows is not None else None)
    if known.elements is Elements.reshaped and known.rows is not Lead.repeated:
        rule = _view
    elif node.target in SOFTMAXES:
        rule = _softmax
    elif rule is None and is_pointwise(node):
        rule = _pointwise
    return rule(node, shapes) if rule is not None else None


# ---------------------------------------------------------------- operands that broadcast


def _fits(x: fx.Node, node: fx.Node, shapes: ProductShape) -> bool:
    """Whether the rows of an operand that broadcasts to the dims of `node` are rows of `node`."""
    shift, rows = rank(node) - rank(x), shapes.rows(node)
    for d in shapes.rows(x):
        if d + shift not in rows or shapes.classes.find((x, d)) != shapes.classes.find((node, d + shift)):
            return False
    return all(fixed(shape(x)[d - shift]) == 1 or d - shift in shapes.rows(x) for d in rows if d >= shift)


def _spread(w: FlatWriter, x: fx.Node, node: fx.Node) -> fx.Node:
    """`x`, which broadcasts to the dims of `node`, in the flat form of `node`; with one row if `x` has no rows."""
    shapes, shift = w.shapes, rank(node) - rank(x)
    if rank(x) == 0:
        return w.flat(x)
    sizes = [int(shape(x)[d - shift]) if d >= shift else 1 for d in shapes.features(node)]
    rows = shapes.rows(x)
    if not rows:
        return w.call(aten.reshape.default, w.flat(x), [1, *sizes])
    flat = w.call(aten.reshape.default, w.flat(x), [-1, *sizes])
    if len(rows) == len(shapes.rows(node)):
        return flat
    places = {shapes.classes.number((x, d)): d + shift for d in rows}
    coordinates = [(shape(x)[d], places[shapes.classes.number((x, d))]) for d in rows]
    return w.call(aten.index_select.default, flat, 0, row_numbers(w, node, coordinates))


# ---------------------------------------------------------------- row by row


def _pointwise(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    args = [*node.args, *node.kwargs.values()]
    if any(isinstance(a, list | tuple) and any(isinstance(i, fx.Node) for i in a) for a in args):
        return None
    tensors = tuple(x for x in node.all_input_nodes if is_tensor(x))
    if not shapes.rows(node) or not all(_fits(x, node, shapes) for x in tensors):
        return None

    def write(w: FlatWriter) -> fx.Node:
        taken = {x: _spread(w, x, node) for x in tensors}
        # an operand that is its own flat form has been replaced by the call that computes it now
        taken |= {w.flat(x): taken[x] for x in tensors if shapes.is_flat(x)}
        new, named = fx.map_arg((node.args, node.kwargs), lambda n: taken.get(n, n))
        out = w.call(node.target, *new, **named)
        return _widened_to(w, out, node)

    return FlatCall(write, tensors, any(_lacks_rows(x, node, shapes) for x in tensors))


def _lacks_rows(x: fx.Node, node: fx.Node, shapes: ProductShape) -> bool:
    """Whether `x` varies along some rows of `node`, but not along all of them."""
    return 0 < len(shapes.rows(x)) < len(shapes.rows(node))


def _widened_to(w: FlatWriter, out: fx.Node, node: fx.Node) -> fx.Node:
    """`out`, whose rows or features may be one where the flat form of `node` has more, as that form."""
    sizes = w.shapes.feature_sizes(node)
    known = shape(out)
    if known and same(known[0], w.shapes.count(node)) and [fixed(n) for n in known[1:]] == sizes:
        return out
    return w.call(aten.expand.default, out, [w.size(w.shapes.count(node)), *sizes])


def _expand(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    x: Any = node.args[0]
    if not _fits(x, node, shapes):
        return None
    numbered = _lacks_rows(x, node, shapes)
    return FlatCall(lambda w: _widened_to(w, _spread(w, x, node), node), (x,), numbered)


def _created(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """A tensor of one number."""

    def write(w: FlatWriter) -> fx.Node:
        rows = [w.size(shapes.count(node))] if shapes.rows(node) else []
        size = [*rows, *shapes.feature_sizes(node)]
        like = () if argument(node, "self") is None else (w.flat(node.args[0]),)  # type: ignore[arg-type]
        at = len(like)
        return w.call(node.target, *like, size, *node.args[at + 1 :], **node.kwargs)

    return FlatCall(write, tuple(x for x in node.all_input_nodes if is_tensor(x)))


# ---------------------------------------------------------------- views


def _view(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """A view that keeps all rows as rows, or makes one dim of all rows, or several dims of one."""
    x: Any = node.args[0]
    if not shapes.rows(x) or not shapes.rows(node):
        return None
    if shapes.leads(x) and shapes.leads(node):
        if not same(shapes.count(x), shapes.count(node)):
            return None
    elif shapes.names(x) != shapes.names(node) or not _same_places(x, node, shapes):
        return None

    def write(w: FlatWriter) -> fx.Node:
        return w.call(aten.reshape.default, w.flat(x), [-1, *shapes.feature_sizes(node)])

    return FlatCall(write, (x,))


def _same_places(x: fx.Node, node: fx.Node, shapes: ProductShape) -> bool:
    """Whether the view itself says that each row of `node` is that row of `x`."""
    pairs = set(aligned(node))
    return all(((x, d), (node, e)) in pairs for d, e in zip(shapes.rows(x), shapes.rows(node), strict=True))


def _permute(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    x: Any = node.args[0]
    order = permutation(node)
    if tuple(order[d] for d in shapes.rows(node)) != shapes.rows(x):
        return None
    before = shapes.features(x)
    features = [before.index(order[d]) for d in shapes.features(node)]

    def write(w: FlatWriter) -> fx.Node:
        flat = w.flat(x)
        if features == sorted(features):
            return flat
        return w.call(aten.permute.default, flat, [0, *(1 + k for k in features)])

    return FlatCall(write, (x,))


def _feature(x: fx.Node, dim: Any, shapes: ProductShape) -> int | None:
    """The position in the flat form of a dim of features; None for a dim of rows."""
    features = shapes.features(x)
    d = dim_of(dim, rank(x))
    return 1 + features.index(d) if d in features else None


def _along(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """A call along one dim of features, on tensors with the dims of the result."""
    known = facts(node.target)
    dim, xs = argument(node, known.dim, known.default), {n: argument(node, n) for n in known.alike}
    at = _feature(node, dim, shapes) if isinstance(dim, int) else None
    if at is None or not xs or any(shapes.names(x) != shapes.names(node) for x in xs.values()):
        return None

    def write(w: FlatWriter) -> fx.Node:
        return _changed(w, node, **{name: w.flat(x) for name, x in xs.items()}, dim=at)

    return FlatCall(write, tuple(xs.values()))


def _slice(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    x: Any = node.args[0]
    if is_whole_slice(node) and shapes.names(x) == shapes.names(node):
        return FlatCall(lambda w: w.flat(x), (x,))
    return _along(node, shapes)


def _changed(w: FlatWriter, node: fx.Node, **new: Argument) -> fx.Node:
    """The call of `node` with some of its schema's arguments replaced."""
    args, kwargs = changed_arguments(node, new)
    return w.call(node.target, *args, **kwargs)


def _select(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """An item of a dim of features."""
    x: Any = node.args[0]
    at = _feature(x, node.args[1], shapes)
    if at is None or shapes.names(x) != shapes.names(node):
        return None
    return FlatCall(lambda w: w.call(aten.select.int, w.flat(x), at, node.args[2]), (x,))


def _of_view(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """The gradient of a slice or of an item along a dim of features, or of x[:]."""
    grad: Any = node.args[0]
    alike = shapes.names(grad) == shapes.names(node)
    if alike and rank(grad) == rank(node) and all(map(same, shape(grad), shape(node))):
        return FlatCall(lambda w: w.flat(grad), (grad,))
    at = _feature(node, argument(node, "dim"), shapes)
    if at is None or not alike:
        return None

    def write(w: FlatWriter) -> fx.Node:
        whole = [w.size(shapes.count(node)), *shapes.feature_sizes(node)]
        return _changed(w, node, grad_output=w.flat(grad), input_sizes=whole, dim=at)

    return FlatCall(write, (grad,))


def _lists(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """cat along features, and stack."""
    xs: Any = node.args[0]
    at = _feature(node, argument(node, "dim", 0), shapes)
    if at is None or any(shapes.names(x) != shapes.names(node) for x in xs):
        return None
    return FlatCall(lambda w: w.call(node.target, [w.flat(x) for x in xs], at), tuple(xs))


def _item(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """An item of a call that cuts a tensor along features."""
    source: Any = node.args[0]
    x: Any = source.args[0] if isinstance(source, fx.Node) else None
    if not is_tensor(x) or facts(source.target).rows is not Lead.parts:
        return None
    known = facts(source.target)
    at = _feature(x, argument(source, known.dim, known.default), shapes)
    if at is None or shapes.names(x) != shapes.names(node) or not shapes.has_features(x):
        return None
    return FlatCall(lambda w: w.call(operator.getitem, _changed(w, source, self=w.flat(x), dim=at), node.args[1]), (x,))


# ---------------------------------------------------------------- reductions

_FOLDS: Mapping[Any, str] = {
    aten.sum.dim_IntList: "sum", aten.mean.dim: "sum", aten.amax.default: "amax", aten.amin.default: "amin",
    aten.prod.dim_int: "prod",
}  # fmt: skip
"""Reductions of some rows -> how `scatter_reduce` calls them. A mean is a sum that is divided by the count."""


def _reduce(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    x: Any = node.args[0]
    dims = argument(node, "dim")
    listed = dims if isinstance(dims, list | tuple) else [dims]
    gone = [dim_of(d, rank(x)) for d in listed] if dims is not None and dims != [] else list(range(rank(x)))
    rows, features = shapes.rows(x), shapes.features(x)
    left = [d for d in rows if d not in gone]
    if len(left) == len(rows):
        at = [1 + features.index(d) for d in gone]
        if shapes.names(x) != shapes.names(node):
            return None
        keepdim = bool(argument(node, "keepdim", False))

        def within(w: FlatWriter) -> fx.Node:
            new: Any = at if isinstance(dims, list | tuple) else at[0]
            return _changed(w, node, self=w.flat(x), dim=new, **({"keepdim": keepdim} if keepdim else {}))

        return FlatCall(within, (x,))
    if node.target not in _FOLDS or len(left) != len(shapes.rows(node)):
        return None
    if [shapes.classes.number((x, d)) for d in left] != list(shapes.names(node)):
        return None
    return FlatCall(lambda w: _pushed_to(w, node, x, gone, left), (x,), numbered=bool(left))


def _fold_all(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """A reduction to one number, in any order."""
    x: Any = node.args[0]
    return FlatCall(lambda w: w.call(node.target, w.flat(x), *node.args[1:], **node.kwargs), (x,))


def _pushed_to(w: FlatWriter, node: fx.Node, x: fx.Node, gone: list[int], left: list[int]) -> fx.Node:
    """The reduction of some rows of `x`, which goes along the map from all rows to those that are left."""
    shapes, flat = w.shapes, w.flat(x)
    inside = [1 + k for k, d in enumerate(shapes.features(x)) if d in gone]
    call: Any = aten.sum.dim_IntList if node.target is aten.mean.dim else node.target
    if val(flat).dtype != val(node).dtype:
        flat = w.call(aten._to_copy.default, flat, dtype=val(node).dtype)
    if inside:
        flat = w.call(call, flat, inside[0] if call is aten.prod.dim_int else inside)
    flat = w.call(aten.reshape.default, flat, [-1, *shapes.feature_sizes(node)])
    if not left:
        out = w.call(call, flat, 0 if call is aten.prod.dim_int else [0])
    else:
        out = _pushed(w, flat, _numbers_of_left(w, x, left), shapes.count(node), _FOLDS[node.target])
    if node.target is aten.mean.dim:
        total: Any = 1
        for d in gone:
            size = w.size(shape(x)[d])
            total = size if total == 1 else w.call(operator.mul, total, size)
        out = w.call(aten.div.Tensor, out, total)
    return out


def _numbers_of_left(w: FlatWriter, x: fx.Node, left: list[int]) -> fx.Node:
    """For each row of `x`, the number of its row among those of the dims `left`."""
    return row_numbers(w, x, [(shape(x)[d], d) for d in left])


def _pushed(w: FlatWriter, flat: fx.Node, numbers: fx.Node, count: Size, fold: str) -> fx.Node:
    """The rows of `flat` reduced to `count` rows."""
    value = val(flat)
    base = w.call(
        aten.full.default,
        [w.size(count), *value.shape[1:]],
        0,
        dtype=value.dtype,
        device=value.device,
        pin_memory=False,
    )
    if fold == "sum":
        return w.call(aten.index_add.default, base, 0, numbers, flat)
    return w.call(aten.index_reduce.default, base, 0, numbers, flat, fold, include_self=False)


def _softmax(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """A softmax or its gradient, along features or along some of the rows."""
    names, formula = SOFTMAXES[node.target]
    xs: Any = [argument(node, name) for name in names]
    gone = dim_of(argument(node, "dim"), rank(node))
    if gone not in shapes.rows(node):
        return _along(node, shapes)
    if any(shapes.names(x) != shapes.names(node) for x in xs):
        return None
    left = [d for d in shapes.rows(node) if d != gone]

    def write(w: FlatWriter) -> fx.Node:
        def along(flat: fx.Node, fold: Fold) -> fx.Node:
            if not left:
                return w.call(aten.amax.default if fold is Fold.max else aten.sum.dim_IntList, flat, [0], True)
            numbers = _numbers_of_left(w, node, left)
            count = prod(shape(node)[d] for d in left)
            pushed = _pushed(w, flat, numbers, count, "amax" if fold is Fold.max else "sum")
            return w.call(aten.index_select.default, pushed, 0, numbers)

        return formula(lambda op, *flats: w.call(_POINTWISE[op], *flats), along, *map(w.flat, xs))

    return FlatCall(write, tuple(xs), numbered=bool(left))


_POINTWISE: Mapping[Op, Any] = {
    Op.exp: aten.exp.default, Op.log: aten.log.default, Op.sub: aten.sub.Tensor, Op.mul: aten.mul.Tensor,
    Op.div: aten.div.Tensor,
}  # fmt: skip


_SPECIAL: Mapping[Any, Rule] = {
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros.default,
                     aten.ones.default, aten.full.default, aten.empty.memory_format, aten.new_empty.default), _created),
    **dict.fromkeys((aten.sum.default, aten.mean.default), _fold_all),
    aten.slice.Tensor: _slice,
    aten.slice_backward.default: _of_view,
    aten.select_backward.default: _of_view,
    operator.getitem: _item,
}  # fmt: skip

_RULES: Mapping[Lead, Rule] = {
    Lead.each: _pointwise, Lead.reduced: _reduce, Lead.along: _along, Lead.taken: _select,
    Lead.repeated: _expand, Lead.permuted: _permute, Lead.joined: _lists, Lead.stacked: _lists,
    Lead.indexed: flat_move, Lead.product: flat_product, Lead.matrices: flat_product,
}  # fmt: skip
