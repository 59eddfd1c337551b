"""PyTorch's settings under which message passing is captured whole, and once for graphs of all sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from inspect import signature
from types import CodeType
from typing import Any

import torch._dynamo
from torch._dynamo import convert_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.exc import (
    RestartAnalysis,
    SkipFrame,
    TensorifyScalarRestartAnalysis,
    TorchDynamoException,
    Unsupported,
    UserError,
)
from torch._dynamo.utils import counters
from torch.fx.experimental import _config as shape_config

from graphweave.compiler.report import record_eager
from graphweave.core.counters import bump
from graphweave.core.garbage import collected_seldom
from graphweave.core.interrupts import interrupt_in
from graphweave.core.lines import is_frontend, shown_code
from graphweave.core.log import logger
from graphweave.core.spans import DYNAMO, span
from graphweave.core.stack import call_with_room
from graphweave.frontends.tracing.asked_keys import keys_not_asked
from graphweave.frontends.tracing.asked_none import none_not_asked
from graphweave.frontends.tracing.call_under_way import CaptureSettings, breaks_so_far, under_way
from graphweave.frontends.tracing.counted_calls import counts_as_symbols
from graphweave.frontends.tracing.dropped_frames import (
    caller_of,
    in_place_of,
    rewrite,
    rewrite_from_next_call,
    traced_instead,
    watching_loops,
)
from graphweave.frontends.tracing.followed_formulas import Formulas, formulas_followed
from graphweave.frontends.tracing.reasons import function_name, raised_by_user
from graphweave.frontends.tracing.size_assumptions import sizes_may_be_nothing
from graphweave.frontends.tracing.torch_logs import refusals_untold
from graphweave.frontends.tracing.tracer_gaps import gaps_closed

_log = logger(__name__)

CAPTURE = {
    "capture_dynamic_output_shape_ops": True,
    "capture_scalar_outputs": True,
    "record_runtime_overhead": False,
    "fake_tensor_cache_enabled": False,
    **{
        name: value
        for name, value in {"trace_autograd_ops": True, "skip_guards_on_constant_func_defaults": False}.items()
        if hasattr(torch._dynamo.config, name)
    },
}
"""Settings under which operations whose results depend on data and gradients that a function takes inside itself do not
break a graph, and that cost less. Default values of functions have guards, which PyTorch 2.11 leaves out.

