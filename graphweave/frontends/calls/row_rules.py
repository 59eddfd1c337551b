"""Which leading dims of a captured call correspond, and which operand indexes which rows (`core/calls`)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.core.calls import Elements, IndexUse, Lead
from graphweave.frontends.calls.call_facts import facts, is_identity, is_reshape
from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.declared import operator_of

aten = torch.ops.aten

PRODUCT, GRAM = "nhk,hkj->nhj", "nhi,nhj->hij"
"""Equations that `spellings/product_weights.py` writes: products with a matrix for each block of a row, and the
gradient of these."""

Pairs: TypeAlias = Iterator[tuple[Any, Any]]
Rule: TypeAlias = Callable[[fx.Node], Pairs]


def related(node: fx.Node) -> Pairs:
    """Pairs of operands, or an operand and the result, whose rows correspond."""
    if node.target is operator.getitem:
        yield from _item(node)
        return
    sums = running_sum(node)
    if sums is not None:
        yield sums[0], node
    rows = facts(node.target).rows
    if rows is not None or is_pointwise(node):
        yield from _RULES[rows or Lead.each](node)


def is_pointwise(node: fx.Node) -> bool:
    """Whether every operand with the rank of the result corresponds to it row by row.

    (A softmax over rows mixes them, but keeps their number and order.)
    """
    op = node.target
    tagged = isinstance(op, torch._ops.OpOverload) and torch.Tag.pointwise in op.tags
    return facts(op).rows is Lead.each or tagged or operator_of(op) is not None


def index_uses(node: fx.Node, rep: Callable[[fx.Node], fx.Node]) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """(index, x, wrap) for calls that move rows along an index into rows of x. `wrap` allows counting from the end."""
    found = pulled(node) or pushed(node)
    if found is not None:
        index, x, wrap = found
        yield rep(index), rep(x), wrap


def pulled(node: fx.Node) -> tuple[fx.Node, fx.Node, bool] | None:
    """(index, x, wrap) if `node` is x[index[e]] for every row e of a vector `index`, else None."""
    how = facts(node.target).index
    return _use(node, how, node.args[0]) if how is not None and not how.pushes else None


def pushed(node: fx.Node) -> tuple[fx.Node, fx.Node, bool] | None:
    """(index, node, wrap) if `node` reduces row e into row index[e] of its result, with a vector `index`, else None."""
    how = facts(node.target).index
    return _use(node, how, node) if how is not None and how.pushes else None


def _use(node: fx.Node, how: IndexUse, x: Any) -> tuple[fx.Node, fx.Node, bool] | None:
    index: Any = node.args[how.at]
    index = _only_index(index) if how.listed else index_vector(index) if how.spread else index
    if not isinstance(index, fx.Node) or not is_tensor(index) or not is_tensor(x) or rank(index) == 0 or rank(x) == 0:
        return None
    dim: Any = 0 if how.dim is None else node.args[how.dim]
    if val(index).dtype not in (torch.int64, torch.int32) or dim_of(dim, rank(x)) != 0:
        return None
    return index, x, how.wraps


def index_vector(arg: fx.Node) -> fx.Node | None:
    """The tensor `[E]` or `[E, 1, ...]` that `arg: [E, ...]` repeats over its features; None if there is none."""
    node = arg
    while isinstance(node, fx.Node) and is_tensor(node) and rank(node) > 0:
        column = all(fixed(n) == 1 for n in shape(node)[1:])
        x = _beneath(node, column)
        if x is None:
            return node if column else None
        node = x
    return None


def _beneath(node: fx.Node, column: bool) -> fx.Node | None:
    """The operand that `node` only repeats, reshapes to a column, or casts to more bits; None for other nodes."""
    x = node.args[0] if node.args else None
    if not isinstance(x, fx.Node) or not is_tensor(x) or rank(x) == 0 or not same(shape(x)[0], shape(node)[0]):
        return None
    converts = facts(node.target).elements is Elements.converted
    if is_identity(node.target) or (converts and (val(x).dtype, val(node).dtype) in _WIDENS):
        return x
    if node.target in _REPEATS:
        return x if rank(x) == rank(node) and all(fixed(n) == 1 for n in shape(x)[1:]) else None
    return x if column and is_reshape(node.target) else None


_WIDENS = frozenset({(torch.int32, torch.int64), (torch.int64, torch.int64), (torch.int32, torch.int32)})
"""Pairs of dtypes, before and after a cast, that keep every index."""
_REPEATS = frozenset({aten.expand.default, aten.repeat.default, aten.expand_copy.default})
"""Calls that may repeat a column over features."""


def ordered_rows(index: fx.Node) -> fx.Node | None:
    """The vector whose rows `index` has in the order of a sort; None if it is no such order."""
    source, item = index.args if index.target is operator.getitem else (None, None)
    known = facts(source.target) if isinstance(source, fx.Node) else None
    if known is None or item not in known.kept or known.results[item] is not Elements.positions:  # type: ignore[index]
        return None
    x: Any = source.args[0]  # type: ignore[union-attr]
    return x if is_tensor(x) and rank(x) == 1 else None


def running_sum(node: fx.Node) -> tuple[fx.Node, bool] | None:
    """(x, reverse) if `node` has for each row of x the sum of it and all rows before it, or, with `reverse`, and all
    rows after it: cumsum(x), and flip(cumsum(flip(x))), which is its gradient. None for other nodes."""
    if _is_along_rows(node, aten.cumsum.default):
        return node.args[0], False  # type: ignore[return-value]
    sums: Any = node.args[0] if _is_along_rows(node, aten.flip.default) else None
    flipped: Any = sums.args[0] if _is_along_rows(sums, aten.cumsum.default) else None
    return (flipped.args[0], True) if _is_along_rows(flipped, aten.flip.default) else None


def _is_along_rows(node: object, target: object) -> bool:
    """Whether `node` is a call of `target` along dim 0 alone."""
    if not isinstance(node, fx.Node) or node.target is not target or rank(node) == 0:
        return False
    dims: Any = node.args[1]
    return [dim_of(d, rank(node)) for d in (dims if isinstance(dims, list | tuple) else [dims])] == [0]


def _only_index(indices: Sequence[object]) -> fx.Node | None:
    """The index i of x[i] if it is a vector and no other dim is indexed, else None."""
    first, *others = indices
    if not isinstance(first, fx.Node) or rank(first) != 1 or any(i is not None for i in others):
        return None
    return first


# ---------------------------------------------------------------- rules


def _each(node: fx.Node) -> Pairs:
    for x in node.all_input_nodes:
        if is_tensor(x) and rank(x) == rank(node):
            yield x, node


def _given(node: fx.Node) -> Pairs:
    for position in facts(node.target).operands:
        yield node.args[position], node


def _indexed(node: fx.Node) -> Pairs:
    """Of a pull, the index corresponds to the result. Of a push, the base does, and the source to the index if that is
    a vector."""
    how = facts(node.target).index
    assert how is not None
    if not how.pushes:
        found = pulled(node)
        if found is not None:
            yield found[0], node
    elif how.base:
        yield node.args[0], node
    if how.dim is not None and rank(node) > 0 and dim_of(node.args[how.dim], rank(node)) != 0:  # type: ignore[arg-type]
        for name in facts(node.target).alike:
            yield argument(node, name), node
    rows = pushed_rows(node)
    if rows is not None:
        yield rows
    elif how.pushes and how.listed and len(node.args[how.at]) == 1:  # type: ignore[arg-type]
        mask = node.args[how.at][0]  # type: ignore[index]
        if is_tensor(mask) and val(mask).dtype is torch.bool:
            yield mask, node


def within_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """x and index of a gather or scatter along features, which works within each row; None for other calls."""
    how = facts(node.target).index
    if how is None or not how.spread or how.dim is None:
        return None
    x, dim, index = node.args[0], node.args[how.dim], node.args[how.at]
    if not is_tensor(x) or not is_tensor(index) or rank(x) == 0 or dim_of(dim, rank(x)) == 0:  # type: ignore[arg-type]
        return None
    return x, index  # type: ignore[return-value]


def pushed_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The index and the source of a pushing call whose rows correspond; None if they do not, and for other calls."""
    how, found = facts(node.target).index, pushed(node)
    if found is None or how is None or how.source is None:
        return None
    source = node.args[how.source]
    if not isinstance(source, fx.Node) or not is_tensor(source):
        return None
    # The values of index_put may have fewer dims and broadcast; the gradient of an embedding has the dims of its index.
    return (found[0], source) if rank(source) == rank(node) or not how.base else None


