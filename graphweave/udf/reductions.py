"""Reductions and normalisations of mailboxes. Along feature dims they are PyTorch's own.

Along the mailbox dim, a reduction is a push; softmax and similar functions are pushes and pulls. Nodes without messages
get 0 from every reduction, as in DGL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from graphweave.tensorlike.answers import Handler, NotExpressible
from graphweave.tensorlike.reductions import OVER_FEATURES, over_features, vector_norm, without
from graphweave.tensorlike.views import data_dim
from graphweave.udf.mailbox import Mailbox, grown


class Extremes(NamedTuple):
    """The result of torch.max(x, dim)."""

    values: Any
    indices: Any


def push(x: Tensor, box: Mailbox, fold: str) -> Tensor:
    """[messages, *features] -> [rows, *features]. `fold` is sum, prod, amax or amin. Rows without messages get 0."""
    out = x.new_zeros((box.received.num_rows(), *x.shape[1:]))
    if fold == "sum":
        return out.index_add(0, box.received.dst, x)
    dst = box.received.dst.long()  # the gradient of scatter_reduce is wrong for other integers (PyTorch 2.13)
    return out.scatter_reduce(0, grown(dst, x.dim()).expand_as(x), x, fold, include_self=False)


def pull(x: Tensor, box: Mailbox) -> Tensor:
    return box.received.pull(x)


# ---------------------------------------------------------------- dims


def _dims(box: Mailbox, dim: object, what: str) -> tuple[bool, list[int]]:
    """Whether `dim` includes the mailbox dim, and which feature dims it includes."""
    if dim is None:
        raise NotExpressible(f"{what} over all dims of a mailbox, nodes included")
    dims = box.all_wrapped(dim)
    if 0 in dims:
        raise NotExpressible(f"{what} over the nodes (dim 0) of a mailbox")
    return box.axis in dims, [d for d in dims if d != box.axis]


def _kept(out: Tensor, box: Mailbox, keepdim: bool) -> Tensor:
    return out.unsqueeze(box.axis) if keepdim else out


def _empty_is_zero(out: Tensor, box: Mailbox) -> Tensor:
    """`out`, recorded as a tensor that is 0 in rows without messages."""
    box.received.zero_if_empty.append(out)
    return out


def _reduction(along: Callable[[Mailbox], Tensor], name: str) -> Callable[..., Any]:
    """A handler that reduces the mailbox dim by `along` and feature dims by PyTorch's reduction `name`."""

    def handler(
        x: Mailbox, dim: object = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, axis: object = None
    ) -> Any:
        inside, dims = _dims(x, dim if axis is None else axis, name)
        if dtype is not None:
            x = x.like(x.messages.to(dtype))
        if dims:
            x = over_features(x, dims, keepdim, OVER_FEATURES[name])
        return _kept(along(x), x, keepdim) if inside else x

    return handler


# ---------------------------------------------------------------- reductions


def _counts(box: Mailbox) -> Tensor:
    """The number of messages of each row, at least 1, with the dims of a reduced mailbox."""
    data = box.messages
    count = box.received.count(data.dtype if data.is_floating_point() else torch.get_default_dtype()).clamp(min=1)
    return grown(count, data.dim())


def _sum(box: Mailbox) -> Tensor:
    x = box.messages.long() if box.messages.dtype is torch.bool else box.messages
    return _empty_is_zero(push(x, box, "sum"), box)


def _mean(box: Mailbox) -> Tensor:
    return _empty_is_zero(_sum(box) / _counts(box), box)


def _reduce_by(fold: str) -> Callable[[Mailbox], Tensor]:
    return lambda box: _empty_is_zero(push(box.messages, box, fold), box)


_prod, _amax, _amin = map(_reduce_by, ("prod", "amax", "amin"))


def _any(box: Mailbox) -> Tensor:
    return push(box.messages.bool().long(), box, "sum") > 0


def _all(box: Mailbox) -> Tensor:
    return push((~box.messages.bool()).long(), box, "sum") == 0


def _logsumexp(box: Mailbox) -> Tensor:
    top = push(box.messages.detach(), box, "amax")
    top = torch.where(top.isinf(), torch.zeros_like(top), top)  # nothing can be scaled by an infinite number
    return push((box.messages - pull(top, box)).exp(), box, "sum").log() + top


def _root(x: Tensor) -> Tensor:
    """The square root, with gradient 0 at 0, as in torch.std and torch.norm."""
    zero = x == 0
    return torch.where(zero, torch.zeros_like(x), torch.where(zero, torch.ones_like(x), x).sqrt())


def _variance(box: Mailbox, correction: float) -> Tensor:
    gap = box.messages - pull(_mean(box), box)
    count = grown(box.received.count(box.messages.dtype), box.messages.dim())
    return push(gap * gap, box, "sum") / (count - correction).clamp(min=0)


def _spread(name: str) -> Callable[..., Any]:
    def handler(
        x: Mailbox, dim: object = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None
    ) -> Tensor:
        inside, dims = _dims(x, dim, name)
        n = float(unbiased) if correction is None else correction
        if not inside:
            return over_features(x, dims, keepdim, OVER_FEATURES[name], correction=n)
        if dims:
            raise NotExpressible("a variance over messages and features together")
        out = _variance(x, n)
        return _kept(_root(out) if name == "std" else out, x, keepdim)

    return handler


