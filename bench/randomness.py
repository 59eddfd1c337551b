"""Eager mode with the random numbers of compiled programs, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphweave.ir.philox import uniform

aten = torch.ops.aten


class CounterBased(TorchDispatchMode):
    """In this mode each call of dropout, bernoulli or rand_like takes one seed from PyTorch's generator, and computes
    its numbers from the seed and their positions.

    Compiled programs do so, too, for tensors on rows of a graph's spaces. For other tensors they draw as eager mode.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        drawn = _DRAWS.get(func)
        return func(*args, **(kwargs or {})) if drawn is None else drawn(*args, **(kwargs or {}))


def draw(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uniform numbers in the shape of `like`, by the next seed of PyTorch's generator."""
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64)
    position = torch.arange(like.numel()).reshape(like.shape)
    return uniform(seed, position, dtype or like.dtype)


def _bernoulli_(x: Tensor, p: float = 0.5, *, generator: None = None) -> Tensor:
    return x.copy_(draw(x, torch.float32) < p)


def _bernoulli(x: Tensor, p: float | None = None, *, generator: None = None) -> Tensor:
    return (draw(x, torch.float32) < (x if p is None else p)).to(x.dtype)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = draw(x, torch.float32) < 1 - p
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _rand_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return draw(x, dtype)


_DRAWS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    aten.rand_like.default: _rand_like,
}
