"""Polyfills in traces of plain `torch.compile`, where none of our code runs around the call.

There a function cannot be replaced in its library, since it would stay replaced for others, and compiled code would ask
for the polyfill at each later call. Instead, where the tracer would follow the original, it follows the polyfill. What
is guarded is the original.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from torch._dynamo import symbolic_convert
from torch._dynamo.variables import UserFunctionVariable

from graphweave.frontends.dynamo.library_polyfills import POLYFILLS


@contextmanager
def followed() -> Iterator[None]:
    """Within the block, traces follow polyfills in place of the functions of libraries that are imported."""
    translator = getattr(symbolic_convert, "InliningInstructionTranslator", None)  # absent in some versions
    original = translator.__dict__.get("inline_call") if translator is not None else None
    polyfills: dict[Any, Any] = dict(_by_code())
    if translator is None or not isinstance(original, classmethod) or not polyfills:
        yield
        return
    inline = original.__func__

    def inline_call(cls: Any, parent: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        # other kinds of functions, such as those made in a trace, may have no code yet
        made = getattr(func, "fn", None) if isinstance(func, UserFunctionVariable) else None
        polyfill = polyfills.get(getattr(made, "__code__", None))
        return inline(cls, parent, func if polyfill is None else UserFunctionVariable(polyfill), *args, **kwargs)

    translator.inline_call = classmethod(inline_call)
    try:
        yield
    finally:
        translator.inline_call = original


def _by_code() -> Iterator[tuple[CodeType, Callable[..., Any]]]:
    """The code of each original, and its polyfill."""
    for module, path, polyfill in POLYFILLS:
        found: Any = sys.modules.get(module)
        for name in path:
            found = getattr(found, name, None)
            if name == "__wrapped__" and path[-1] == "__code__":
                owner = found
        if isinstance(polyfill, CodeType):
            if isinstance(found, CodeType):
                yield found, FunctionType(polyfill, owner.__globals__, owner.__name__, owner.__defaults__)
        elif hasattr(found, "__code__"):
            yield found.__code__, polyfill
