"""A compiled callable that loads the compilers when it is first called.

PyTorch's compiler and this one take 1.5 s to load. A program that reads its data between `graphweave.compile` and the
first call, or makes no call, as a worker of a DataLoader, does not wait for them.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from graphweave.core import locks
from graphweave.core.garbage import collected_seldom
from graphweave.frontends.dynamo import compile_thread
from graphweave.frontends.dynamo.caller_state import CallerState
from graphweave.frontends.dynamo.shadow_modules import Shadows
from graphweave.frontends.dynamo.uncompiled import inside_a_transform, is_traced
from graphweave.frontends.halves.forward_mode import in_forward_mode

if TYPE_CHECKING:
    from graphweave.frontends.dynamo.captured import Captured


class LoadedLater:
    """`Captured(target, dynamic, options, fullgraph=fullgraph)`, made at the first call. With options it is made at
    once, since the compilers check them."""

    def __init__(
        self,
        target: Callable[..., object],
        dynamic: bool | None,
        options: Mapping[str, object] | None,
        fullgraph: bool,
        background: bool = False,
    ) -> None:
        """With `background` the thread that compiles loads the compilers, too."""
        self._target, self._arguments = target, (dynamic, options, fullgraph)
        self._background = background
        self._loading: threading.Event | None = None  # set once the compilers are loaded
        self._loads_in = 0  # the process whose thread loads them
        self._lock = locks.lock()
        self._captured: Captured | None = None
        if options:
            self._load()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if self._captured is None:
            if is_traced():
                return self._target(*args, **kwargs)
            if self._background:
                return self._while_loading(args, kwargs)
            return self._load()(*args, **kwargs)
        return self._captured(*args, **kwargs)

    def ready(self, timeout: float | None) -> bool:
        """Wait for the thread, and return whether compiled code is used (`graphweave.ready`)."""
        begun = time.monotonic()
        if self._loading is not None and not self._loading.is_set() and self._loads_in != os.getpid():
            return False  # a forked process has no such thread
        if self._loading is not None and not self._loading.wait(timeout):
            return False
        left = None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))
        if self._captured is None and self._loading is None:
            return False
        return self._load().ready(left)

    def _while_loading(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """A call as PyTorch's own. After the first one, the thread loads the compilers and compiles for such calls."""
        out = self._target(*args, **kwargs)
        if self._loading is not None or inside_a_transform() or in_forward_mode():
            return out
        self._loading, self._loads_in = loading, _ = threading.Event(), os.getpid()
        state, shadows = CallerState(), Shadows(self._target)

        def load() -> None:
            try:
                self._load().ask_for(args, kwargs, state, shadows)
            finally:
                loading.set()

        compile_thread.submit(load)
        return out

    def _load(self) -> Captured:
        with self._lock, collected_seldom():
            with compile_thread.loading():
                from graphweave.frontends.dynamo.captured import Captured

            if self._captured is None:
                dynamic, options, fullgraph = self._arguments
                self._captured = Captured(
                    self._target, dynamic, options, fullgraph=fullgraph, background=self._background
                )
            return self._captured