PyTorch puts code for a profiler around each graph, which takes 4 us a call. Its cache of fake tensors costs more than
it saves where sizes are symbols: a tenth of the time of tracing two layers.
"""
SHAPES = {"use_duck_shape": False, "backed_size_oblivious": True}
"""Settings under which sizes that agree by chance stay different symbols, and 0 and 1 are sizes like any other.
`size_assumptions.py` says what PyTorch assumes under the second, and what holds it."""

ONE_APART = {"use_duck_shape": False}
"""Like `SHAPES`, but sizes 0 and 1 have compiled code of their own, as in PyTorch. Under `SHAPES` a symbolic size of 1
does not broadcast, so widths have to be compiled in, which only `graphweave.compile` can ask for, and only for
arguments."""

MAX_COMPILATIONS = 64
"""After this many compilations of one function, PyTorch leaves it to Python. PyTorch's own limit is eight, but feature
widths are compiled in, so that a function called with nine widths rightly has nine compilations."""


PLAIN = CaptureSettings({**CAPTURE, "assume_static_by_default": False, "specialize_float": True}, ONE_APART)
"""Settings for `torch.compile(f, backend="graphweave")`, where none of our code is called before the trace."""


class DuringCompilation:
    """Puts settings in force while PyTorch compiles for `backend`, and at no other time.

    So a call that compiles nothing does not pay for them (to set and reset ten settings takes 70 us), and compilations
    for other backends, which a call may lead to, are left alone. PyTorch reports the start and the end of each
    compilation, but not its backend, so the backend is looked up in the stack frame in which PyTorch compiles. If a
    version of PyTorch has no such frame, PyTorch's own settings stay. `after` is called after each compilation that was
    started by `torch.compile` itself; `left` is called with code that is left to Python and the error that is the
    reason.
    """

    def __init__(
        self, backend: Callable[..., object], after: Callable[[], None], left: Callable[[CodeType, Exception], None]
    ) -> None:
        self._backend, self._after, self._left = backend, after, left
        self._held = ExitStack()
        self._formulas = Formulas()  # those that the compilation under way follows
        self._plain = self._again = False  # compiles for torch.compile itself; traces again under PyTorch's settings
        callback_handler.start_callbacks = _Kept([*callback_handler.start_callbacks, self._start])
        callback_handler.end_callbacks = _Kept([*callback_handler.end_callbacks, self._end])

    def trace_again_without(self) -> None:
        """After a failure in `torch.compile` itself, end the trace, so that PyTorch traces again under its own
        settings."""
        if self._plain and not self._again:
            self._held.close()
            self._enter(span(DYNAMO), refusals_untold(), gaps_closed(), formulas_followed(self._formulas))
            self._again = True
            self._watch_the_trace(self._leave_to_python)
            _forget_where_it_broke()
            raise TensorifyScalarRestartAnalysis(restart_reason="graphweave failed with data-dependent shapes")

    def under_way(self) -> bool:
        """Whether PyTorch is tracing for `backend` at this moment."""
        found = _backend_of_this_compilation()
        return found is self._backend or getattr(found, "func", None) is self._backend

    def _start(self, *_: object) -> None:
        found = _backend_of_this_compilation()
        wanted = None
        self._formulas = Formulas()
        if found is self._backend:
            config = torch._dynamo.config
            # the user asked for dynamic=False
            static = config.assume_static_by_default and not config.automatic_dynamic_shapes
            self._plain, self._again = not static, False
            wanted = PLAIN if self._plain else None
            self._watch_the_trace(self._trace_refused if self._plain else None)
        elif getattr(found, "func", None) is self._backend and (call := under_way.get()) is not None:
            if call.breaks_before is None:
                call.breaks_before = breaks_so_far()
            wanted = call.settings[call.attempt]
            self._watch_the_trace(None)
        if wanted is not None:
            # plain torch.compile passes no sparse matrix, and would not give back one that a formula made
            self._formulas = Formulas.of(
                sparse=found is not self._backend, ranks=wanted.any_rows, all_keys=wanted.all_keys
            )
            self._enter(span(DYNAMO), collected_seldom(), refusals_untold(), gaps_closed())
            self._enter(formulas_followed(self._formulas))
            if wanted.all_keys:
                self._enter(keys_not_asked(), none_not_asked())
            if not wanted.any_rows:
                self._enter(sizes_may_be_nothing())
            self._enter(torch._dynamo.config.patch(dict(wanted.dynamo)))
            self._enter(shape_config.patch(dict(wanted.shapes)))  # type: ignore[attr-defined]

    def _enter(self, *contexts: AbstractContextManager[object]) -> None:
        """Keep `contexts` until the compilation ends."""
        for context in contexts:
            self._held.enter_context(context)

    def _watch_the_trace(self, failed: Callable[[CodeType, bool, Exception], None] | None) -> None:
        """Until the compilation ends, call `failed` with the code, `fullgraph` and the error of a trace that fails, and
        trace functions with loops that break a graph in their rewritten form."""
        trace = getattr(convert_frame, "trace_frame", None)  # absent in some versions
        if trace is None:
            return

        def watched(*args: object, **kwargs: object) -> Any:
            given = signature(trace).bind(*args, **kwargs).arguments
            caller = None if given["one_graph"] else traced_instead(given["code"])
            if caller is None and (found := self._formulas.of_code(given["code"])) is not None:
                caller = caller_of(*found)
            if caller is not None:
                in_place_of(caller, given)
            unsupported = dict(counters["unimplemented"])
            try:
                return call_with_room(trace, *args, **kwargs)
            except (RestartAnalysis, SkipFrame):  # PyTorch's way to say what to do with a frame
                raise
            except Unsupported as error:
                self._dropped(given, error, unsupported)
                raise
            except Exception as error:
                if interrupt_in(error) is None and failed is not None:
                    failed(given["code"], given["one_graph"], error)
                if isinstance(error, UserError):
                    self._dropped(given, error, unsupported)
                raise

        convert_frame.trace_frame = watched
        self._held.callback(setattr, convert_frame, "trace_frame", trace)
        self._held.enter_context(watching_loops())
        self._held.enter_context(counts_as_symbols())

    def _dropped(
        self, given: Mapping[str, Any], error: Unsupported | UserError, unsupported: Mapping[str, int]
    ) -> None:
        """PyTorch leaves a frame to Python because of `error`. Trace it again if only a loop need be left to Python;
        what this trace added to PyTorch's counts of `unsupported` operations then does not count."""
        output = getattr(error, "_torch_dynamo_tracer_output", None)
        if given["one_graph"] or getattr(output, "error_on_graph_break", False):  # raised as an error
            return
        if raised_by_user(error):  # this call alone runs as Python, to raise it
            return
        if str(getattr(error, "gb_type", "")).startswith("Observed exception"):  # the function raises it itself
            return
        code, scope = given["code"], given["globals"]
        if rewrite(code, error, scope):
            _forget_where_it_broke()
            counters["unimplemented"].clear()
            counters["unimplemented"].update(unsupported)
            raise RestartAnalysis(restart_reason="a loop runs as Python")
        if rewrite_from_next_call(code, error, scope):
            bump("eager_fallbacks")
            where = f"{function_name(code.co_name)} ({shown_code(code)})"
            record_eager(f"{where} in the first call; from the second on only a loop in it is Python's")
        elif not is_frontend(code.co_filename):  # what they call is traced by itself
            self._left(code, error)

    def _trace_refused(self, code: CodeType, fullgraph: bool, error: Exception) -> None:
        """Trace again under PyTorch's settings, which may accept what it refuses under ours before it calls a
        backend."""
        _log.info("a trace of %s with data-dependent shapes was refused: %s", code.co_name, error)
        self.trace_again_without()

    def _leave_to_python(self, code: CodeType, fullgraph: bool, error: Exception) -> None:
        """Leave a frame to Python if PyTorch's tracer fails on it, since our settings may have led the tracer to it."""
        if fullgraph or isinstance(error, TorchDynamoException):  # eager mode raises it too, or the user asked for it
            return
        self._left(code, error)
        skip = SkipFrame(f"tracing failed: {error}")
        skip._torch_dynamo_tracer_output = getattr(error, "_torch_dynamo_tracer_output", None)
        raise skip from error

    def _end(self, *_: object) -> None:
        self._held.close()
        if self._plain:
            self._plain = False
            try:
                self._after()
            except Warning as error:  # a filter raised it; PyTorch loses count of compilations if a callback raises
                _log.warning("%s", error)


class _Kept(list[Any]):
    """A list of callbacks whose last one survives torch._dynamo.reset(), which clears the list."""

    def clear(self) -> None:
        del self[:-1]


def _backend_of_this_compilation() -> object:
    return backend_within(_of_this_compilation("compiler_fn"))


def backend_within(found: object) -> object:
    """The backend as it was given to torch.compile, of which PyTorch makes `found`."""
    while hasattr(found, "_torchdynamo_orig_backend"):
        found = found._torchdynamo_orig_backend
    return getattr(found, "compiler_fn", found)


def _forget_where_it_broke() -> None:
    """Forget where the trace broke. Dynamo expects the same graph breaks when it repeats a trace, but other settings
    lead to others."""
    log = _of_this_compilation("speculation_log")
    if log is not None:
        log.clear()


def _of_this_compilation(name: str) -> Any:
    """The variable `name` in the stack frame in which PyTorch compiles; None if there is no such frame or variable."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == convert_frame.__file__ and name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back  # type: ignore[assignment]
    return None
