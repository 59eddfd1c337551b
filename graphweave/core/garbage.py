"""Python's garbage collector while a function is compiled, and while the compiler is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from graphweave.core import locks

_YOUNG_OBJECTS = 50_000
"""Within a block, the collector looks at young objects once this many were made. Python's own 700 make it look more
than two hundred times in the compilation of two layers."""
_SELDOM = 1_000
"""Collections of a generation after which the next one is collected, too. So many do not occur in a compilation."""

_lock = locks.lock()
_blocks: list[tuple[int, int, int]] = []
"""One entry for each block that is entered, in any thread. The first are the thresholds from before all of them."""


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Within the block, the collector looks at young objects seldom and at old ones not at all.

    A compilation makes hundreds of thousands of objects that live until it ends, and loading PyTorch's compiler and
    ours makes as many that live as long as the process. At its own pace the collector looks at all of them, and at the
    half million of PyTorch's modules, again and again, which is a tenth of the time of compiling and a quarter of the
    time of loading. PyTorch collects what a compilation leaves when it ends. A process that has turned the collector
    off keeps it off. Blocks may overlap in several threads: the last one to end brings back the process's own
    thresholds.
    """
    with _lock:
        before = gc.get_threshold()
        _blocks.append(before)
        if before[0]:
            gc.set_threshold(max(before[0], _YOUNG_OBJECTS), max(before[1], _SELDOM), max(before[2], _SELDOM))
    try:
        yield
    finally:
        with _lock:
            own = _blocks[0]
            _blocks.pop()
            if not _blocks:
                gc.set_threshold(*own)
