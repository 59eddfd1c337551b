"""Views of mailboxes: what only renames, cuts or joins feature dims, and where the mailbox dim goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.udf.mailbox import NAMES, Mailbox, NotExpressible, aligned, first, register


class Extent:
    """A size of a mailbox that only its rows know: of "nodes" (dim 0) or of "messages" (the mailbox dim).

    It may be handed back in a shape (`m.view(*m.shape[:2], heads, -1)`) and divide what was summed; as a number it
    differs from row to row.
    """

    def __init__(self, box: Mailbox, messages: bool) -> None:
        self.box, self.messages = box, messages

    def __index__(self) -> int:
        raise NotExpressible(f"the number of {'messages' if self.messages else 'nodes'} of a mailbox as a number")

    __int__ = __float__ = __index__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        x, n = args[0], args[-1]
        if NAMES.get(func.__name__) not in _DIVISIONS or kwargs or not isinstance(n, Extent) or not n.messages:
            raise NotExpressible(f"{func.__name__} of a size of a mailbox")
        return n.divide(x)

    def divide(self, x: Any) -> Any:
        if not self.messages or not isinstance(x, (Mailbox, Tensor)):
            raise NotExpressible("a number divided by a size of a mailbox")
        if isinstance(x, Mailbox):
            return x.like(x.data / _grown(x.received.pull(self.box.received.count(x.dtype)), x.data.dim()))
        return torch.div(x, _grown(self.box.received.count(x.dtype), x.dim()))

    __rtruediv__ = divide


_DIVISIONS = ("div", "divide", "true_divide", "truediv")


def _grown(x: Tensor, dims: int) -> Tensor:
    for _ in range(dims - x.dim()):
        x = x.unsqueeze(-1)
    return x


class Shape(tuple[Any, ...]):
    """[rows, ..., messages, ...]: extents and numbers."""

    def numel(self) -> Any:
        return self[0].__index__()


def shape(box: Mailbox) -> Shape:
    sizes: list[Any] = list(box.data.shape[1:])
    sizes.insert(box.axis - 1, Extent(box, True))
    return Shape((Extent(box, False), *sizes))


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
    if not _stands_for(rows, False) or not _stands_for(messages, True) or any(isinstance(f, Extent) for f in features):
        raise NotExpressible("a view with numbers of nodes or messages")
    return box.like(box.data.reshape(box.data.shape[0], *_known(box, features)))


def _stands_for(size: Any, messages: bool) -> bool:
    return size.messages == messages if isinstance(size, Extent) else size == -1


def _known(box: Mailbox, features: Sequence[int]) -> Sequence[int]:
    """`features` without a -1, which cannot be inferred where there are no messages."""
    if -1 not in features:
        return features
    rest = math.prod(f for f in features if f != -1)
    return [math.prod(box.data.shape[1:]) // max(rest, 1) if f == -1 else f for f in features]


def _flatten(box: Mailbox, start_dim: int = 0, end_dim: int = -1) -> Mailbox:
    start, end = _feature(box, start_dim), _feature(box, end_dim)
    if start < box.axis <= end:
        raise NotExpressible("flatten over messages and features together")
    kept = box.axis if box.axis < start else box.axis - (end - start)
    return box.like(box.data.flatten(box.dim_of_data(start), box.dim_of_data(end)), kept)


def _feature(box: Mailbox, dim: int) -> int:
    """`dim`, not negative; dim 0 is refused."""
    d = dim + box.ndim if dim < 0 else dim
    if d == 0:
        raise NotExpressible("an operation along the nodes (dim 0) of a mailbox")
    return d


def _unsqueeze(box: Mailbox, dim: int) -> Mailbox:
    d = dim + box.ndim + 1 if dim < 0 else dim
    if d == 0:
        raise NotExpressible("a dim in front of the nodes of a mailbox")
    if d <= box.axis:
        return box.like(box.data.unsqueeze(d), box.axis + 1)
    return box.like(box.data.unsqueeze(d - 1))


def _squeeze(box: Mailbox, dim: int | None = None) -> Mailbox:
    if dim is None:
        raise NotExpressible("squeeze of a mailbox without a dim")
    d = _feature(box, dim)
    if d == box.axis:
        raise NotExpressible("squeeze of the messages of a mailbox")
    out = box.data.squeeze(box.dim_of_data(d))
    return box.like(out, box.axis - (d < box.axis and out.dim() < box.data.dim()))


def _permute(box: Mailbox, *dims: Any) -> Mailbox:
    order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
    order = [d + box.ndim if d < 0 else d for d in order]
    if order[0] != 0:
        raise NotExpressible("a mailbox whose nodes are not its first dim")
    features = [box.dim_of_data(d) for d in order if d != box.axis]
    return box.like(box.data.permute(features), list(order).index(box.axis))


def _transpose(box: Mailbox, dim0: int, dim1: int) -> Mailbox:
    order = list(range(box.ndim))
    a, b = _feature(box, dim0), _feature(box, dim1)
    order[a], order[b] = order[b], order[a]
    return _permute(box, order)


def _joined(function: Callable[..., Tensor], new_dim: bool) -> Callable[..., Any]:
    def handler(tensors: Sequence[Any], dim: int = 0) -> Mailbox:
        box = first(*tensors)
        ndim = box.ndim + new_dim
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
    if x.dim() == box.data.dim() and x.shape[0] == box.data.shape[0]:
        return x
    return x.expand(box.data.shape[0], *x.shape[-(box.data.dim() - 1) :])


def _parts(function: Callable[..., Sequence[Tensor]]) -> Callable[..., Any]:
    def handler(box: Mailbox, size: Any, dim: int = 0) -> tuple[Mailbox, ...]:
        d = _feature(box, dim)
        if d == box.axis:
            raise NotExpressible("parts of the messages of a mailbox")
        return tuple(box.like(x) for x in function(box.data, size, box.dim_of_data(d)))

    return handler


def _getitem(box: Mailbox, index: Any) -> Mailbox:
    """m[:, :, i], m[..., a:b], m[:, :, None]: nodes and messages whole, features as tensors are indexed."""
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(i is not None and i is not Ellipsis for i in items)
    if Ellipsis in [i for i in items if not isinstance(i, Tensor)]:
        at = next(k for k, i in enumerate(items) if i is Ellipsis)
        items[at : at + 1] = [slice(None)] * (box.ndim - used)
    items += [slice(None)] * (box.ndim - sum(i is not None for i in items))
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
            if item != slice(None):
                raise NotExpressible("an index into the nodes or messages of a mailbox")
            if dim == 0:
                inner.append(slice(None))
            else:
                place = out_dim
        elif isinstance(item, (int, slice)):
            inner.append(item)
        else:
            raise NotExpressible("a mailbox indexed by a tensor")
        out_dim += not isinstance(item, int)
        dim += 1
    return box.like(box.data[tuple(inner)], place)


def _expand_as(x: Any, other: Any) -> Any:
    box = first(x, other)
    to = other.data if isinstance(other, Mailbox) else aligned(other, box)
    if not isinstance(other, Mailbox):
        raise NotExpressible("a mailbox expanded to what is none")
    return box.like(_spread(aligned(x, other), other).expand_as(to))


def _index_select(box: Mailbox, dim: int, index: Tensor) -> Mailbox:
    d = _feature(box, dim)
    if d == box.axis:
        raise NotExpressible("an index into the messages of a mailbox")
    return box.like(box.data.index_select(box.dim_of_data(d), index))


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
    Mailbox.shape = property(shape)  # type: ignore[attr-defined]
