"""Compressed indices (crow, ccol) that remember the index from which they were made, so that expanding them returns it.

PyG's `ptr2index`, and users' own code, repeats the number of each row as often as the row has entries. A trace could
not know the size of the result, and the result would not be the index along which the matrix multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor


class Indices(Tensor):
    """The plain tensor `gw_plain`, its kind `gw_kind`, and the row of each entry, `gw_row`.

    The kind "pointer" is crow or ccol indices [rows + 1]. "starts" and "ends" [rows] are a pointer without its last or
    first element; "counts" [rows] are the difference of both.
    """

    gw_plain: Tensor
    gw_kind: str
    gw_row: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: object, args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:  # fmt: skip
        given = kwargs or {}
        if func.__name__ in _FUNCTIONS:
            out = _FUNCTIONS[func.__name__](*args, **given)
            if out is not None:
                return out
        return func(*[as_plain(a) for a in args], **{name: as_plain(a) for name, a in given.items()})


def indices(plain: Tensor, kind: str, row: Tensor) -> Tensor:
    out = plain.as_subclass(Indices)
    out.gw_plain, out.gw_kind, out.gw_row = plain, kind, row
    return out


def as_plain(x: object) -> Any:
    """`x` with plain tensors in place of Indices, also inside a list or tuple."""
    if isinstance(x, Indices):
        return x.gw_plain
    if type(x) is list:
        return [as_plain(item) for item in x]
    if type(x) is tuple:
        return tuple([as_plain(item) for item in x])
    return x


def of_kind(x: object, kind: str) -> TypeGuard[Indices]:
    return isinstance(x, Indices) and x.gw_kind == kind


def _alike(x: Indices, *_: object, **__: object) -> Tensor:
    return indices(x.gw_plain.detach(), x.gw_kind, x.gw_row)


def _view(x: Indices, *sizes: object) -> Tensor | None:
    return _alike(x) if list(sizes) in ([-1], [[-1]]) and x.gw_kind == "pointer" else None


def _long(x: Indices) -> Tensor | None:
    return _alike(x) if x.gw_plain.dtype == torch.int64 else None


def _diff(x: object, *args: object, **kwargs: object) -> Tensor | None:
    if args or kwargs or not of_kind(x, "pointer"):
        return None
    return indices(x.gw_plain.diff(), "counts", x.gw_row)


def _item(x: object, which: object) -> Tensor | None:
    if of_kind(x, "pointer") and isinstance(which, slice):
        if (which.start, which.stop, which.step) == (1, None, None):
            return indices(x.gw_plain[1:], "ends", x.gw_row)
        if (which.start, which.stop, which.step) in ((None, -1, None), (0, -1, None)):
            return indices(x.gw_plain[:-1], "starts", x.gw_row)
    return None


def _sub(ends: object, starts: object, **kwargs: object) -> Tensor | None:
    if kwargs or not of_kind(ends, "ends") or not of_kind(starts, "starts") or ends.gw_row is not starts.gw_row:
        return None
    return indices(ends.gw_plain - starts.gw_plain, "counts", ends.gw_row)


def _repeat_interleave(x: Tensor, repeats: object = None, dim: int | None = None, **_: object) -> Tensor | None:
    """The value of each entry's row, which is a gather. For counts alone, the row of each entry."""
    if repeats is None and dim is None and of_kind(x, "counts"):
        return x.gw_row
    if of_kind(repeats, "counts") and not isinstance(x, Indices) and (dim == 0 or (dim is None and x.dim() == 1)):
        return x.index_select(0, repeats.gw_row)
    return None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "detach": _alike, "clone": _alike, "contiguous": _alike, "long": _long, "view": _view, "reshape": _view,
    "diff": _diff, "__getitem__": _item,
    "getitem": _item, "sub": _sub, "__sub__": _sub, "repeat_interleave": _repeat_interleave,
}  # fmt: skip
"""Name of a function -> what it does with Indices; None if the result is a plain tensor."""
