"""Reductions over the features of each row, for all objects that stand for tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.tensorlike.answers import TensorLike
from graphweave.tensorlike.views import data_dim

Reduction: TypeAlias = Callable[..., Any]
"""A reduction of PyTorch's over one or several dims, called as `reduction(data, dims, keepdim=..., **others)`."""


def _one_by_one(function: Callable[..., Tensor]) -> Reduction:
    """A reduction over several dims by `function`, which takes one dim."""

    def over(data: Tensor, dims: Sequence[int], keepdim: bool = False, **others: object) -> Tensor:
        for d in sorted(dims, reverse=True):
            data = function(data, d, keepdim=keepdim, **others)
        return data

    return over


def _place(function: Callable[..., Tensor]) -> Reduction:
    """A reduction by `function`, which returns a position along one dim.

    Several dims are always all feature dims, and the position is that among all features of the row.
    """

    def over(data: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
        return function(data, dims[0], keepdim=keepdim) if len(dims) == 1 else function(data.flatten(1), 1)

    return over


def vector_norm(data: Tensor, dims: Sequence[int], keepdim: bool = False, **others: object) -> Tensor:
    return torch.linalg.vector_norm(data, dim=dims, keepdim=keepdim, **others)


_OVER_SEVERAL_DIMS = ("sum", "mean", "amax", "amin", "all", "any", "logsumexp", "std", "var")
"""Reductions that PyTorch takes over several dims at once."""

OVER_FEATURES: dict[str, Reduction] = {
    **{name: getattr(torch, name) for name in _OVER_SEVERAL_DIMS},
    "prod": _one_by_one(torch.prod), "argmax": _place(torch.argmax), "argmin": _place(torch.argmin),
}  # fmt: skip
"""Name of a reduction -> its function on data."""


def over_features(x: TensorLike, dims: Sequence[int], keepdim: bool, reduction: Reduction, **others: object) -> Any:
    """`x` reduced over the user's dims `dims`, none of which is an outer dim. Without dims, each row is one number."""
    data, places = x.tensor(), tuple([data_dim(x, d) for d in dims])
    if not places:
        data, places = data.unsqueeze(-1), (data.dim(),)
    return without(x, dims, keepdim, reduction(data, places, keepdim=keepdim, **others))


def without(x: TensorLike, dims: Sequence[int], keepdim: bool, data: Tensor) -> Any:
    """`data`, to which `x` was reduced over `dims`, as an object like `x`. With `keepdim`, those dims have size 1."""
    return x.moved(data, x.outer if keepdim else tuple([o - sum([d < o for d in dims]) for o in x.outer]))
