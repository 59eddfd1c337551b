"""Compiles what kernels have in common while Python loads PyTorch's compiler and traces, which keeps one core busy.

This is the runtime's own library, which every first call on a machine needs, and the precompiled header once it is due
(`runtime/headers.py`). What is in the cache already is not compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import torch

from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.runtime import headers, kernel_cache, native_library
from graphweave.runtime.compiler_runs import Stoppable
from graphweave.runtime.toolchain import toolchain

_log = logger(__name__)

_begun: set[Path] = set()
"""Cache folders for which this process has already started the thread."""

_work = Stoppable()
_registered: list[bool] = []
"""Not empty once the end of the process stops the threads."""


_GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Files of which there is one where a driver of NVIDIA or AMD runs, the last in WSL."""


def begin_on_new_machine() -> threading.Thread | None:
    """`begin` with `graphweave.compile`, a second or more before a function can be traced.

    Only where nothing has been compiled before by this version: elsewhere this does not run g++. Only where there is no
    GPU, since it is not known yet where tensors will lie. A wrong setting is told later.
    """
    try:
        new = settings().target != "triton" and not headers.folder_of(kernel_cache.directory()).exists()
    except GraphweaveError:
        return None
    return begin() if new and not _may_have_gpu() else None


def _may_have_gpu() -> bool:
    """Whether tensors may lie on a GPU. CUDA is not asked, since a process that asks cannot fork afterwards."""
    return torch.backends.cuda.is_built() and any(Path(name).exists() for name in _GPU_FILES)


def begin() -> threading.Thread | None:
    """Start a thread that compiles what is missing, and return it; None if nothing is.

    The library is sought once for each process and cache folder. A compilation that needs it waits for the thread's
    lock on it. An error in the thread is only logged: it occurs again, and is reported, where the file is needed.
    A process that ends stops the thread.
    """
    folder = kernel_cache.directory()
    if folder in _begun and not _header_is_due(folder):
        return None
    _begun.add(folder)
    return _start(_compile_missing)


def begin_library(text: str) -> threading.Thread:
    """Start a thread that compiles the library of a text which a call will need, and return it."""
    return _start(lambda: _load(text))


def _load(text: str) -> None:
    kernel_cache.library(text)


def _start(work: Callable[[], None]) -> threading.Thread:
    if not _registered:  # atexit is too late: threads are joined before
        threading._register_atexit(_work.stop)  # type: ignore[attr-defined]
        _registered.append(True)
    thread = threading.Thread(target=_compile, args=(work,), name="graphweave-early")
    thread.start()
    return thread


def _header_is_due(folder: Path) -> bool:
    try:
        return headers.is_due(toolchain(), folder)
    except GraphweaveError:
        return False


def _compile(work: Callable[[], None]) -> None:
    try:
        _work.do(work)
    except (GraphweaveError, OSError) as error:
        _log.info("nothing was compiled early: %s", error)


def _compile_missing() -> None:
    tools, folder = toolchain(), kernel_cache.directory()
    kernel_cache.library(native_library.text())
    if headers.is_due(tools, folder):
        headers.precompile(tools, folder)