def _keeps_lead(node: fx.Node) -> Pairs:
    """Views in row-major order keep rows if they keep the number of rows."""
    x = node.args[0]
    if is_tensor(x) and rank(x) > 0 and rank(node) > 0 and same(shape(x)[0], shape(node)[0]):  # type: ignore[arg-type]
        yield x, node


def _repeated(node: fx.Node) -> Pairs:
    if rank(node.args[0]) == rank(node):  # type: ignore[arg-type]
        yield node.args[0], node


def _unless_first(node: fx.Node) -> Pairs:
    """A call that works on dims (None means all): rows correspond unless dim 0 is one."""
    known, x = facts(node.target), node.args[0]
    assert isinstance(x, fx.Node)
    dims = argument(node, known.dim, known.default)
    if rank(x) == 0 or dims is None or dims == []:
        return
    if all(dim_of(d, rank(x)) != 0 for d in (dims if isinstance(dims, list | tuple) else [dims])):
        yield x, node
        yield from _given(node)
        for name in known.alike:
            yield argument(node, name), node


def _widened(node: fx.Node) -> Pairs:
    if dim_of(argument(node, "dim"), rank(node)) != 0:
        yield node.args[0], node


def _permute(node: fx.Node) -> Pairs:
    x = node.args[0]
    assert isinstance(x, fx.Node)
    if permutation(node)[:1] == (0,):
        yield x, node


