"""Each call on tensors [H, rows, ...], as a call on tensors [rows, H, ...] that gives the same numbers.

In a call that is written here, `Front(x)` stands for x with its first two dims swapped, and a node for that node. Every
such call is right whatever the two dims mean; which tensors are worth it is for `rows_first.py` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.frontends.dynamo.captured_graph import is_random
from graphweave.frontends.dynamo.captured_sizes import argument, dim_of, fixed, is_tensor, rank, same, shape, unbacked, val
from graphweave.frontends.dynamo.declared import operator_of
from graphweave.frontends.dynamo.numbering import RESHAPES
from graphweave.frontends.dynamo.row_rules import GRAM, PRODUCT, is_pointwise, permutation

aten = torch.ops.aten

@dataclass(frozen=True, slots=True)
class Front:
    """`x` with its first two dims swapped."""

    x: fx.Node


@dataclass(frozen=True, slots=True)
class Call:
    """A call, some of whose arguments may be `Front` or calls themselves."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


Rule: TypeAlias = Callable[[fx.Node], "Call | None"]


def swap(rank: int) -> tuple[int, ...]:
    """The permutation that exchanges the first two dims."""
    return (1, 0, *range(2, rank))


def is_second(x: Any) -> bool:
    """Whether `x` is [H, rows, ...] with a fixed H and a number of rows that varies from call to call.

    A matrix counts if it holds floats: the two rows of an edge index are taken apart instead (`front_dims.py`).
    """
    if not is_tensor(x) or rank(x) < 2 or (rank(x) == 2 and not val(x).is_floating_point()):
        return False
    return (fixed(shape(x)[0]) or 0) >= 1 and fixed(shape(x)[1]) is None


def is_seed(node: fx.Node) -> bool:
    """Whether `node` multiplies rows in the second dim by a matrix for each item of the first, or moves such rows
    along an index."""
    if node.target is aten.bmm.default:
        return _product(node) is not None or _gram(node) is not None
    return node.target in _MOVES and is_second(node) and rank(node) > 2 and _moves_second(node) and bool(moved(node))


def moved(node: fx.Node) -> Call | None:
    """`node`, which is [H, rows, ...], with its rows in front; None if no call gives that, and for other nodes."""
    if node.op != "call_function" or not is_second(node) or is_random(node):
        return None
    rule = _RULES.get(node.target)
    if rule is None and is_pointwise(node) and operator_of(node.target) is None:
        rule = _pointwise
    return rule(node) if rule is not None else None


def leaves(node: fx.Node) -> Call | None:
    """`node`, which has no rows in the second dim, from operands whose rows are in front; None for other calls."""
    rule = _EXITS.get(node.target)
    return rule(node) if rule is not None else None


# ---------------------------------------------------------------- arguments


def _changed(node: fx.Node, **new: Any) -> Call:
    """The call of `node` with some of its schema's arguments replaced."""
    args, kwargs = list(node.args), dict(node.kwargs)
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    for name, value in new.items():
        at = names.index(name)
        if at < len(args):
            args[at] = value
        else:
            kwargs[name] = value
    return Call(node.target, tuple(args), kwargs)


def _dim(node: fx.Node, of: fx.Node, name: str = "dim", default: Any = None) -> int | None:
    """The dim of swapped operands for the argument `name`, which names a dim of `of`; None if it is no number."""
    dim = argument(node, name, default)
    return swap(rank(of))[dim_of(dim, rank(of))] if isinstance(dim, int) else None


def _beside(x: Any, ndim: int) -> Any:
    """The operand `x` of a call that broadcasts to `ndim` dims, for operands whose first two dims are swapped."""
    if not isinstance(x, fx.Node) or not is_tensor(x):
        return x
    if rank(x) == ndim:
        return Front(x)
    return Call(aten.unsqueeze.default, (x, 1)) if rank(x) == ndim - 1 else x


