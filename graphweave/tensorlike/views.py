"""Functions that only rearrange, select or join features. Each also says where the outer dims go.

A `dim` is a dim that the user sees; `data_dim` returns the dim of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.tensorlike.answers import Handler, NotExpressible, TensorLike, constant, unpacked


def data_dim(x: TensorLike, dim: int) -> int:
    """The dim of the data that is the user's feature dim `dim`: rows come first, and outer dims are left out."""
    return dim + 1 - sum([d < dim for d in x.outer])


def behind_rows(x: TensorLike, dim: object, more: int = 0) -> int:
    """`dim` as a non-negative number; NotExpressible if it is an outer dim of rows."""
    d: int = x.wrapped(dim, more)
    if d == 0 and x.outer:
        what = "a dim in front of the nodes of" if more else "an operation along the nodes (dim 0) of"
        raise NotExpressible(f"{what} {x.called}")
    return d


def feature(x: TensorLike, dim: object) -> int:
    """`dim` as a non-negative number; NotExpressible if it is an outer dim."""
    d = behind_rows(x, dim)
    if d in x.outer:
        raise NotExpressible(f"an index into the messages of {x.called}")
    return d


def feature_dim(x: TensorLike, dim: object) -> int:
    """The dim of the data that is the user's feature dim `dim`; NotExpressible if `dim` is an outer dim."""
    return data_dim(x, feature(x, dim))


def _without(x: TensorLike, data: Tensor, dim: int) -> TensorLike:
    return x.moved(data, tuple([d - (d > dim) for d in x.outer]))


def unsqueeze(x: TensorLike, dim: int) -> Any:
    at = behind_rows(x, dim, 1)
    return x.moved(x.tensor().unsqueeze(data_dim(x, at)), tuple([d + (d >= at) for d in x.outer]))


def squeeze(x: TensorLike, dim: int | None = None) -> Any:
    if dim is None and x.outer:
        raise NotExpressible(f"squeeze of {x.called} without a dim")
    at, data = behind_rows(x, dim), x.tensor()
    if at in x.outer:
        raise NotExpressible(f"squeeze of the messages of {x.called}")
    out = data.squeeze(data_dim(x, at))
    return _without(x, out, at) if out.dim() < data.dim() else x.like(out)


def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> TensorLike:
    start, end = behind_rows(x, start_dim), behind_rows(x, end_dim)
    if start == end:
        return x.like(x.tensor())
    if any([start <= d <= end for d in x.outer]):
        raise NotExpressible("flatten over messages and features together")
    out = x.tensor().flatten(data_dim(x, start), data_dim(x, end))
    return x.moved(out, tuple([d - (end - start) * (d > end) for d in x.outer]))


def permute(x: TensorLike, *dims: object) -> Any:
    order = [x.wrapped(d) for d in unpacked(dims)]
    if x.outer and order[0] != 0:
        raise NotExpressible(f"{x.called} whose nodes are not its first dim")
    data = x.tensor().permute(0, *[data_dim(x, d) for d in order if d not in x.outer])
    return x.moved(data, tuple([order.index(d) for d in x.outer]))


def transpose(x: TensorLike, dim0: int, dim1: int) -> TensorLike:
    order = list(range(x.ndim))
    a, b = behind_rows(x, dim0), behind_rows(x, dim1)
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def movedim(x: Any, source: int, destination: int) -> Any:
    order = list(range(x.ndim))
    order.insert(behind_rows(x, destination), order.pop(behind_rows(x, source)))
    return permute(x, order)


def matrix_transpose(x: TensorLike) -> TensorLike:
    return transpose(x, -2, -1)


def known(x: TensorLike, sizes: Sequence[object]) -> list[Any]:
    """`sizes` of features with -1 replaced by a number, which PyTorch cannot infer if there are no rows."""
    wanted = [constant(n) for n in sizes]
    if -1 in wanted:
        rest = product([n for n in wanted if n != -1])
        wanted[wanted.index(-1)] = product(x.tensor().shape[1:]) // max(rest, 1)
    return wanted


def reshaped(x: Any, sizes: Sequence[Any]) -> Any:
    """The features in another shape."""
    data = x.tensor()
    return x.like(data.reshape(data.shape[0], *known(x, sizes)))


def product(sizes: Sequence[int]) -> int:
    out = 1
    for size in sizes:
        out *= size
    return out


def index_select(x: Any, dim: int, index: Tensor) -> Any:
    return x.like(x.tensor().index_select(feature_dim(x, dim), index))


def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    return x.like(x.tensor().narrow(feature_dim(x, dim), start, length))


def select(x: Any, dim: int, index: int) -> Any:
    d = feature(x, dim)
    return _without(x, x.tensor().select(data_dim(x, d), index), d)


def unbind(x: Any, dim: int = 0) -> list[Any]:
    d = feature(x, dim)
    return [_without(x, part, d) for part in x.tensor().unbind(data_dim(x, d))]


def flip(x: Any, *dims: object) -> Any:
    return x.like(x.tensor().flip([feature_dim(x, d) for d in unpacked(dims)]))


def _parts(function: Callable[..., Sequence[Tensor]]) -> Handler:
    def handler(x: Any, size: object, dim: int = 0) -> list[object]:
        # a list, because in a trace torch.cat of a tuple of these objects does not reach their handlers
        return [x.like(part) for part in function(x.tensor(), size, feature_dim(x, dim))]

    return handler


Together = Callable[[Sequence[Any]], tuple[TensorLike, list[Tensor]]]
"""Operands to be joined -> one of them, and the data of all, each with the same number of rows."""


def joined(function: Callable[..., Tensor], together: Together, more: int = 0) -> Handler:
    """A handler for torch.cat, or for torch.stack, which adds `more` dims."""

    def handler(parts: Sequence[object], dim: int = 0) -> TensorLike:
        x, data = together(parts)
        d = x.wrapped(dim, more)
        outer: Any = x.outer
        if outer and (d == 0 or (d in outer and not more)):
            raise NotExpressible("joining nodes or messages of mailboxes")
        return x.moved(function(data, data_dim(x, d)), tuple([o + more * (o >= d) for o in outer]))

    return handler


def view_handlers(together: Together) -> dict[str, Handler]:
    """The handlers of all these functions by name. Each class has its own for `view`, `expand` and `x[...]`."""
    cat = joined(torch.cat, together)
    return {
        "flatten": flatten, "unsqueeze": unsqueeze, "squeeze": squeeze, "permute": permute, "transpose": transpose,
        "swapaxes": transpose, "swapdims": transpose, "movedim": movedim, "moveaxis": movedim, "cat": cat,
        "concat": cat, "concatenate": cat, "stack": joined(torch.stack, together, 1), "chunk": _parts(torch.chunk),
        "split": _parts(torch.split), "index_select": index_select, "select": select, "narrow": narrow,
        "unbind": unbind, "flip": flip,
    }  # fmt: skip
