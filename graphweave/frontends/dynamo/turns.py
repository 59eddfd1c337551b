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

        Of one kind are calls under the same modes with arguments of the same types and dtypes. What else makes PyTorch
        compile again (sizes, tensors within containers) is not worth asking about at every call.
        """
        if threading.active_count() == 1:
            return call(*args, **kwargs)
        kind = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *map(_kind, (*args, *kwargs.values())))
        if kind in self._seen:
            return call(*args, **kwargs)
        with self._first:
            out = call(*args, **kwargs)
        self._seen.add(kind)
        return out


def _kind(arg: object) -> Hashable:
    return (arg.dtype, arg.requires_grad) if isinstance(arg, Tensor) else id(type(arg))
