"""What each ATen call says about rows: which leading dims correspond, and which operand indexes which rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.frontends.calls.captured_sizes import argument, dim_of, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.declared import operator_of
from graphweave.frontends.calls.numbering import IDENTITY, RESHAPES

aten = torch.ops.aten
prims = torch.ops.prims

PRODUCT, GRAM = "nhk,hkj->nhj", "nhi,nhj->hij"
"""Equations that `spellings/rows_first.py` writes: products with a matrix for each block of a row, and the gradient of
these."""

Pairs: TypeAlias = Iterator[tuple[Any, Any]]
Rule: TypeAlias = Callable[[fx.Node], Pairs]

_POINTWISE = frozenset({
    *IDENTITY, aten._to_copy.default, prims.convert_element_type.default, aten.leaky_relu_backward.default,
    aten.elu_backward.default, aten.gelu_backward.default, aten.softplus_backward.default, aten.silu_backward.default,
    aten.hardtanh_backward.default, aten.copy.default, aten.fill.Scalar, aten.fill.Tensor, aten.zero.default,
    aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default,
    aten.bernoulli.p, aten.bernoulli.default, aten.rand_like.default, aten.randn_like.default,
    aten._softmax.default, aten._log_softmax.default, aten._softmax_backward_data.default,
    aten._log_softmax_backward_data.default, aten.uniform.default, aten.normal_functional.default,
})  # fmt: skip
"""Calls that keep rows, besides those that PyTorch tags as pointwise."""


def is_pointwise(node: fx.Node) -> bool:
    """Whether every operand with the rank of the result corresponds to it row by row.

    (A softmax over rows mixes them, but keeps their number and order.)
    """
    op = node.target
    tagged = isinstance(op, torch._ops.OpOverload) and torch.Tag.pointwise in op.tags
    return op in _POINTWISE or tagged or operator_of(op) is not None


def index_uses(node: fx.Node, rep: Callable[[fx.Node], fx.Node]) -> Iterator[tuple[fx.Node, fx.Node, bool]]:
    """(index, x, wrap) for calls that move rows along an index into rows of x. `wrap` allows counting from the end."""
    found = pulled(node) or pushed(node)
    if found is not None:
        index, x, wrap = found
        yield rep(index), rep(x), wrap


def pulled(node: fx.Node) -> tuple[fx.Node, fx.Node, bool] | None:
    """(index, x, wrap) if `node` is x[index[e]] for every row e of a vector `index`, else None."""
    match node.target:
        case aten.index_select.default:
            x, dim, index = node.args[:3]
            return _use(index, x, dim, False)
        case aten.gather.default:
            x, dim, index = node.args[:3]
            return _use(index_vector(index), x, dim, False)
        case aten.index.Tensor | aten._unsafe_index.Tensor:
            x, indices = node.args[:2]
            return _use(_only_index(indices), x, 0, True)
        case aten.embedding.default:
            x, index = node.args[:2]
            return _use(index_vector(index), x, 0, False)
        case _:
            return None


def pushed(node: fx.Node) -> tuple[fx.Node, fx.Node, bool] | None:
    """(index, node, wrap) if `node` reduces row e into row index[e] of its result, with a vector `index`, else None."""
    match node.target:
        case aten.scatter_add.default | aten.scatter_reduce.two | aten.scatter.value | aten.scatter.src:
            _, dim, index = node.args[:3]
            return _use(index_vector(index), node, dim, False)
        case aten.index_add.default | aten.index_reduce.default | aten.index_copy.default:
            _, dim, index = node.args[:3]
            return _use(index, node, dim, False)
        case aten.index_fill.int_Scalar | aten.index_fill.int_Tensor:
            _, dim, index = node.args[:3]
            return _use(index, node, dim, True)
        case aten.index_put.default | aten._unsafe_index_put.default:
            return _use(_only_index(node.args[1]), node, 0, True)
        case aten.embedding_dense_backward.default:
            return _use(index_vector(node.args[1]), node, 0, False)
        case _:
            return None


def index_vector(arg: Any) -> fx.Node | None:
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
    if node.target in IDENTITY or (node.target in _CASTS and (val(x).dtype, val(node).dtype) in _WIDENS):
        return x
    if node.target in _REPEATS:
        return x if rank(x) == rank(node) and all(fixed(n) == 1 for n in shape(x)[1:]) else None
    return x if column and node.target in RESHAPES else None


_CASTS = frozenset({aten._to_copy.default, prims.convert_element_type.default})
_WIDENS = frozenset({(torch.int32, torch.int64), (torch.int64, torch.int64), (torch.int32, torch.int32)})
"""Pairs of dtypes, before and after a cast, that keep every index."""
_REPEATS = frozenset({aten.expand.default, aten.repeat.default, aten.expand_copy.default})
"""Calls that may repeat a column over features."""


def _use(index: Any, x: Any, dim: Any, wrap: bool) -> tuple[fx.Node, fx.Node, bool] | None:
    if not isinstance(index, fx.Node) or not is_tensor(index) or not is_tensor(x) or rank(index) == 0 or rank(x) == 0:
        return None
    if val(index).dtype not in (torch.int64, torch.int32) or dim_of(dim, rank(x)) != 0:
        return None
    return index, x, wrap


def _only_index(indices: Any) -> fx.Node | None:
    """The index i of x[i] if it is a vector and no other dim is indexed, else None."""
    first, *others = indices
    if not isinstance(first, fx.Node) or rank(first) != 1 or any(i is not None for i in others):
        return None
    return first


# ---------------------------------------------------------------- rules


def _pull(node: fx.Node) -> Pairs:
    found = pulled(node)
    if found is not None:
        yield found[0], node
    yield from _picked(node)


def within_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """x and index of a gather or scatter along features, which works within each row; None for other calls."""
    if node.target not in _WITHIN:
        return None
    x, dim, index = node.args[:3]
    if not is_tensor(x) or not is_tensor(index) or rank(x) == 0 or dim_of(dim, rank(x)) == 0:  # type: ignore[arg-type]
        return None
    return x, index  # type: ignore[return-value]


_WITHIN = frozenset({aten.gather.default, aten.scatter_add.default, aten.scatter.src, aten.scatter.value})
"""Calls that gather or scatter along a dim."""


def _picked(node: fx.Node) -> Pairs:
    if within_rows(node) is not None:
        for arg in (node.args[0], *node.args[2:]):
            yield arg, node


def pushed_rows(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The index and the source of a pushing call whose rows correspond; None if they do not, and for other calls."""
    found = pushed(node)
    source = _base_and_source(node)[1] if found is not None else None
    if found is None or not isinstance(source, fx.Node) or not is_tensor(source):
        return None
    # The values of index_put may have fewer dims and broadcast; the gradient of an embedding has the dims of its index.
    whole = rank(source) == rank(node) or node.target is aten.embedding_dense_backward.default
    return (found[0], source) if whole else None


