"""Frames that have to be traced while a call is under way: behind a graph break, or called from such a place.

Part of the user's code has run by then, so if a trace fails, the call cannot be made again. The frame alone is traced
again under the next settings, in its place, and runs as Python if it fails under all of them. PyTorch compiles each
frame by one function, which is replaced here. If a version of PyTorch has no such function, its own behaviour stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import CodeType
from typing import Any

import torch
from torch._dynamo import convert_frame
from torch._dynamo.exc import Unsupported, UserError

from graphweave.core.interrupts import interrupt_in
from graphweave.core.lines import is_frontend, shown_code
from graphweave.frontends.dynamo.backend import graphweave, leave_to_python
from graphweave.frontends.dynamo.frames_as_python import as_python
from graphweave.frontends.tracing.call_under_way import CallUnderWay, under_way
from graphweave.frontends.tracing.capture_settings import MAX_COMPILATIONS, backend_within
from graphweave.frontends.tracing.followed_formulas import is_disabled
from graphweave.frontends.tracing.reasons import function_name, raised_by_user

_compile: Any = getattr(convert_frame, "_compile", None)
_arguments = signature(_compile) if _compile is not None else None
_LIMIT = {} if "recompile_limit" in signature(torch.compile).parameters else {"recompile_limit": MAX_COMPILATIONS}
"""Settings while a frame of a call is compiled. `torch.compile` of PyTorch 2.11 has no argument for the limit."""


def leave_for_good(call: CallUnderWay) -> None:
    """Leave to Python, in later calls too, the frames that `call` has left to it, and report them.

    This is for a call that has returned. In a call that raises, a trace may have failed since eager mode fails too.
    """
    for code, error in call.left.items():
        torch._dynamo.eval_frame.skip_code(code)
        if not is_frontend(code.co_filename):  # functions called from our own frames are frames, too
            leave_to_python(function_name(code.co_name), shown_code(code), error)


def _compile_in_turn(*args: object, **kwargs: object) -> object:
    """Compile a frame. `args` and `kwargs` are PyTorch's.

    A frame whose trace ends in an exception of the user's code runs as Python in this call, which raises it. PyTorch
    would leave the frame to Python in later calls, too.
    """
    given = _arguments.bind(*args, **kwargs).arguments  # type: ignore[union-attr]
    found, call = backend_within(given["compiler_fn"]), under_way.get()
    of_call = call is not None and found is call.backend
    if not of_call and graphweave not in (found, getattr(found, "func", None)):
        return _compile(*args, **kwargs)
    if is_disabled(given["code"]):
        return as_python("its formula is not traced", whole=True)
    try:
        with torch._dynamo.config.patch(_LIMIT if of_call else {}):
            return _compile_for(call if of_call else None, given, lambda: _compile(*args, **kwargs))
    except Unsupported as error:
        if given["one_graph"] or not raised_by_user(error):
            raise
        return as_python("the user's code raises an exception")


def _compile_for(call: CallUnderWay | None, given: Mapping[str, Any], compile_once: Callable[[], object]) -> object:
    """The compiled frame with PyTorch's arguments `given`, in the `call` under way that needs it, if there is one."""
    if call is None:
        return compile_once()
    code: CodeType = given["code"]
    if code is call.outermost and call.compile_whole is not None:
        whole, once = call.compile_whole, compile_once

        def compile_once() -> object:
            return whole(given, call, once)

    if code is call.outermost and not call.last:
        try:
            return compile_once()
        except Exception as error:
            call.failed = error
            raise
    return compile_once() if given["one_graph"] else _traced_or_left(call, code, compile_once)


def _traced_or_left(call: CallUnderWay, code: CodeType, compile_once: Callable[[], object]) -> object:
    """The compiled frame, under the first settings with which it can be traced. If there are none, this frame runs as
    Python."""
    if code not in call.left:
        for attempt in range(len(call.settings)):
            call.attempt = attempt
            try:
                return compile_once()
            except (Unsupported, UserError):  # PyTorch leaves the frame to Python by itself
                raise
            except Exception as error:
                if interrupt_in(error) is not None:
                    raise
                failed = error
            finally:
                call.attempt = 0
        call.left[code] = failed
    return as_python("left to Python")


if _compile is not None:
    vars(convert_frame)["_compile"] = _compile_in_turn
