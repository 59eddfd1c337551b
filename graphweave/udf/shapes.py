"""Shapes of mailboxes, and functions of sizes or an index. Nodes and messages must stay whole dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.tensorlike.answers import Handler, NotExpressible, unpacked
from graphweave.tensorlike.views import known, product, reshaped, view_handlers
from graphweave.udf.extent import Extent
from graphweave.udf.mailbox import Mailbox, aligned, first


class Shape(tuple[Any, ...]):
    """The shape [rows, ..., messages, ...] of a mailbox: numbers, with an extent for the messages."""

    def numel(self) -> Any:
        raise NotExpressible("the number of elements of a mailbox")


def shape(box: Mailbox) -> Shape:
    sizes: list[Any] = list(box.messages.shape[1:])
    sizes.insert(box.axis - 1, Extent(box.received))
    return Shape((box.received.num_rows(), *sizes))


def _size(box: Mailbox, dim: int | None = None) -> object:
    return shape(box) if dim is None else shape(box)[dim]


def _ndim(box: Mailbox) -> int:
    return box.ndim


def _view(box: Mailbox, *sizes: object) -> Mailbox:
    """A view that keeps nodes and messages as its first two dims."""
    wanted = unpacked(sizes)
    if box.axis != 1 or len(wanted) < 2:
        raise NotExpressible("a view that does not keep nodes and messages as its first two dims")
    rows, messages, *features = wanted
    if any(isinstance(f, Extent) for f in (rows, *features)) or not _all_messages(messages):
        raise NotExpressible("a view with numbers of nodes or messages")
    if rows not in (-1, box.received.num_rows()):
        raise NotExpressible("a view with another number of nodes")
    if product(known(box, features)) != product(box.messages.shape[1:]):
        raise NotExpressible("a view that mixes messages and features")
    out: Mailbox = reshaped(box, features)
    return out


def _all_messages(size: object) -> bool:
    return size.value is None if isinstance(size, Extent) else size == -1


def _together(parts: Sequence[object]) -> tuple[Mailbox, list[Tensor]]:
    box = first(*parts)
    return box, [_spread(aligned(x, box), box) for x in parts]


def _spread(x: Tensor, box: Mailbox) -> Tensor:
    """`x` with one row for each message, expanded from [1, *features] or [*features]."""
    if x.dim() == box.messages.dim() and x.shape[0] == box.messages.shape[0]:
        return x
    return x.expand(box.messages.shape[0], *x.shape[-(box.messages.dim() - 1) :])


def _getitem(box: Mailbox, index: object) -> Mailbox:
    """m[:, :, i], m[..., a:b], m[:, :, None]: nodes and messages stay whole, features are indexed as in a tensor."""
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


def _is_places(item: object) -> bool:
    """Whether `item` gives positions along a feature dim: a list, or a tensor of one dim."""
    if isinstance(item, list):
        return all(isinstance(i, int) and not isinstance(i, bool) for i in item)
    return isinstance(item, Tensor) and item.dim() == 1 and item.dtype in (torch.int32, torch.int64)


def _expand_as(x: object, other: object) -> Mailbox:
    box = first(x, other)
    if not isinstance(other, Mailbox):
        raise NotExpressible("a mailbox expanded to what is none")
    return box.like(_spread(aligned(x, other), other).expand_as(other.messages))


def _new(name: str) -> Handler:
    def handler(box: Mailbox, *args: object, **kwargs: object) -> object:
        sizes = args[0] if args and isinstance(args[0], (tuple, list)) else args
        if any(isinstance(size, Extent) for size in sizes):
            raise NotExpressible(f"{name} of a size of a mailbox")
        return getattr(box.messages, name)(*args, **kwargs)

    return handler


SHAPES: dict[str, Handler] = {
    **view_handlers(_together), "view": _view, "reshape": _view, "size": _size, "dim": _ndim, "ndimension": _ndim,
    "getitem": _getitem, "expand_as": _expand_as,
    **{name: _new(name) for name in ("new_zeros", "new_ones", "new_full", "new_empty", "new_tensor")},
}  # fmt: skip
"""The handlers of these functions, by name."""
