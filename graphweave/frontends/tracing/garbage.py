"""Python's garbage collector while a function is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 50_000
"""While a function is compiled, the collector looks at young objects once this many were made. Python's own 700 make it
look more than two hundred times in the compilation of two layers."""
_SELDOM = 1_000
"""Collections of a generation after which the next one is collected, too. So many do not occur in a compilation."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Within the block, the collector looks at young objects seldom and at old ones not at all.

    A compilation makes hundreds of thousands of objects that live until it ends. At its own pace the collector looks at
    all of them, and at the half million of PyTorch's modules, again and again, which is a tenth of the time of
    compiling. PyTorch collects what a compilation leaves when it ends. A process that has turned the collector off
    keeps it off.
    """
    before = gc.get_threshold()
    if not before[0]:
        yield
        return
    gc.set_threshold(max(before[0], _YOUNG_OBJECTS), max(before[1], _SELDOM), max(before[2], _SELDOM))
    try:
        yield
    finally:
        gc.set_threshold(*before)
