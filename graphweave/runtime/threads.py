"""The threads of kernels: those of the OpenMP runtime that PyTorch has loaded, as many as PyTorch uses.

Kernels enter the runtime by its C function `GOMP_parallel`, which GCC's, LLVM's and Intel's runtimes all have. So they
share PyTorch's threads whatever compiler made them, and need no support for OpenMP from it.

A fork copies the state of an OpenMP pool but none of its threads, so work that is given to the pool is never done.
Children of a process that has run kernels therefore use one thread, even for PyTorch's own operations, as PyTorch does
in the workers of a DataLoader. `core/locks.py` does the same for locks.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

import torch

from graphweave.core.log import logger

_log = logger(__name__)

_OPENMP_NAMES = ("libgomp", "libiomp5", "libomp")
"""Prefixes of the file names of OpenMP runtimes."""

_pool_used = False
_forked = False


@dataclass(frozen=True, slots=True)
class Pool:
    """The OpenMP runtime that PyTorch has loaded from `file`. `enter` is its `GOMP_parallel`."""

    file: Path
    enter: ctypes._FuncPointer


def loaded_files() -> set[Path]:
    """The files that are mapped into this process. Empty on systems other than Linux."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return set()
    lines = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
    return {Path(words[5]) for words in lines if len(words) == 6}


def loaded_openmp() -> tuple[Path, ...]:
    """Files of OpenMP runtimes that are mapped into this process. Empty on systems other than Linux."""
    return tuple(sorted(path for path in loaded_files() if path.name.startswith(_OPENMP_NAMES)))


def _openmp_file() -> Path | None:
    """The file of PyTorch's OpenMP runtime. Other packages (scikit-learn) may have loaded other runtimes, whose threads
    PyTorch does not use."""
    package = Path(torch.__file__).parent
    folders = (package / "lib", package.parent / "torch.libs")
    loaded = loaded_openmp()
    bundled = [path for path in loaded if path.parent in folders]
    system = [path for path in loaded if not path.parent.name.endswith(".libs")]
    on_disk = (p for folder in folders for name in _OPENMP_NAMES for p in sorted(folder.glob(f"{name}*")))
    return next(chain(bundled, system, on_disk), None)


@lru_cache(maxsize=1)
def find_pool() -> Pool | None:
    """PyTorch's OpenMP runtime. If it is None, kernels run on one thread. A runtime that nobody has loaded is not used:
    the process would then have two."""
    file = _openmp_file()
    if file is not None:
        try:
            return Pool(file, ctypes.CDLL(str(file), mode=os.RTLD_NOLOAD).GOMP_parallel)
        except (OSError, AttributeError) as error:
            _log.info("kernels run on one thread, as the OpenMP runtime %s cannot be entered: %s", file, error)
    return None


def lend_threads(library: ctypes.CDLL) -> None:
    """Let the parallel loops of a native library, if it has any (`native/graphweave/parallel.h`), use the pool."""
    pool = find_pool()
    if pool is not None and hasattr(library, "gw_use_threads"):
        library.gw_use_threads(pool.enter)


def num_threads(wanted: int | None = None) -> int:
    """The number of threads for the next parallel loop: `wanted`, or as many as PyTorch uses."""
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