def _base_and_source(node: fx.Node) -> tuple[Any, Any]:
    match node.target:
        case aten.embedding_dense_backward.default:
            return None, node.args[0]
        case aten.index_put.default | aten._unsafe_index_put.default:
            return node.args[0], node.args[2]
        case aten.index_fill.int_Scalar | aten.index_fill.int_Tensor:
            return node.args[0], None
        case _:
            return node.args[0], node.args[3]


def _push(node: fx.Node) -> Pairs:
    """The base corresponds to the result, and the source to the index if that is a vector."""
    yield _base_and_source(node)[0], node
    yield from _picked(node)
    rows = pushed_rows(node)
    if rows is not None:
        yield rows
    elif node.target is aten.index_put.default and len(node.args[1]) == 1:  # type: ignore[arg-type]
        mask = node.args[1][0]  # type: ignore[index]
        if is_tensor(mask) and val(mask).dtype is torch.bool:
            yield mask, node


def _written(node: fx.Node) -> Pairs:
    yield node.args[0], node
    yield from _picked(node)


def _keeps_lead(node: fx.Node) -> Pairs:
    """Views in row-major order keep rows if they keep the number of rows."""
    x = node.args[0]
    if is_tensor(x) and rank(x) > 0 and rank(node) > 0 and same(shape(x)[0], shape(node)[0]):  # type: ignore[arg-type]
        yield x, node


def _expand(node: fx.Node) -> Pairs:
    if rank(node.args[0]) == rank(node):  # type: ignore[arg-type]
        yield node.args[0], node


def _unless_first(name: str, default: Any = None) -> Rule:
    """A rule for a call that works on dims given by argument `name` (None means all): rows correspond unless dim 0 is
    one."""

    def rule(node: fx.Node) -> Pairs:
        x = node.args[0]
        assert isinstance(x, fx.Node)
        dims = argument(node, name, default)
        if rank(x) == 0 or dims is None or dims == []:
            return
        if all(dim_of(d, rank(x)) != 0 for d in (dims if isinstance(dims, list | tuple) else [dims])):
            yield x, node

    return rule


def _new_dim(node: fx.Node) -> Pairs:
    if dim_of(node.args[1], rank(node)) != 0:  # type: ignore[arg-type]
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


def transposed(arg: Any) -> fx.Node | None:
    """x if `arg` is the transpose of a matrix x, else None."""
    if isinstance(arg, fx.Node) and arg.target in _TRANSPOSES and permutation(arg) == (1, 0):
        x = arg.args[0]
        assert isinstance(x, fx.Node)
        return x
    return None


