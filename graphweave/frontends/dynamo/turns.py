"""First calls in turn: threads that call one function at the same moment must not each compile it.

PyTorch compiles under a lock of its own, but whoever has waited there compiles again what is done by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphweave.core import locks

T = TypeVar("T")


class Turns:
    """Calls of one compiled function. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._first = locks.reentrant_lock()

    def take(self, call: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        """`call(*args, **kwargs)`, alone while it may be the first of its kind.

        Of one kind are calls under the same modes, with arguments of the same types, dtypes and numbers of dims; only
        their sizes may then still make one of them compile.
        """
        if threading.active_count() == 1:
            return call(*args, **kwargs)
        kind = (*_modes(), *map(_kind, args), *[(name, _kind(a)) for name, a in kwargs.items()])
        if kind in self._seen:
            return call(*args, **kwargs)
        with self._first:
            out = call(*args, **kwargs)
        self._seen.add(kind)
        return out


def _modes() -> tuple[Hashable, ...]:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


def _kind(arg: object) -> Any:
    if isinstance(arg, Tensor):
        return arg.dtype, arg.dim(), arg.requires_grad, str(arg.device)
    if isinstance(arg, (list, tuple)):
        return (type(arg), *map(_kind, arg))
    if isinstance(arg, dict):
        return (dict, *[(name, _kind(a)) for name, a in arg.items()])
    return type(arg)
