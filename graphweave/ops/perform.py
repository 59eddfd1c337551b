"""Where the functions behind an operator run: compiled and remembered, as they are, or as one operator of a trace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from graphweave.core.edge_functions import Features, fields_of
from graphweave.udf.run import code_of, is_plain, shared


def performed(key: Hashable, function: Callable[..., object], *args: object, schedule: object = "auto") -> Any:
    """`function(*args)`, compiled for all calls of one key and schedule; as it is inside something compiled, or with
    kernels off."""
    if is_plain():
        return function(*args)
    return shared((key, schedule), function, *args, options=options_of(schedule))


def key_of(functions: tuple[object, ...], *features: Features) -> tuple[Hashable, ...]:
    """A key that is equal for calls that share compiled code: the code of their functions is the same, and so are
    names, widths and dtypes of their features. PyTorch's guards check the closures, in which functions of one code may
    differ. Under tracing the key is empty."""
    if torch.compiler.is_compiling():
        return ()
    widths = [tuple([(name, t.shape[1:], t.dtype) for name, t in fields_of(x)]) for x in features]
    return tuple(map(code_of, functions)), *widths


def options_of(schedule: object) -> Mapping[str, object] | None:
    """`schedule` as an option of `graphweave.compile`."""
    return None if schedule == "auto" else {"schedule": schedule}