def _in_order(sizes: Any) -> list[Any]:
    first, second, *rest = sizes
    return [second, first, *rest]


# ---------------------------------------------------------------- row by row


def _pointwise(node: fx.Node) -> Call | None:
    if any(isinstance(a, list | tuple) for a in node.args):
        return None
    n = rank(node)
    args = tuple(_beside(a, n) for a in node.args)
    return Call(node.target, args, {name: _beside(a, n) for name, a in node.kwargs.items()})


def _along(*operands: str) -> Rule:
    """A call that works along `dim`, whose tensor arguments `operands` have the dims of the result."""

    def rule(node: fx.Node) -> Call | None:
        xs = {name: argument(node, name) for name in operands}
        if not all(is_tensor(x) and rank(x) == rank(node) for x in xs.values()):
            return None
        dim = _dim(node, next(iter(xs.values())), default=0)
        return None if dim is None else _changed(node, **{name: Front(x) for name, x in xs.items()}, dim=dim)

    return rule


def _cat(node: fx.Node) -> Call | None:
    xs: Any = node.args[0]
    dim = _dim(node, node, default=0)
    if dim is None or any(rank(x) != rank(node) for x in xs):
        return None
    return Call(aten.cat.default, ([Front(x) for x in xs], dim))


def _select(node: fx.Node) -> Call | None:
    """An item of a dim. If it is an item of the first dim, the rows of the result are in front anyway."""
    x, dim = node.args[0], _dim(node, node.args[0])  # type: ignore[arg-type]
    return None if dim is None or not is_second(x) else _changed(node, self=Front(x), dim=dim)  # type: ignore[arg-type]


def _feature(node: fx.Node) -> Call | None:
    dim = _dim(node, node.args[0])  # type: ignore[arg-type]
    return _select(node) if dim is not None and dim > 1 else None


def _select_backward(node: fx.Node) -> Call | None:
    grad, sizes, dim = argument(node, "grad_output"), argument(node, "input_sizes"), _dim(node, node)
    if dim is None:
        return None
    return _changed(node, grad_output=Front(grad) if dim > 1 else grad, input_sizes=_in_order(sizes), dim=dim)


def _slice_backward(node: fx.Node) -> Call | None:
    grad, sizes, dim = argument(node, "grad_output"), argument(node, "input_sizes"), _dim(node, node)
    return None if dim is None else _changed(node, grad_output=Front(grad), input_sizes=_in_order(sizes), dim=dim)


def _created(node: fx.Node) -> Call:
    """A tensor of one number. The tensor that it is created like gives no more than its type."""
    like = {"self": Front(x)} if is_second(x := argument(node, "self")) else {}
    return _changed(node, size=_in_order(argument(node, "size")), **like)


# ---------------------------------------------------------------- views


def _reshape(node: fx.Node) -> Call | None:
    """A view that keeps both dims, or that puts a dim of one item in front of rows."""
    x, sizes = node.args[0], shape(node)
    if node.target is aten.expand.default:
        return _expand(node)
    if not is_tensor(x) or any(map(unbacked, sizes[2:])):
        return None
    own = shape(x)  # type: ignore[arg-type]
    if is_second(x) and same(own[0], sizes[0]) and same(own[1], sizes[1]):
        return Call(aten.reshape.default, (Front(x), [-1, *(int(n) for n in (sizes[0], *sizes[2:]))]))  # type: ignore[arg-type]
    if own and fixed(sizes[0]) == 1 and same(own[0], sizes[1]):
        return Call(aten.reshape.default, (x, [-1, 1, *(int(n) for n in sizes[2:])]))
    return None


def _expand(node: fx.Node) -> Call | None:
    x, sizes = node.args[:2]
    return Call(aten.expand.default, (_beside(x, rank(node)), _in_order(sizes)))


