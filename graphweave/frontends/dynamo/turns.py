"""Serialises first calls, so that threads that call one function at the same moment compile it once.

PyTorch compiles under a lock of its own, but a thread that has waited for it compiles the function again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor

from graphweave.core import locks

T = TypeVar("T")
Call = Callable[[tuple[Any, ...], dict[str, Any]], T]
"""A function of arguments and arguments by name."""


class Turns:
    """Calls of one compiled function. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._first = locks.reentrant_lock()

    def take(self, call: Call[T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
        """`call(args, kwargs)`, under a lock if it may be the first call of its kind.

        Calls are of one kind if they have the same modes and arguments of the same types and dtypes. Other reasons for
        PyTorch to compile again (sizes, tensors in containers) are too costly to check in every call.
        """
        kind: Hashable = (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            *[(a.dtype, a.requires_grad) if isinstance(a, Tensor) else id(type(a)) for a in (*args, *kwargs.values())],
        )  # fmt: skip
        if kind in self._seen:
            return call(args, kwargs)
        with self._first:
            out = call(args, kwargs)
        self._seen.add(kind)
        return out
