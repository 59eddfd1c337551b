"""A callable under torch.compile, traced whole, and what is tried if that fails."""

from __future__ import annotations

import _thread
import builtins
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import signature
from types import CodeType, FunctionType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.comptime import comptime
from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError
from torch._dynamo.types import ConvertFrameReturn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_leaves

from graphweave.compiler.report import collecting, record_eager
from graphweave.core.counters import bump
from graphweave.core.errors import ShardError
from graphweave.core.interrupts import interrupt_in
from graphweave.core.log import logger, warn_once
from graphweave.core.spans import time_text, timed
from graphweave.frontends.dynamo.argument_names import parameters_of
from graphweave.frontends.dynamo.arguments import Widths, are_plain, as_traced
from graphweave.frontends.dynamo.backend import graphweave, leave_to_python
from graphweave.frontends.dynamo.background_frames import BackgroundFrames, NotCompiledYet, UnstartedFrame
from graphweave.frontends.dynamo.caller_state import CallerState
from graphweave.frontends.dynamo.captures_on_disk import CapturesOnDisk
from graphweave.frontends.dynamo.dry_calls import DryCalls
from graphweave.frontends.dynamo.later_frames import leave_for_good
from graphweave.frontends.dynamo.lazy import make_parameters
from graphweave.frontends.dynamo.progress import shown
from graphweave.frontends.dynamo.shadow_modules import Shadows
from graphweave.frontends.dynamo.size_guards import guard_sizes
from graphweave.frontends.dynamo.steps import listeners
from graphweave.frontends.dynamo.targets import begin_early
from graphweave.frontends.dynamo.turns import Turns
from graphweave.frontends.dynamo.uncompiled import forwarded, inside_a_transform, is_traced, transformed
from graphweave.frontends.dynamo.varying_keys import AS_GIVEN, VaryingKeys, refusal
from graphweave.frontends.halves.forward_mode import in_forward_mode
from graphweave.frontends.halves.given_call import are_as_traced
from graphweave.frontends.sparse.sparse_arguments import Place, given_back, swapped
from graphweave.frontends.sparse.sparse_places import places_in, places_of
from graphweave.frontends.tracing.call_under_way import (
    BreakCounts,
    CallUnderWay,
    CaptureSettings,
    CompileWhole,
    breaks_since,
    under_way,
)
from graphweave.frontends.tracing.capture_settings import (
    CAPTURE,
    MAX_COMPILATIONS,
    ONE_APART,
    SHAPES,
)  # fmt: skip
from graphweave.frontends.tracing.reasons import at, line_of, reason_of

_log, _time_log = logger(__name__), logger("graphweave.time")

_ALWAYS = {
    "allow_rnn": True,  # a formula takes the place of PyTorch's own trace (`recurrent_formulas.py`)
    "specialize_float": False,  # floats that change become symbols (`tracer_gaps.py`)
    "skip_nnmodule_hook_guards": False,  # a hook that is added to a module after the first call must take effect
}
"""Settings that are in force in every trace."""
_TRIED = (
    CaptureSettings({**CAPTURE, **_ALWAYS}, SHAPES),
    CaptureSettings({**CAPTURE, **_ALWAYS}, ONE_APART),  # for a size of 1 that is not compiled in and broadcasts
    CaptureSettings(_ALWAYS, SHAPES),
)
"""Settings in the order in which they are tried, for the whole function and then for each frame behind a graph break.
What cannot be traced under the last ones runs as Python."""

_EACH_APART: dict[str, Any] = {
    name: value
    for name, value in (("isolate_recompiles", True), ("recompile_limit", MAX_COMPILATIONS))
    if name in signature(torch.compile).parameters
}
"""Arguments of torch.compile (PyTorch 2.13). Code that compiled functions share, such as a library's layer behind a
graph break or one of our frames, is compiled separately for each of them, and counted separately against the limit on
compilations."""

_COMPILE_HERE = object()
"""Stands for no result, in a call that has to compile what the thread cannot."""

