"""Views of mailboxes: what only renames, cuts or joins feature dims, and where the mailbox dim goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.udf.extent import Extent
from graphweave.udf.mailbox import Mailbox, NotExpressible, aligned, constant, first, register


class Shape(tuple[Any, ...]):
    """[rows, ..., messages, ...]: numbers, and an extent for the messages."""

    def numel(self) -> Any:
        raise NotExpressible("the number of elements of a mailbox")


def shape(box: Mailbox) -> Shape:
    sizes: list[Any] = list(box.messages.shape[1:])
    sizes.insert(box.axis - 1, Extent(box.received))
    return Shape((box.received.num_rows(), *sizes))


def _size(box: Mailbox, dim: int | None = None) -> Any:
    return shape(box) if dim is None else shape(box)[dim]


def _ndim(box: Mailbox) -> int:
    return box.ndim


def _view(box: Mailbox, *sizes: Any) -> Mailbox:
    """A view that keeps nodes and messages as its first two dims."""
    wanted: Sequence[Any] = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    if box.axis != 1 or len(wanted) < 2:
        raise NotExpressible("a view that does not keep nodes and messages as its first two dims")
    rows, messages, *features = wanted
    if any(isinstance(f, Extent) for f in (rows, *features)) or not _all_messages(messages):
        raise NotExpressible("a view with numbers of nodes or messages")
    if rows not in (-1, box.received.num_rows()):
        raise NotExpressible("a view with another number of nodes")
    features = _known(box, [constant(f) for f in features])
    if _product(features) != _product(box.messages.shape[1:]):
        raise NotExpressible("a view that mixes messages and features")
    return box.like(box.messages.reshape(box.messages.shape[0], *features))


def _all_messages(size: Any) -> bool:
    return size.value is None if isinstance(size, Extent) else size == -1


def _known(box: Mailbox, features: list[int]) -> list[int]:
    """`features` without a -1, which cannot be inferred where there are no messages."""
    if -1 not in features:
        return features
    rest = _product([f for f in features if f != -1])
    return [_product(box.messages.shape[1:]) // max(rest, 1) if f == -1 else f for f in features]


def _product(sizes: Sequence[int]) -> int:
    out = 1
    for size in sizes:
        out *= size
    return out


def _flatten(box: Mailbox, start_dim: int = 0, end_dim: int = -1) -> Mailbox:
    start, end = _feature(box, start_dim), _feature(box, end_dim)
    if start < box.axis <= end:
        raise NotExpressible("flatten over messages and features together")
    kept = box.axis if box.axis < start else box.axis - (end - start)
    return box.like(box.messages.flatten(box.dim_of_data(start), box.dim_of_data(end)), kept)


def _feature(box: Mailbox, dim: int) -> int:
    """`dim`, not negative; dim 0 is refused."""
    dim = constant(dim)
    d = dim + box.ndim if dim < 0 else dim
    if d == 0:
        raise NotExpressible("an operation along the nodes (dim 0) of a mailbox")
    return d


def _feature_only(box: Mailbox, dim: int) -> int:
    """`dim`, not negative; nodes and messages are refused."""
    d = _feature(box, dim)
    if d == box.axis:
        raise NotExpressible("an index into the messages of a mailbox")
    return d


def _unsqueeze(box: Mailbox, dim: int) -> Mailbox:
    dim = constant(dim)
    d = dim + box.ndim + 1 if dim < 0 else dim
    if d == 0:
        raise NotExpressible("a dim in front of the nodes of a mailbox")
    if d <= box.axis:
        return box.like(box.messages.unsqueeze(d), box.axis + 1)
    return box.like(box.messages.unsqueeze(d - 1))


def _squeeze(box: Mailbox, dim: int | None = None) -> Mailbox:
    if dim is None:
        raise NotExpressible("squeeze of a mailbox without a dim")
    d = _feature(box, dim)
    if d == box.axis:
        raise NotExpressible("squeeze of the messages of a mailbox")
    out = box.messages.squeeze(box.dim_of_data(d))
    return box.like(out, box.axis - (d < box.axis and out.dim() < box.messages.dim()))


def _permute(box: Mailbox, *dims: Any) -> Mailbox:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [d + box.ndim if d < 0 else d for d in map(constant, order)]
    if order[0] != 0:
        raise NotExpressible("a mailbox whose nodes are not its first dim")
    features = [box.dim_of_data(d) for d in order if d != box.axis]
    return box.like(box.messages.permute(features), list(order).index(box.axis))


def _transpose(box: Mailbox, dim0: int, dim1: int) -> Mailbox:
    order = list(range(box.ndim))
    a, b = _feature(box, dim0), _feature(box, dim1)
    order[a], order[b] = order[b], order[a]
    return _permute(box, order)


def _joined(function: Callable[..., Tensor], new_dim: bool) -> Callable[..., Any]:
    def handler(tensors: Sequence[Any], dim: int = 0) -> Mailbox:
        box = first(*tensors)
        ndim, dim = box.ndim + new_dim, constant(dim)
        d = dim + ndim if dim < 0 else dim
        if d == 0 or (d == box.axis and not new_dim):
            raise NotExpressible("joining nodes or messages of mailboxes")
        before = d <= box.axis and new_dim
        parts = [_spread(aligned(t, box), box) for t in tensors]
        out = function(parts, d if before or d < box.axis else d - 1)
        return box.like(out, box.axis + before)

    return handler


def _spread(x: Tensor, box: Mailbox) -> Tensor:
    """One row for each message: [1, *features] or [*features] widened."""
    if x.dim() == box.messages.dim() and x.shape[0] == box.messages.shape[0]:
        return x
    return x.expand(box.messages.shape[0], *x.shape[-(box.messages.dim() - 1) :])


def _parts(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    def handler(box: Mailbox, size: Any, dim: int = 0) -> list[Mailbox]:
        # a list: traced, torch.cat of a tuple of mailboxes does not come to us
        parts = function(box.messages, size, box.dim_of_data(_feature_only(box, dim)))
        return [box.like(x) for x in parts]

    return handler


def _getitem(box: Mailbox, index: Any) -> Mailbox:
    """m[:, :, i], m[..., a:b], m[:, :, None]: nodes and messages whole, features as tensors are indexed."""
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis in [i for i in items if not isinstance(i, Tensor)]:
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        items[at : at + 1] = [slice(None)] * (box.ndim - used)
    items += [slice(None)] * (box.ndim - sum(i is not None for i in items))
    if sum(isinstance(i, (list, Tensor)) for i in items) > 1:
        raise NotExpressible("a mailbox indexed by several tensors")
    inner: list[Any] = []
    dim, place, out_dim = 0, box.axis, 0
    for item in items:
        if item is None:
            if dim == 0:
                raise NotExpressible("a dim in front of the nodes of a mailbox")
            inner.append(None)
            out_dim += 1
            continue
        if dim in (0, box.axis):
            if not isinstance(item, slice) or item != slice(None):
                raise NotExpressible("an index into the nodes or messages of a mailbox")
            if dim == 0:
                inner.append(slice(None))
            else:
                place = out_dim
        elif isinstance(item, (int, slice)) or _is_places(item):
            inner.append(item)
        else:
            raise NotExpressible("a mailbox indexed by a mask or a tensor of several dims")
        out_dim += not isinstance(item, int)
        dim += 1
    return box.like(box.messages[tuple(inner)], place)


def _is_places(item: Any) -> bool:
    """Numbers of features: a list, or a tensor of one dim."""
    if isinstance(item, list):
        return all(isinstance(i, int) and not isinstance(i, bool) for i in item)
    return isinstance(item, Tensor) and item.dim() == 1 and item.dtype in (torch.int32, torch.int64)


def _expand_as(x: Any, other: Any) -> Any:
    box = first(x, other)
    to = other.messages if isinstance(other, Mailbox) else aligned(other, box)
    if not isinstance(other, Mailbox):
        raise NotExpressible("a mailbox expanded to what is none")
    return box.like(_spread(aligned(x, other), other).expand_as(to))


def _index_select(box: Mailbox, dim: int, index: Tensor) -> Mailbox:
    return box.like(box.messages.index_select(box.dim_of_data(_feature_only(box, dim)), index))


def _select(box: Mailbox, dim: int, index: int) -> Mailbox:
    d = _feature_only(box, dim)
    return box.like(box.messages.select(box.dim_of_data(d), index), box.axis - (d < box.axis))


def _narrow(box: Mailbox, dim: int, start: int, length: int) -> Mailbox:
    return box.like(box.messages.narrow(box.dim_of_data(_feature_only(box, dim)), start, length))


def _unbind(box: Mailbox, dim: int = 0) -> list[Mailbox]:
    d = _feature_only(box, dim)
    return [box.like(x, box.axis - (d < box.axis)) for x in box.messages.unbind(box.dim_of_data(d))]


def _flip(box: Mailbox, *dims: Any) -> Mailbox:
    given = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    return box.like(box.messages.flip([box.dim_of_data(_feature_only(box, d)) for d in given]))


def _movedim(box: Mailbox, source: int, destination: int) -> Mailbox:
    order = list(range(box.ndim))
    order.insert(_feature(box, destination), order.pop(_feature(box, source)))
    return _permute(box, order)


def _matrix_transpose(box: Mailbox) -> Mailbox:
    return _transpose(box, -2, -1)


def _new(name: str) -> Callable[..., Any]:
    def handler(box: Mailbox, *args: Any, **kwargs: Any) -> Any:
        sizes = args[0] if args and isinstance(args[0], (tuple, list)) else args
        if any(isinstance(size, Extent) for size in sizes):
            raise NotExpressible(f"{name} of a size of a mailbox")
        return getattr(box.messages, name)(*args, **kwargs)

    return handler


def register_shapes() -> None:
    for name in ("view", "reshape"):
        register(name, _view)
    register("size", _size)
    register("dim", _ndim)
    register("ndimension", _ndim)
    register("flatten", _flatten)
    register("unsqueeze", _unsqueeze)
    register("squeeze", _squeeze)
    register("permute", _permute)
    for name in ("transpose", "swapaxes", "swapdims"):
        register(name, _transpose)
    for name in ("cat", "concat", "concatenate"):
        register(name, _joined(torch.cat, False))
    register("stack", _joined(torch.stack, True))
    register("chunk", _parts(torch.chunk))
    register("split", _parts(torch.split))
    register("getitem", _getitem)
    register("expand_as", _expand_as)
    register("index_select", _index_select)
    register("select", _select)
    register("narrow", _narrow)
    register("unbind", _unbind)
    register("flip", _flip)
    register("movedim", _movedim)
    register("moveaxis", _movedim)
    for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor"):
        register(name, _new(name))
    Mailbox.shape = property(shape)  # type: ignore[attr-defined]
    Mailbox.mT = property(_matrix_transpose)  # type: ignore[attr-defined]