def _norm(x: Mailbox, p: Any = 2, dim: object = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Any:
    p = 2 if p in (None, "fro") else p
    inside, dims = _dims(x, dim, "norm")
    if not inside:
        return over_features(x, dims, keepdim, vector_norm, ord=p, dtype=dtype)
    size = x.messages.abs()
    if p == float("inf"):
        out = _AMAX(x.like(size), dim, keepdim)
    elif p == 1:
        out = _SUM(x.like(size), dim, keepdim)
    elif p == 2:
        out = _root(_SUM(x.like(size * size), dim, keepdim))
    else:
        out = _SUM(x.like(size**p), dim, keepdim) ** (1 / p)
    return out


def _vector_norm(
    x: Mailbox, ord: object = 2, dim: object = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    return _norm(x, ord, dim, keepdim, dtype)


# ---------------------------------------------------------------- extremes with positions


def _place(box: Mailbox) -> Tensor:
    """The position of each message in its row's mailbox, in the order of edges, [messages]."""
    dst = box.received.dst
    by_row = torch.argsort(dst, stable=True)
    start = box.received.count(torch.float64).long().cumsum(0) - box.received.count(torch.float64).long()
    place = torch.arange(dst.shape[0], device=dst.device) - start.index_select(0, dst.index_select(0, by_row))
    return torch.zeros_like(dst, dtype=torch.int64).index_copy(0, by_row, place)


def _where_extreme(box: Mailbox, extreme: Tensor) -> Tensor:
    """The position in its mailbox of the first message that equals the extreme of the row."""
    place = grown(_place(box), box.messages.dim())
    far = torch.full_like(place, box.messages.shape[0])
    return push(torch.where(box.messages == pull(extreme, box), place, far), box, "amin")


def _extreme(along: Callable[[Mailbox], Tensor], dense: Callable[..., Any], pair: Callable[..., Any]) -> Any:
    def handler(x: Mailbox, dim: int | None = None, keepdim: bool = False) -> object:
        if isinstance(dim, (Tensor, Mailbox)):
            return pair(x, dim)
        inside, dims = _dims(x, dim, "max or min")
        if not inside:
            values, indices = dense(x.messages, data_dim(x, dims[0]), keepdim=keepdim)
            return Extremes(without(x, dims, keepdim, values), without(x, dims, keepdim, indices))
        values = along(x)
        return Extremes(_kept(values, x, keepdim), _kept(_where_extreme(x, values.detach()), x, keepdim))

    return handler


def _argument(along: Callable[[Mailbox], Tensor], name: str) -> Callable[..., object]:
    def handler(x: Mailbox, dim: object = None, keepdim: bool = False) -> Tensor:
        inside, dims = _dims(x, dim, name)
        if not inside:
            return over_features(x, dims, keepdim, OVER_FEATURES[name])
        return _kept(_where_extreme(x, along(x.like(x.messages.detach()))), x, keepdim)

    return handler


# ---------------------------------------------------------------- softmax


def _softmax(x: Mailbox, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Mailbox:
    inside, dims = _dims(x, dim, "softmax")
    if not inside:
        return x.like(torch.softmax(x.messages, data_dim(x, dims[0]), dtype=dtype))
    data = x.messages if dtype is None else x.messages.to(dtype)
    top = push(data.detach(), x, "amax")
    e = (data - pull(top, x)).exp()
    # exp(0) = 1 is among the terms, so adding 1e-16 changes no bit of the sum. It keeps the sum of a row without
    # messages away from 0, so that the division can leave the loop over edges without a guard for such rows.
    return x.like(e / pull(push(e, x, "sum") + 1e-16, x))


def _softmin(x: Mailbox, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Mailbox:
    return _softmax(x.like(-x.messages), dim, _stacklevel, dtype)


def _log_softmax(x: Mailbox, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Mailbox:
    inside, dims = _dims(x, dim, "log_softmax")
    if not inside:
        return x.like(torch.log_softmax(x.messages, data_dim(x, dims[0]), dtype=dtype))
    data = x.messages if dtype is None else x.messages.to(dtype)
    gap = data - pull(push(data.detach(), x, "amax"), x)
    return x.like(gap - pull(push(gap.exp(), x, "sum").log(), x))


def _normalize(x: Mailbox, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Mailbox:
    size = _norm(x, p, dim, keepdim=True)
    return x / size.clamp(min=eps)


_SUM = _reduction(_sum, "sum")
_AMAX = _reduction(_amax, "amax")


def _nansum(x: Mailbox, dim: object = None, keepdim: bool = False, *, dtype: object = None) -> Tensor:
    return _SUM(x.like(x.messages.nan_to_num(0.0, float("inf"), float("-inf"))), dim, keepdim, dtype=dtype)


REDUCTIONS: dict[str, Handler] = {
    "sum": _SUM,
    "nansum": _nansum,
    "mean": _reduction(_mean, "mean"),
    "prod": _reduction(_prod, "prod"),
    "amax": _AMAX,
    "amin": _reduction(_amin, "amin"),
    "any": _reduction(_any, "any"),
    "all": _reduction(_all, "all"),
    "logsumexp": _reduction(_logsumexp, "logsumexp"),
    "std": _spread("std"),
    "var": _spread("var"),
    "norm": _norm,
    "vector_norm": _vector_norm,
    "max": _extreme(_amax, torch.max, torch.maximum),
    "min": _extreme(_amin, torch.min, torch.minimum),
    "argmax": _argument(_amax, "argmax"),
    "argmin": _argument(_amin, "argmin"),
    "softmax": _softmax,
    "softmin": _softmin,
    "log_softmax": _log_softmax,
    "normalize": _normalize,
}
"""The handlers of reductions and normalisations, by name."""