def permutation(node: fx.Node) -> tuple[int, ...]:
    """Dim i of the result of t, transpose or permute is dim permutation(node)[i] of its operand."""
    n = rank(node)
    match node.target:
        case aten.permute.default | aten.permute_copy.default:
            return tuple(dim_of(d, n) for d in node.args[1])  # type: ignore[union-attr, arg-type]
        case aten.t.default:
            return (1, 0) if n == 2 else tuple(range(n))
        case _:
            i, j = (dim_of(d, n) for d in node.args[1:3])  # type: ignore[arg-type]
            out = list(range(n))
            if n:
                out[i], out[j] = j, i
            return tuple(out)


def transposed(arg: object) -> fx.Node | None:
    """x if `arg` is the transpose of a matrix x, else None."""
    if isinstance(arg, fx.Node) and facts(arg.target).rows is Lead.permuted and permutation(arg) == (1, 0):
        x = arg.args[0]
        assert isinstance(x, fx.Node)
        return x
    return None


def _lists(node: fx.Node) -> Pairs:
    """cat and stack. Rows correspond unless the call works along dim 0."""
    dim = argument(node, "dim", 0)
    if dim_of(dim, rank(node)) != 0:
        for x in node.args[0]:  # type: ignore[union-attr]
            yield x, node


def _mm(node: fx.Node) -> Pairs:
    a, b = node.args[-2:]
    yield a, node
    x = transposed(a)
    if x is not None:
        yield x, b


def _einsum(node: fx.Node) -> Pairs:
    """A product of rows with shared matrices, or the gradient of such matrices."""
    a, b = node.args[1]  # type: ignore[misc, str-unpack]
    if node.args[0] == PRODUCT:
        yield a, node
    elif node.args[0] == GRAM:
        yield a, b


def _item(node: fx.Node) -> Pairs:
    """An item of a call with several results."""
    source, item = node.args
    if not isinstance(source, fx.Node):
        return
    known = facts(source.target)
    if known.rows is Lead.parts:
        if dim_of(argument(source, known.dim, known.default), rank(source.args[0])) != 0:  # type: ignore[arg-type]
            yield source.args[0], node
    elif item in known.kept:
        for position in known.operands or (0,):
            yield source.args[position], node
    elif item in known.together:
        yield next(n for n in source.users if n.args[1] in known.together), node


def _none(node: fx.Node) -> Pairs:
    """A call with several results, whose items have the rows."""
    del node
    yield from ()


_RULES: Mapping[Lead, Rule] = {
    Lead.each: _each, Lead.given: _given, Lead.matrices: _given, Lead.row_major: _keeps_lead, Lead.repeated: _repeated,
    Lead.reduced: _unless_first, Lead.along: _unless_first, Lead.taken: _unless_first, Lead.widened: _widened,
    Lead.permuted: _permute, Lead.joined: _lists, Lead.stacked: _lists, Lead.product: _mm, Lead.equation: _einsum,
    Lead.indexed: _indexed, Lead.parts: _none,
}  # fmt: skip
"""Kind of call -> the pairs of operands and results whose rows correspond."""
