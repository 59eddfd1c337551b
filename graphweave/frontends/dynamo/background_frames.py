"""Frames that are compiled in a thread, while they run as PyTorch's own (`graphweave.compile(f, background=True)`).

PyTorch asks a hook for the compiled code of a frame for which it has none. The hook here answers that the frame runs as
Python, and the thread compiles what the hook has seen: nothing runs for it, since PyTorch's compiler takes a frame's
code and variables, not a running frame. From the next call on, the hook answers with the compiled code if its guards
hold, and PyTorch keeps it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import convert_frame, trace_rules
from torch._dynamo.types import ConvertFrameReturn
from torch.utils._python_dispatch import is_in_any_mode_without_ignore_compile_internals
from torch.utils._pytree import tree_leaves

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.frontends.dynamo import compile_thread
from graphweave.frontends.dynamo.caller_state import CallerState
from graphweave.frontends.dynamo.frames_as_python import as_python
from graphweave.frontends.dynamo.shadow_modules import Reads, Shadows, reads, watched
from graphweave.frontends.dynamo.untouched import leave_process_state_alone

_log = logger(__name__)

_MAX_UNUSED = 3
"""After this many compilations for calls of one kind whose code did not fit the next such call, that call compiles."""
_MAX_WAITING = 4
"""At most this many kinds of calls of one function wait for the thread."""


class NotCompiledYet(Exception):
    """Raised by the hook in a call whose outermost frame has no compiled code. Nothing of the user's has run."""


@dataclass(frozen=True, slots=True)
class UnstartedFrame:
    """The parts that PyTorch's compiler reads of a frame that has not begun to run."""

    f_code: CodeType
    f_locals: Mapping[str, Any]
    f_globals: dict[str, Any]
    f_builtins: Any
    closure: tuple[Any, ...]
    f_lasti: int = -1
    f_back: None = None

    @property
    def f_lineno(self) -> int:
        return self.f_code.co_firstlineno

    def shadowed(self, shadows: Shadows) -> UnstartedFrame:
        variables = {name: shadows.of(value) for name, value in self.f_locals.items()}
        return replace(self, f_locals=variables, closure=tuple(map(shadows.of, self.closure)))


@dataclass(frozen=True, slots=True)
class FrameToCompile:
    """A frame to compile, of a call of a `kind`, with what PyTorch and the modules were set to in that call."""

    frame: UnstartedFrame
    kind: Hashable
    sizes: dict[Any, Any]
    """PyTorch's record of the sizes that the frame has seen."""
    state: CallerState
    shadows: Shadows


Compile = Callable[[UnstartedFrame, Callable[[UnstartedFrame], ConvertFrameReturn]], ConvertFrameReturn | None]
"""Compiles a frame under the settings of its function by PyTorch's compiler, which is the second argument. None if the
function's next call is told why not."""


