"""Where the functions behind an operator run: compiled and remembered, as they are, or as one operator of a trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from graphweave.ops.ends import Features, fields_of
from graphweave.ops.schedule import options_of
from graphweave.udf.run import code_of, is_plain, shared


def performed(key: Hashable, function: Callable[..., Any], *args: Any, schedule: Any = "auto") -> Any:
    """`function(*args)`, compiled for all calls of one key and schedule; as it is inside something compiled, or with
    kernels off."""
    if is_plain():
        return function(*args)
    return shared((key, schedule), function, *args, options=options_of(schedule))


def key_of(functions: tuple[Any, ...], *features: Features) -> tuple[Hashable, ...]:
    """Which calls share compiled code: those of functions of one code, of features of the same names, widths and
    dtypes. What functions of one code may differ in, their closures, PyTorch guards. Nothing is asked under tracing."""
    if torch.compiler.is_compiling():
        return ()
    widths = [tuple([(name, t.shape[1:], t.dtype) for name, t in fields_of(x)]) for x in features]
    return tuple(map(code_of, functions)), *widths
