"""The memory that a piece of work takes at its peak, beyond what the process held before."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from graphweave.runtime import arena


def peak_extra_bytes(work: Callable[[], Any]) -> int | None:
    """Run `work`, and return the largest number of bytes that it took on the devices in use; None if the system cannot
    tell.

    On a GPU this is what PyTorch allocates there. On the CPU it is the resident size of the process. Freed memory and
    unused buffers go back to the system first; then the resident size is the base, and the high-water mark is reset (by
    writing 5 to /proc/self/clear_refs). This works only on Linux.
    """
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        work()
        return max(torch.cuda.max_memory_allocated() - base, 0)
    if not sys.platform.startswith("linux"):
        work()
        return None
    arena.trim()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    base = _status("VmRSS")
    work()
    return max(_status("VmHWM") - base, 0)


def _status(key: str) -> int:
    """The value of a line of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":"))
