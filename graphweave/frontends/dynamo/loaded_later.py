"""A compiled callable that loads the compilers when it is first called.

PyTorch's compiler and this one take 1.5 s to load. A program that reads its data between `graphweave.compile` and the
first call, or makes no call, as a worker of a DataLoader, does not wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from graphweave.core import locks
from graphweave.core.garbage import collected_seldom

if TYPE_CHECKING:
    from graphweave.frontends.dynamo.captured import Captured


class LoadedLater:
    """`Captured(target, dynamic, options, fullgraph=fullgraph)`, made at the first call. With options it is made at
    once, since the compilers check them."""

    def __init__(
        self, target: Callable[..., Any], dynamic: bool | None, options: Mapping[str, Any] | None, fullgraph: bool
    ) -> None:
        self._target, self._arguments = target, (dynamic, options, fullgraph)
        self._lock = locks.lock()
        self._captured: Captured | None = None
        if options:
            self._load()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._captured is None:
            if torch.compiler.is_dynamo_compiling():  # part of a larger function that is being compiled
                return self._target(*args, **kwargs)
            return self._load()(*args, **kwargs)
        return self._captured(*args, **kwargs)

    def _load(self) -> Captured:
        with self._lock, collected_seldom():
            from graphweave.frontends.dynamo.captured import Captured

            if self._captured is None:
                dynamic, options, fullgraph = self._arguments
                self._captured = Captured(self._target, dynamic, options, fullgraph=fullgraph)
            return self._captured
