"""Room on Python's stack for the deep calls of a compilation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_SLOTS = 140_000
"""Places of 8 bytes that the frame of `call_with_room` asks for: more than half of a chunk of 2 MiB, so that it gets
one of its own. Memory that nobody touches costs nothing, and the rest of the chunk holds thousands of frames."""


def call_with_room(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """`function(*args, **kwargs)`, where calls are equally fast at any depth.

    Since version 3.11, Python keeps frames in chunks of 16 KiB. It maps a chunk for the first frame in it and unmaps it
    when that frame returns. So a loop that happens to stand at the end of a chunk maps memory anew for each call that
    it makes, which takes 20 us instead of 0.03. Compilers call deeply: this was a third of the time of some of our
    passes and a tenth of Dynamo's. A frame that asks for much gets a large chunk, in which all deeper calls have room.
    """
    return function(*args, **kwargs)


def _ask_for_room(function: Any) -> None:
    function.__code__ = function.__code__.replace(co_stacksize=_SLOTS)


_ask_for_room(call_with_room)
