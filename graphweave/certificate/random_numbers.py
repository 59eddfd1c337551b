"""Eager mode with the random numbers of compiled programs, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from graphweave.ir.philox import uniform

aten = torch.ops.aten


class CounterBased(TorchDispatchMode):
    """In this mode each call of dropout, bernoulli or rand_like takes one seed from PyTorch's generator, and computes
    its numbers from the seed and their positions. Those of float64 are drawn as numbers of `drawn`, if that is given.

    Compiled programs do so, too, for tensors on rows of a graph's spaces. For other tensors they draw as eager mode.
    """

    def __init__(self, drawn: torch.dtype | None = None) -> None:
        super().__init__()
        self._drawn = drawn

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        drawn = _DRAWS.get(func)
        if drawn is None:
            return func(*args, **(kwargs or {}))
        if drawn is _rand_like and self._drawn is not None:
            return _rand_like(*args, dtype=self._drawn).to((kwargs or {}).get("dtype") or args[0].dtype)
        return drawn(*args, **(kwargs or {}))


class DrawnAs(TorchDispatchMode):
    """In this mode, calls that draw random numbers in float64 draw them in `dtype` instead, and convert them.

    The numbers that PyTorch draws depend on the dtype, so a program in float64 would draw others than its original.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        if func is aten.native_dropout.default:  # only its mask is drawn
            x, p, train = args
            return _dropped(x, p, func(torch.ones_like(x, dtype=self._dtype), p, train)[1])
        with default_dtype(self._dtype):
            given = {name: self._dtype if value is torch.float64 else value for name, value in (kwargs or {}).items()}
            out = func(*map(self._narrow, args), **given)
        if func._schema.is_mutable:  # such as bernoulli_, which draws into its first argument
            return args[0].copy_(out)
        return out.double() if isinstance(out, Tensor) and out.is_floating_point() else out

    def _narrow(self, value: object) -> object:
        return value.to(self._dtype) if isinstance(value, Tensor) and value.dtype == torch.float64 else value


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New tensors of floating-point numbers are of `dtype` within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def draw(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Uniform numbers in the shape of `like`, by the next seed of PyTorch's generator."""
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=like.device)
    position = torch.arange(like.numel(), device=like.device).reshape(like.shape)
    return uniform(seed, position, dtype or like.dtype)


def _bernoulli_(x: Tensor, p: float = 0.5, *, generator: None = None) -> Tensor:
    return x.copy_(draw(x, torch.float32) < p)


def _bernoulli(x: Tensor, p: float | None = None, *, generator: None = None) -> Tensor:
    return (draw(x, torch.float32) < (x if p is None else p)).to(x.dtype)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    return _dropped(x, p, draw(x, torch.float32) < 1 - p)


def _dropped(x: Tensor, p: float, kept: Tensor) -> tuple[Tensor, Tensor]:
    return x * kept * (0.0 if p == 1 else 1 / (1 - p)), kept


def _rand_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    return draw(x, dtype)


_DRAWS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.native_dropout.default: _native_dropout,
    aten.rand_like.default: _rand_like,
}
