"""Compiles what every first compilation on a machine needs while PyTorch still traces the function.

These are the precompiled header and the runtime's own library. They take 1.5 s of compiler time on
two cores, of which tracing keeps only one busy. If they are in the cache, nothing is done.
"""

from __future__ import annotations

import threading

from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.runtime import headers, kernel_cache, native_library
from graphweave.runtime.toolchain import toolchain

_log = logger(__name__)

_begun: set[str] = set()
"""Cache folders for which this process has already started the thread."""


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
    try:
        headers.precompile(toolchain(), kernel_cache.directory())
        kernel_cache.library(native_library.text())
    except (GraphweaveError, OSError) as error:
        _log.info("nothing was compiled early: %s", error)