def _permute(node: fx.Node) -> Call:
    x, perm = node.args[0], permutation(node)
    assert isinstance(x, fx.Node)
    swapped = swap(rank(x))
    wanted = [perm[d] for d in swapped]
    if is_second(x) and perm[1] == 1:
        return Call(aten.permute.default, (Front(x), [swapped[d] for d in wanted]))
    return Call(aten.permute.default, (x, wanted))


# ---------------------------------------------------------------- reductions


def _reduced(node: fx.Node) -> Call | None:
    """A reduction, whatever its dims. Without `keepdim` the dims that are left keep their order unless both of the
    first two are among them."""
    x, dims, keepdim = node.args[0], argument(node, "dim"), bool(argument(node, "keepdim", False))
    if not is_second(x):
        return None
    if dims is None or dims == []:
        return _changed(node, self=Front(x)) if not keepdim else None  # type: ignore[arg-type]
    n, swapped = rank(x), swap(rank(x))  # type: ignore[arg-type]
    if isinstance(dims, int):
        return _changed(node, self=Front(x), dim=swapped[dim_of(dims, n)])  # type: ignore[arg-type]
    return _changed(node, self=Front(x), dim=[swapped[dim_of(d, n)] for d in dims])  # type: ignore[arg-type]


def _reduces_to_second(node: fx.Node) -> Call | None:
    """A reduction whose result has rows in the second dim: of features, or of the first dim, which is kept."""
    call = _reduced(node)
    if call is None or not is_tensor(node.args[0]) or not same(shape(node.args[0])[1], shape(node)[1]):  # type: ignore[arg-type]
        return None
    return call if rank(node) == rank(node.args[0]) or 0 not in _dims(node) else None  # type: ignore[arg-type]


def _reduces_away(node: fx.Node) -> Call | None:
    call, first = _reduced(node), {0, 1} & set(_dims(node))
    if call is None or not argument(node, "keepdim", False):
        return call if first else None
    return Call(aten.permute.default, (call, list(swap(rank(node)))))


def _dims(node: fx.Node) -> list[int]:
    x, dims = node.args[0], argument(node, "dim")
    given = dims if isinstance(dims, list | tuple) else [] if dims is None else [dims]
    return [dim_of(d, rank(x)) for d in given] or list(range(rank(x)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- moves and products


def _moves_second(node: fx.Node) -> bool:
    if node.target in _BY_LIST:
        return True
    dim = argument(node, "dim")
    return isinstance(dim, int) and dim_of(dim, rank(node)) == 1


def _indexed(node: fx.Node) -> Call | None:
    """x[:, index] and the write to it, for a vector of row numbers."""
    x, indices = node.args[:2]
    if not is_second(x) or len(indices) != 2 or indices[0] is not None:  # type: ignore[arg-type]
        return None
    index = indices[1]  # type: ignore[index]
    if not is_tensor(index) or rank(index) != 1 or val(index).dtype not in (torch.int64, torch.int32):
        return None
    if node.target in (aten.index.Tensor, aten._unsafe_index.Tensor):
        return Call(node.target, (Front(x), [index]))  # type: ignore[arg-type]
    values = node.args[2]
    if not is_tensor(values) or rank(values) != rank(node):  # type: ignore[arg-type]
        return None
    return Call(node.target, (Front(x), [index], Front(values), *node.args[3:]), node.kwargs)  # type: ignore[arg-type]


def _product(node: fx.Node) -> Call | None:
    """[H, rows, K] times a matrix [K, J] for each item of the first dim."""
    a, b = node.args[:2]
    if not is_second(a) or any(fixed(n) is None for n in shape(b)):  # type: ignore[arg-type]
        return None
    return Call(aten.einsum.default, (PRODUCT, [Front(a), b]))  # type: ignore[arg-type]


def _gram(node: fx.Node) -> Call | None:
    """[H, I, rows] times [H, rows, J], the sum over rows of outer products."""
    a, b = node.args[:2]
    if node.target is not aten.bmm.default or not is_second(b) or any(fixed(n) is None for n in shape(node)):
        return None
    assert isinstance(a, fx.Node)
    x = a.args[0] if a.args else None
    turned = a.target in _TRANSPOSES and permutation(a) == (0, 2, 1) and is_second(x)
    rows: Any = Front(x) if turned else Call(aten.permute.default, (a, [2, 0, 1]))  # type: ignore[arg-type]
    return Call(aten.einsum.default, (GRAM, [rows, Front(b)]))  # type: ignore[arg-type]


def _leaving_view(node: fx.Node) -> Call | None:
    """[1, rows, ...] as rows."""
    x = node.args[0]
    if node.target is aten.expand.default or not is_second(x) or fixed(shape(x)[0]) != 1 or rank(node) == 0:  # type: ignore[arg-type]
        return None
    sizes = shape(node)
    if not same(sizes[0], shape(x)[1]) or any(map(unbacked, sizes[1:])):  # type: ignore[arg-type]
        return None
    return Call(aten.reshape.default, (Front(x), [-1, *(int(n) for n in sizes[1:])]))  # type: ignore[arg-type]


def _leaving_permute(node: fx.Node) -> Call:
    x, perm = node.args[0], permutation(node)
    assert isinstance(x, fx.Node)
    swapped = swap(rank(x))
    return Call(aten.permute.default, (Front(x), [swapped[d] for d in perm]))


def _size(node: fx.Node) -> Call | None:
    x = node.args[0]
    dim = _dim(node, x) if is_second(x) else None  # type: ignore[arg-type]
    return None if dim is None else Call(node.target, (Front(x), dim))  # type: ignore[arg-type]


_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})
_BY_LIST = frozenset({
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten._unsafe_index_put.default,
})  # fmt: skip
"""Moves along an index that stands in a list with one entry for each dim."""

