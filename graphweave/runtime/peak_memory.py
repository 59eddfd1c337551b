"""The memory that a piece of work takes at its peak, beyond what the process held before."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable

import torch

from graphweave.core import process_memory
from graphweave.runtime import arena


def peak_extra_bytes(work: Callable[[], object]) -> int | None:
    """Run `work`, and return the largest number of bytes that it took on the devices in use; None if the system cannot
    tell.

    On a GPU this is what PyTorch allocates there. On the CPU it is the resident size of the process, after freed memory
    and unused buffers have gone back to the system.
    """
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        base = torch.cuda.memory_allocated()
        work()
        return max(torch.cuda.max_memory_allocated() - base, 0)
    if not process_memory.is_told():
        work()
        return None
    arena.trim()
    ctypes.CDLL(None).malloc_trim(0)
    base = process_memory.begin_peak()
    work()
    return max(process_memory.peak_bytes() - base, 0)