class BackgroundFrames:
    """The hook for the frames of one compiled function, and what the thread has made of them."""

    def __init__(
        self, target: Callable[..., object], outermost: CodeType, compile: Compile, fail: Callable[[Exception], None]
    ) -> None:
        """`fail` reports a frame that cannot be compiled."""
        leave_process_state_alone()
        self._target, self._outermost, self._compile, self._fail = target, outermost, compile, fail
        self._lock = locks.lock()
        self._changed = threading.Condition(self._lock)
        self._hook: Any = None
        self._finished: list[
            tuple[FrameToCompile, ConvertFrameReturn]
        ] = []  # of these, calls that begin later may use the code
        self._usable: list[tuple[FrameToCompile, ConvertFrameReturn]] = []
        self._waiting: set[Hashable] = set()
        self._unused: Counter[Hashable] = Counter()  # compilations since code for a call of this kind was used
        self._refused: dict[Hashable, Exception] = {}
        self._here = threading.local()
        self._is_used = self._stays_eager = False
        self._untold: Exception | None = None
        _all.add(self)

    def hooked(self, hook: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
        """The hook to use in place of `hook`, which is PyTorch's own."""
        self._hook = hook

        def ask(frame: Any, cache_entry: object, sizes: dict[object, object]) -> ConvertFrameReturn:
            if self._passes(frame):
                return hook(frame, cache_entry, sizes)
            found = self._found(frame)
            if found is not None:
                return found
            if frame.f_code is self._outermost:
                raise NotCompiledYet
            seen = UnstartedFrame(frame.f_code, dict(frame.f_locals), frame.f_globals, frame.f_builtins, frame.closure)
            if self.must_compile_here(seen):
                return hook(frame, cache_entry, sizes)
            self.ask_for(seen, CallerState(), Shadows(self._target), sizes)
            return as_python("a thread compiles it", whole=True)

        ask._torchdynamo_orig_backend = hook  # type: ignore[attr-defined]  # by it PyTorch knows its compiled code
        return ask

    def publish(self) -> None:
        """Let the call that begins now, and later ones, use what has been compiled."""
        if self._finished:
            with self._lock:
                self._usable += self._finished
                self._finished.clear()

    def ask_for(self, frame: UnstartedFrame, state: CallerState, shadows: Shadows, sizes: dict[object, object]) -> None:
        """Let the thread compile `frame`, unless it does so already for a call of the same kind."""
        kind = self._kind(frame, state, shadows)
        if kind in self._refused:
            bump("eager_fallbacks")
            return
        with self._lock:
            if self._stays_eager or kind in self._waiting or len(self._waiting) >= _MAX_WAITING:
                return
            self._waiting.add(kind)
            self._usable = [item for item in self._usable if item[0].kind != kind]  # it did not fit
        asked = FrameToCompile(frame, kind, sizes, state, shadows)
        compile_thread.submit(lambda: self._answer(asked))

    def must_compile_here(self, frame: UnstartedFrame) -> bool:
        """Whether this call compiles the frame, since no code that the thread made fitted the call after it."""
        return bool(self._unused) and self._unused[self._kind(frame, CallerState(), None)] >= _MAX_UNUSED

    @contextmanager
    def compiling_here(self) -> Iterator[None]:
        """Within the block, calls in this thread compile what they need."""
        self._here.compiles = True
        try:
            yield
            self._is_used = True
        finally:
            self._here.compiles = False

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is left to compile, and return whether the next calls may use compiled code. Raises once
        the error of a frame that could not be compiled."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout)
            error, self._untold = self._untold, None
            made = any(result.guarded_code is not None for _, result in (*self._finished, *self._usable))
        if error is not None:
            raise error
        return self._is_used or made

    def _passes(self, frame: Any) -> bool:
        """Whether PyTorch's own hook decides: it compiles in this thread, or leaves the frame to Python at once."""
        if getattr(self._here, "compiles", False) or frame.f_lasti >= 0:
            return True
        return is_in_any_mode_without_ignore_compile_internals() or trace_rules.check(frame.f_code, frame=frame)

    def _found(self, frame: Any) -> ConvertFrameReturn | None:
        """The answer of the thread for a frame, which PyTorch keeps from then on; None if there is none that fits."""
        with self._lock:
            for item in self._usable:
                asked, result = item
                if asked.frame.f_code is not frame.f_code:
                    continue
                guarded: Any = result.guarded_code
                if guarded is None or guarded.guard_manager.check(frame.f_locals):
                    self._usable.remove(item)
                    self._unused.pop(asked.kind, None)
                    self._is_used = self._is_used or guarded is not None
                    return result
        return None

    def _answer(self, asked: FrameToCompile) -> None:
        """Compile what was asked for, in the thread."""
        result = None
        try:
            result = asked.state.context.run(self._traced, asked)
        except Exception as error:
            _log.info("a frame could not be compiled: %s", error)
            self._refused[asked.kind] = self._untold = error
            self._fail(error)
        finally:
            with self._changed:
                self._waiting.discard(asked.kind)
                self._unused[asked.kind] += 1
                if result is not None:
                    self._finished.append((replace(asked, frame=_without_variables(asked.frame)), result))
                self._changed.notify_all()

    def _traced(self, asked: FrameToCompile) -> ConvertFrameReturn | None:
        """The compiled frame. None if what it reads has changed meanwhile, so that the trace may be wrong."""
        noted = Reads()
        reads.set(noted)  # in the context of this call
        frame, own = asked.frame.shadowed(asked.shadows), self._hook
        with (
            asked.state.in_force(),
            asked.shadows.traced(),
            nullcontext() if asked.shadows else watched() as writes,
        ):
            result = self._compile(frame, lambda frame: own(frame, None, asked.sizes))
        disturbed = not noted.are_current() or (writes is not None and writes.seen)
        return None if disturbed else result

    def _kind(self, frame: UnstartedFrame, state: CallerState, shadows: Shadows | None) -> Hashable:
        """A value that is equal for calls that one compilation serves, as far as can be seen at once."""
        owner = getattr(self._target, "__self__", self._target)
        owner = owner if shadows is None else shadows.of(owner)
        leaves = tuple(map(_kind_of, tree_leaves(dict(frame.f_locals))))
        return frame.f_code, state.kind(), getattr(owner, "training", None), leaves

    def _left_by_fork(self) -> None:
        if self._waiting:
            self._stays_eager = True
            self._waiting.clear()


_all: weakref.WeakSet[BackgroundFrames] = weakref.WeakSet()


def _without_variables(frame: UnstartedFrame) -> UnstartedFrame:
    """The frame without the user's tensors."""
    return replace(frame, f_locals={}, closure=())


def _kind_of(x: object) -> Hashable:
    if isinstance(x, Tensor):
        widths = tuple(x.shape[1:]) if x.is_floating_point() and x.layout is torch.strided else None
        return x.dtype, x.requires_grad, x.dim(), widths, x.device
    if x is None or isinstance(x, bool | str):
        return x
    return id(type(x))


def _in_child() -> None:
    """In a forked process the thread is not there. What it compiled stays as PyTorch's own, and PyTorch does not wait
    for it."""
    if any(frames._waiting for frames in _all):
        convert_frame.compile_lock._at_fork_reinit()  # type: ignore[attr-defined]
        torch.fx._symbolic_trace._is_fx_tracing_flag = False
    for frames in list(_all):
        frames._left_by_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