_TRANSPOSES = frozenset({aten.t.default, aten.transpose.int, aten.permute.default})


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


def _all_of(*positions: int) -> Rule:
    def rule(node: fx.Node) -> Pairs:
        for p in positions:
            yield node.args[p], node

    return rule


def _item(node: fx.Node) -> Pairs:
    """An item of a call with several results."""
    source, item = node.args
    if not isinstance(source, fx.Node):
        return
    if source.target in _SPLITS:
        if dim_of(argument(source, "dim", 0), rank(source.args[0])) != 0:  # type: ignore[arg-type]
            yield source.args[0], node
    elif source.target in (aten.max.dim, aten.min.dim):
        if dim_of(source.args[1], rank(source.args[0])) != 0:  # type: ignore[arg-type]
            yield source.args[0], node
    elif item in _ITEMS.get(source.target, ()):
        yield source.args[0], node


_SPLITS = frozenset({
    aten.split.Tensor, aten.split_with_sizes.default, aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default,
    aten.unbind.int, aten.chunk.default, aten.unsafe_chunk.default,
})  # fmt: skip
"""Calls with several results, each of which is a slice of the operand."""

_ITEMS: Mapping[Any, tuple[int, ...]] = {
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0,),
    aten.native_batch_norm.default: (0,),
    aten.native_batch_norm_backward.default: (0,),
    aten._native_batch_norm_legit.default: (0,),
    aten._native_batch_norm_legit.no_stats: (0,),
    aten._native_batch_norm_legit_functional.default: (0,),
    aten._native_batch_norm_legit_no_training.default: (0,),
    aten._batch_norm_with_update_functional.default: (0,),
    aten.batch_norm_backward.default: (0,),
    aten.native_group_norm.default: (0,),
    aten.native_group_norm_backward.default: (0,),
    aten.sort.default: (0, 1), aten.sort.stable: (0, 1),
    aten.var_mean.correction: (), aten.frexp.Tensor: (0, 1),
}  # fmt: skip
"""For calls with several results, the positions of results whose rows are the rows of the first operand."""


def _new_rows(node: fx.Node) -> Pairs:
    """select_backward, whose operand has one dim less than its result."""
    if dim_of(node.args[2], rank(node)) != 0:  # type: ignore[arg-type]
        yield node.args[0], node


# getitem is no ATen call; its rule depends on the call whose item it takes
RULES: dict[Any, Rule] = {
    operator.getitem: _item,
    **dict.fromkeys((aten.index_select.default, aten.gather.default, aten.index.Tensor, aten._unsafe_index.Tensor,
                     aten.embedding.default), _pull),
    **dict.fromkeys((aten.scatter_add.default, aten.scatter_reduce.two, aten.scatter.src, aten.index_add.default,
                     aten.index_reduce.default, aten.index_put.default, aten._unsafe_index_put.default,
                     aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
                     aten.embedding_dense_backward.default), _push),
    **dict.fromkeys((aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.view_copy.default,
                     aten._reshape_alias.default, aten.repeat.default, aten.constant_pad_nd.default), _keeps_lead),
    **dict.fromkeys((aten.expand.default, aten.expand_copy.default), _expand),
    **dict.fromkeys((aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default, aten.prod.dim_int,
                     aten.logsumexp.default, aten.linalg_vector_norm.default, aten.var.correction, aten.any.dim,
                     aten.all.dim, aten.argmax.default, aten.argmin.default, aten.squeeze.dim, aten.squeeze.dims),
                    _unless_first("dim")),
    **dict.fromkeys((aten.select.int, aten.cumsum.default, aten.cumprod.default), _unless_first("dim")),
    **dict.fromkeys((aten.flip.default,), _unless_first("dims")),
    **dict.fromkeys((aten.slice.Tensor, aten.slice_scatter.default, aten.select_scatter.default),
                    _unless_first("dim", 0)),
    aten.slice_backward.default: _unless_first("dim"),
    aten.select_backward.default: _new_rows,
    aten.squeeze.default: _keeps_lead,
    aten.unsqueeze.default: _new_dim,
    **dict.fromkeys((aten.permute.default, aten.permute_copy.default, aten.t.default, aten.transpose.int), _permute),
    **dict.fromkeys((aten.cat.default, aten.stack.default), _lists),
    **dict.fromkeys((aten.mm.default, aten.addmm.default), _mm),
    aten.scatter.value: _written,
    aten.mv.default: _all_of(0),
    **dict.fromkeys((aten.bmm.default, aten.matmul.default), _all_of(0, 1)),
    aten.einsum.default: _einsum,
    aten.native_dropout_backward.default: _all_of(0, 1),
    aten.rand_like.default: _all_of(0),
}  # fmt: skip
"""Call -> the pairs of operands and results whose rows correspond."""