_SCATTERS: dict[Any, Rule] = {
    **dict.fromkeys((aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.src),
                    _along("self", "index", "src")),
    aten.scatter.value: _along("self", "index"),
    **dict.fromkeys((aten.index_add.default, aten.index_reduce.default, aten.index_copy.default),
                    _along("self", "source")),
    aten.index_select.default: _along("self"),
    aten.gather.default: _along("self", "index"),
}  # fmt: skip

_MOVES = frozenset({*_SCATTERS, *_BY_LIST})

_REDUCTIONS = (
    aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.prod.dim_int,
    aten.logsumexp.default, aten.any.dim, aten.all.dim, aten.var.correction,
)  # fmt: skip

_RULES: dict[Any, Rule] = {
    **_SCATTERS,
    **dict.fromkeys(_BY_LIST, _indexed),
    **dict.fromkeys(_REDUCTIONS, _reduces_to_second),
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(_TRANSPOSES, _permute),
    **dict.fromkeys((aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.slice.Tensor),
                    _along("self")),
    **dict.fromkeys((aten._softmax_backward_data.default, aten._log_softmax_backward_data.default),
                    _along("grad_output", "output")),
    **dict.fromkeys((aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.zeros.default,
                     aten.ones.default, aten.full.default), _created),
    aten.bmm.default: _product,
    aten.cat.default: _cat,
    aten.select.int: _feature,
    aten.select_backward.default: _select_backward,
    aten.slice_backward.default: _slice_backward,
}  # fmt: skip
"""Call -> the same with its rows in front, where its result has them in the second dim."""

_EXITS: dict[Any, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduces_away),
    **dict.fromkeys((aten.sum.default, aten.mean.default), _reduced),
    **dict.fromkeys(RESHAPES, _leaving_view),
    **dict.fromkeys(_TRANSPOSES, _leaving_permute),
    aten.select.int: _select,
    aten.sym_size.int: _size,
    aten.bmm.default: _gram,
}  # fmt: skip
"""Call -> the same from operands with their rows in front, where its result has no rows in the second dim."""
