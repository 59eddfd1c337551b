"""Reductions over the features of each row, for whatever stands for a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.tensorlike.views import data_dim

Reduction: TypeAlias = Callable[..., Any]
"""(data, dims, keepdim=..., **others): a reduction of PyTorch's, over one or several dims."""


def _one_by_one(function: Callable[..., Tensor]) -> Reduction:
    """`function` takes one dim."""

    def over(data: Tensor, dims: Sequence[int], keepdim: bool = False, **others: Any) -> Tensor:
        for d in sorted(dims, reverse=True):
            data = function(data, d, keepdim=keepdim, **others)
        return data

    return over


def _place(function: Callable[..., Tensor]) -> Reduction:
    """`function` gives a place along one dim. Over several dims, which are all, it is the place among all features."""

    def over(data: Tensor, dims: Sequence[int], keepdim: bool = False) -> Tensor:
        return function(data, dims[0], keepdim=keepdim) if len(dims) == 1 else function(data.flatten(1), 1)

    return over


def vector_norm(data: Tensor, dims: Sequence[int], keepdim: bool = False, **others: Any) -> Tensor:
    return torch.linalg.vector_norm(data, dim=dims, keepdim=keepdim, **others)


_OF_SEVERAL = ("sum", "mean", "amax", "amin", "all", "any", "logsumexp", "std", "var")

OVER_FEATURES: dict[str, Reduction] = {
    **{name: getattr(torch, name) for name in _OF_SEVERAL},
    "prod": _one_by_one(torch.prod), "argmax": _place(torch.argmax), "argmin": _place(torch.argmin),
}  # fmt: skip


def over_features(x: Any, dims: Sequence[int], keepdim: bool, reduction: Reduction, **others: Any) -> Any:
    """`reduction` over the user's dims `dims`, which are no outer ones. Without any, each row is one number."""
    data, places = x.tensor(), tuple([data_dim(x, d) for d in dims])
    if not places:
        data, places = data.unsqueeze(-1), (data.dim(),)
    return without(x, dims, keepdim, reduction(data, places, keepdim=keepdim, **others))


def without(x: Any, dims: Sequence[int], keepdim: bool, data: Tensor) -> Any:
    """`data` of the rows of `x`, of whose dims `dims` have been reduced: they are gone, or have size 1."""
    return x.moved(data, x.outer if keepdim else tuple([o - sum([d < o for d in dims]) for o in x.outer]))
