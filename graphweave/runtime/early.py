"""Compiles what every first compilation on a machine needs while Python loads PyTorch's compiler and traces.

These are the precompiled header and the runtime's own library. They take 2.4 s of compiler time,
and loading and tracing keep only one core busy. If they are in the cache, nothing is done.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.runtime import headers, kernel_cache, native_library
from graphweave.runtime.toolchain import toolchain

_log = logger(__name__)

_begun: set[str] = set()
"""Cache folders for which this process has already started the thread."""


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
    """Start a thread that compiles what is missing, once for each process and cache folder, and return it.

    A compilation that needs one of the files waits for the thread's lock on it. An error in the thread is only logged:
    it occurs again, and is reported, where the file is needed.
    """
    folder = str(kernel_cache.directory())
    if folder in _begun:
        return None
    _begun.add(folder)
    thread = threading.Thread(target=_compile, name="graphweave-early")
    thread.start()
    return thread


def _compile() -> None:
    """Compile both at the same time where a core is left for the thread that loads and traces."""
    try:
        tools = toolchain()
        with ThreadPoolExecutor(1 if (os.cpu_count() or 1) <= 2 else 2) as pool:
            header = pool.submit(headers.precompile, tools, kernel_cache.directory())
            pool.submit(kernel_cache.library, native_library.text()).result()
            header.result()
    except (GraphweaveError, OSError) as error:
        _log.info("nothing was compiled early: %s", error)