_TRACE_ERRORS = (TorchDynamoException, GuardOnDataDependentSymNode)
"""Errors that PyTorch only raises while it traces."""


def _with_guards(target: Callable[..., object], widths: Widths, *, any_rows: bool) -> FunctionType:
    """`target`, whose traces guard on sizes."""

    def guard(context: object) -> None:
        guard_sizes(context, widths, any_rows=any_rows)

    def traced(*args: object, **kwargs: object) -> object:
        comptime(guard)
        return target(*args, **kwargs)

    # PyTorch keeps compiled code and counts recompilations by code object, so each target needs its own
    traced.__code__ = traced.__code__.replace(co_name=f"traced_{name_of(target)}")
    assert isinstance(traced, FunctionType)
    return traced


class Captured:
    """A callable under torch.compile. It is traced whole; if that fails, each of its frames that can be traced is
    traced."""

    def __init__(
        self,
        target: Callable[..., object],
        dynamic: bool | None,
        options: Mapping[str, Any] | None,
        dynamo: Mapping[str, Any] | None = None,
        *,
        fullgraph: bool = False,
        background: bool = False,
        all_keys: bool = False,
    ) -> None:
        """`dynamo`: settings of `torch._dynamo.config` that are in force in every trace. `fullgraph`: raise an error
        if the function cannot be traced whole. `background`: a thread compiles, and calls run as PyTorch's own until
        it has. `all_keys`: the function's dictionaries have all keys, and flags that say which of them are given
        (`varying_keys.py`)."""
        self._backend = functools.partial(graphweave, options=dict(options or {}), parameters=parameters_of(target))
        # For a backend with a registered name PyTorch drops, after a compilation, its weak references to the tensors
        # that it has traced. `torch.utils.swap_tensors` refuses tensors that have any.
        self._backend.__name__ = "graphweave"  # type: ignore[attr-defined]

        ranks = (options or {}).get("ranks")
        self._dry = None if ranks is None else DryCalls(target, ranks)
        self._on_ranks = on_ranks = ranks is not None
        self._must_be_whole = fullgraph or on_ranks
        # an exported library has one program for all numbers of rows
        taker = (options or {}).get("taker")
        any_rows = on_ranks or (taker is not None and taker.any_rows) or all_keys
        self._varying: VaryingKeys | None = None
        if not (on_ranks or taker is not None or all_keys):
            again = {"fullgraph": True, "all_keys": True, "background": background}
            self._varying = VaryingKeys(target, lambda f: Captured(f, dynamic, options, dynamo, **again))

        widths = Widths()
        traced = _with_guards(target, widths, any_rows=any_rows)
        self._target, self._code, self._all_keys = target, traced.__code__, all_keys
        if dynamic:  # as a setting of each compilation, since torch.compile's argument is set and reset in each call
            dynamic, dynamo = None, {**(dynamo or {}), "assume_static_by_default": False}
        self._traced_function = traced
        self._frames: BackgroundFrames | None = None
        if background and not on_ranks:
            compile = self._compile_all_keys_behind if all_keys else self._compile_behind
            self._frames = BackgroundFrames(target, self._code, compile, self._tell_failed)
        self._refusal: Exception | None = None
        self._compiled = self._compile(traced, dynamic)
        # sizes 0 and 1 must not have code of their own where other ranks have other sizes
        tried = _TRIED[:1] if on_ranks else _TRIED[:2] if fullgraph else _TRIED
        self._settings = tuple(
            replace(s, any_rows=on_ranks, all_keys=all_keys, dynamo={**s.dynamo, **(dynamo or {})}) for s in tried
        )
        more = f"{dynamic} {dynamo} {fullgraph}"
        kept = not on_ranks and taker is None and not all_keys
        self._on_disk = CapturesOnDisk(target, options or {}, more, widths).compiled if kept else None
        self._floats: dict[tuple[CodeType, str], float] = {}
        self._inner_leaves: set[tuple[CodeType, str]] = set()
        self._traced = False
        self._sparse_places: list[Place] | None = None
        self._turns = Turns()

    def _compile(self, traced: FunctionType, dynamic: bool | None) -> Any:
        """`traced` under Dynamo, which asks the thread for its frames if there is one."""
        backend, whole = self._backend, self._must_be_whole
        if self._frames is None:
            return torch.compile(traced, backend=backend, dynamic=dynamic, fullgraph=whole, **_EACH_APART)
        around: Any = torch._dynamo.optimize(backend=backend, dynamic=dynamic, nopython=whole, **_EACH_APART)
        around.callback = self._frames.hooked(around.callback)
        return around(traced)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if is_traced():
            return self._target(*args, **kwargs)
        for tell in listeners:
            tell(self)
        if self._dry is not None and (inside_a_transform() or in_forward_mode() or _has_any_global_hook()):
            raise ShardError(
                f"{name_of(self._target)} runs on parts of a graph, so it must be compiled, which torch.func"
                " transforms, derivatives in forward mode and hooks on all modules prevent. Call it without them."
            )
        if inside_a_transform() or in_forward_mode():
            (transformed if inside_a_transform() else forwarded)(name_of(self._target))
            return self._target(*args, **kwargs)
        if self._varying is not None and not _has_any_global_hook():
            out = self._varying.call(args, kwargs)
            if out is not AS_GIVEN:
                self._traced = True
                return out
        if self._frames is not None:
            return self._with_stand_ins(args, kwargs)
        call = self._with_stand_ins if self._traced else self._first_call
        if not _thread._count():  # no other thread, with which to take turns
            return call(args, kwargs)
        return self._turns.take(call, args, kwargs)

    def _first_call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Make the first call, which compiles. On a terminal, a line says so if that takes long."""
        with shown(f"compiling {name_of(self._target)}"):
            if not _time_log.isEnabledFor(logging.INFO):
                return self._with_stand_ins(args, kwargs)
            with timed() as call:
                out = self._with_stand_ins(args, kwargs)
            _time_log.info("%s\n%s", name_of(self._target), time_text(call).rstrip())
            return out

    def _with_stand_ins(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call with a stand-in for each sparse tensor, and turn stand-ins among the results into sparse tensors
        again."""
        if self._sparse_places is None:
            self._sparse_places = places_of(self._target)
        plain = self._all_keys and are_as_traced()
        plain = plain or (are_plain(args) and (not kwargs or are_plain(kwargs.values())))
        if plain and not self._sparse_places:
            return given_back(self._call(args, kwargs, args, kwargs))
        places = self._sparse_places + places_in((*args, *kwargs.values()))
        with swapped(places):
            traced = {name: as_traced(arg) for name, arg in kwargs.items()}
            return given_back(self._call(tuple(map(as_traced, args)), traced, args, kwargs))

    def _call(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: tuple[object, ...],
        given_by_name: dict[str, object],
    ) -> object:
        """Call with `args` and `kwargs`, which stand for the arguments as they were given."""
        if not self._traced:
            begin_early(tree_leaves((args, kwargs)))
            if isinstance(self._target, torch.nn.Module):
                make_parameters(self._target, args, kwargs)
        if self._frames is None:
            return self._call_or_compile(args, kwargs, given, given_by_name)
        if not self._sparse_places and not self._hooked_everywhere():
            out = self._call_or_ask(self._frames, args, kwargs, given, given_by_name)
            if out is not _COMPILE_HERE:
                return out
        with self._frames.compiling_here():  # sparse tensors in a module have stand-ins only during a call
            return self._call_or_compile(args, kwargs, given, given_by_name)

    def _call_or_ask(
        self, frames: BackgroundFrames, args: tuple[object, ...], kwargs: dict[str, object], given: tuple[object, ...],
        given_by_name: dict[str, object],
    ) -> object:  # fmt: skip
        """A call by what the thread has compiled. Where there is nothing, the call runs as PyTorch's own, and the
        thread is asked to compile for such calls. `_COMPILE_HERE` if the thread cannot.

        A call of a function of all keys, which cannot run as Python, raises NotCompiledYet after the thread was asked,
        and the thread's error if it could not compile one."""
        if self._refusal is not None:
            raise self._refusal
        frames.publish()
        token = under_way.set(self._under_way(self._settings, last=False))
        try:
            return self._compiled(*args, **kwargs)
        except NotCompiledYet:
            pass
        finally:
            under_way.reset(token)
        frame = self._frame_of(args, kwargs)
        if frames.must_compile_here(frame):
            return _COMPILE_HERE
        out = None if self._all_keys else self._target(*given, **given_by_name)
        frames.ask_for(frame, CallerState(), Shadows(self._target), {})
        if self._all_keys:
            raise NotCompiledYet
        return out

    def ask_for(
        self, args: tuple[object, ...], kwargs: dict[str, object], state: CallerState, shadows: Shadows | None = None
    ) -> None:
        """Let the thread compile for calls with such arguments. With sparse tensors, the next call asks."""
        if self._varying is not None and self._varying.ask_for(args, kwargs, state):
            return
        self._sparse_places = places_of(self._target)
        plain = (self._all_keys and are_as_traced()) or not places_in((*args, *kwargs.values()))
        if self._frames is not None and not self._sparse_places and plain:
            traced = {name: as_traced(arg) for name, arg in kwargs.items()}
            frame = self._frame_of(tuple(map(as_traced, args)), traced)
            self._frames.ask_for(frame, state, shadows or Shadows(self._target), {})

    def ready(self, timeout: float | None) -> bool:
        """Whether calls run compiled. Waits for the thread for at most `timeout` seconds, if there is one."""
        if self._frames is None:
            return self._traced
        end = None if timeout is None else time.monotonic() + timeout
        waited = self._frames.wait(timeout)
        left = None if end is None else max(0.0, end - time.monotonic())
        return (self._varying is not None and self._varying.ready(left)) or waited

    def _frame_of(self, args: tuple[object, ...], kwargs: dict[str, object]) -> UnstartedFrame:
        """The frame in which the call begins."""
        code, function = self._code, self._traced_function
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        variables = {"args": args, "kwargs": kwargs, **{name: cell.cell_contents for name, cell in cells.items()}}
        return UnstartedFrame(code, variables, function.__globals__, vars(builtins), tuple(cells.values()))

    def _compile_behind(self, frame: UnstartedFrame, compile_frame: Callable[[UnstartedFrame], object]) -> Any:
        """The compiled code of `frame`, under the first settings with which it can be traced, as in
        `_call_or_compile`."""
        outermost = frame.f_code is self._code
        tried = self._settings
        while tried:
            call = self._under_way(tried, last=len(tried) == 1)
            token = under_way.set(call)
            if outermost:
                call.arguments = frame.f_locals["args"], frame.f_locals["kwargs"]
            try:
                made = compile_frame(frame)
                self._succeeded(call, tried if outermost else None)
                return made
            except Exception as error:
                self._raise_unless_untraced(error, call)
                failed = error
            finally:
                under_way.reset(token)
                if call.breaks_before is not None:
                    self._count_breaks(call.breaks_before)
            tried = tried[1:]
        raise failed

    def _compile_all_keys_behind(
        self, frame: UnstartedFrame, compile_frame: Callable[[UnstartedFrame], object]
    ) -> ConvertFrameReturn | None:
        """Like `_compile_behind`, but that a function cannot be compiled for all keys is no failure: it is told."""
        try:
            made: ConvertFrameReturn = self._compile_behind(frame, compile_frame)
            return made
        except Exception as error:
            if refusal(error) is None:
                raise
            self._refusal = error
            return None

    def _succeeded(self, call: CallUnderWay, settings: tuple[CaptureSettings, ...] | None) -> None:
        """Note that a call has been traced. `settings` are those of its outermost frame, if that was traced in it."""
        if settings is not None:
            self._traced, self._settings = True, settings
        if call.left:
            leave_for_good(call)

    def _tell_failed(self, error: Exception) -> None:
        leave_to_python(name_of(self._target), line_of(self._target), error)

    def _call_or_compile(
        self,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        given: tuple[object, ...],
        given_by_name: dict[str, object],
    ) -> object:
        """A call that compiles first what is not compiled yet."""
        tried = self._settings
        while tried and not self._hooked_everywhere():
            call = self._under_way(tried, last=len(tried) == 1, compile_whole=self._on_disk)
            token = under_way.set(call)
            try:
                if self._dry is not None:
                    self._dry.before(functools.partial(self._run, call), args, kwargs)
                call.arguments = args, kwargs
                out = self._compiled(*args, **kwargs)
                self._succeeded(call, tried)
                return out
            except Exception as error:
                self._raise_unless_untraced(error, call)
                _log.info("%s: tracing failed (%s)", name_of(self._target), reason_of(error)[0])
            finally:
                under_way.reset(token)
                if call.breaks_before is not None:  # something was compiled
                    self._count_breaks(call.breaks_before)
            tried = tried[1:]
            one_left = len(tried) == 1 and not self._must_be_whole
            if one_left and isinstance(call.failed, TorchRuntimeError) and not collecting():
                return self._as_python(call.failed, tried, given, given_by_name)
        bump("eager_fallbacks")
        return self._target(*given, **given_by_name)

    def _under_way(
        self, settings: Sequence[CaptureSettings], *, last: bool, compile_whole: CompileWhole | None = None
    ) -> CallUnderWay:
        return CallUnderWay(self._backend, settings, self._code, last, self._floats, self._inner_leaves, compile_whole)

    def _as_python(
        self, error: Exception, tried: tuple[CaptureSettings, ...], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        """Make the call eagerly, after an operation has refused its operands in a trace. If eager mode refuses them
        too, its error is clearer, and was no reason to compile anything. If not, later calls are traced as `tried`."""
        out = self._target(*args, **kwargs)
        self._settings = tried
        bump("eager_fallbacks")
        why, where = reason_of(error)
        name = name_of(self._target)
        record_eager(f"the first call of {name}{at(where or line_of(self._target))}, as it could not be traced: {why}")
        return out

    def _raise_unless_untraced(self, error: Exception, call: CallUnderWay) -> None:
        """Raise `error`, unless it says that the outermost frame of the call could not be traced. Then nothing of the
        user's has run, so that the call can be made with other settings."""
        if (interrupt := interrupt_in(error)) is not None:
            raise interrupt from None
        if self._on_ranks and _arose_in_tracing(error):
            raise ShardError(
                f"{name_of(self._target)} runs on parts of a graph, so it must be captured whole, which failed:"
                f" {reason_of(error)[0]}. Change that line, or leave it out of what is sharded."
            ) from error
        if error is not call.failed:
            raise error

    def _run(self, call: CallUnderWay, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
        call.arguments = args, kwargs
        return self._compiled(*args, **kwargs)

    def _count_breaks(self, before: BreakCounts) -> None:
        broken = breaks_since(before)
        bump("graph_breaks", broken)
        if broken:  # perhaps by a sparse tensor that was not there before
            self._sparse_places = None

    def _hooked_everywhere(self) -> bool:
        """Whether hooks are set on all modules of the process (by a profiler or tracker), which need eager calls."""
        if not _has_any_global_hook():
            return False
        warn_once(
            f"graphweave: {name_of(self._target)} runs eagerly while there are hooks on all modules (made by "
            "`register_module_forward_hook` or a like function). Remove them, or use hooks of single modules."
        )
        return True


def _arose_in_tracing(error: Exception) -> bool:
    """Whether `error` was raised while code was traced, rather than while it ran."""
    if isinstance(error, _TRACE_ERRORS):  # their tracebacks have no frames of the tracer
        return True
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == convert_frame.__file__:
            return True
        trace = trace.tb_next
    return False


def name_of(target: Callable[..., object]) -> str:
    return str(getattr(target, "__name__", type(target).__name__))
