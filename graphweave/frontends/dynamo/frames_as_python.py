"""The answer of a hook of PyTorch's compiler for a frame that runs as Python."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo.types import ConvertFrameReturn

_TAKES_REASON = any(field.name == "skip_reason" for field in fields(ConvertFrameReturn))
"""PyTorch 2.13 and newer log why a frame is left to Python."""


def as_python(why: str, *, whole: bool = False) -> ConvertFrameReturn:
    """The frame runs as Python in this call. Frames that it calls may be compiled, unless `whole`."""
    action = _FrameAction.SKIP if whole else _FrameAction.DEFAULT
    reason: dict[str, Any] = {"skip_reason": why} if _TAKES_REASON else {}
    return ConvertFrameReturn(_FrameExecStrategy(action, action), apply_to_code=False, **reason)
