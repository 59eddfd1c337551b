"""How many threads kernels run on: as many as PyTorch uses, but one in a forked process.

A fork copies the state of an OpenMP pool but none of its threads, so work that is given to the pool is never done.
Children of a process that has run kernels therefore use one thread, even for PyTorch's own operations, as PyTorch does
in the workers of a DataLoader. `core/locks.py` does the same for locks.
"""

from __future__ import annotations

import os

import torch

_pool_used = False
_forked = False


def num_threads(wanted: int | None = None) -> int:
    """The number of threads for the next parallel region: `wanted`, or as many as PyTorch uses."""
    global _pool_used
    if _forked:
        return 1
    _pool_used = True
    return torch.get_num_threads() if wanted is None else wanted


def _in_child() -> None:
    global _forked
    if _pool_used:
        _forked = True
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
