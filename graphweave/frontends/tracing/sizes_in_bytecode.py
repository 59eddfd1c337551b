"""Spares each call of compiled code a detour by which PyTorch reads the sizes that are symbols (PyTorch 2.13).

The bytecode that PyTorch makes for a function reads them by functions that Dynamo must not trace. To switch tracing off
and on around each, as a decorator does, takes two microseconds for every size. To be skipped can as well be a property
of their code.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

from torch._C._dynamo import eval_frame
from torch._dynamo import utils

_NAMES = ("call_size", "call_stride", "call_storage_offset")
_set_strategy: Any = getattr(eval_frame, "set_code_exec_strategy", None)

for _name in _NAMES:
    _function = getattr(getattr(utils, _name, None), "__wrapped__", None)
    if _set_strategy is not None and isinstance(_function, FunctionType):
        _skip = eval_frame._FrameAction.SKIP
        _set_strategy(_function.__code__, eval_frame._FrameExecStrategy(_skip, _skip))  # with all that it calls
        vars(utils)[_name] = _function
