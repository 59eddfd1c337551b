"""What every first compilation of a machine needs, compiled while PyTorch still traces the function.

These are the precompiled header and the libraries that make formats and checksums: on two cores 1.5 s of the compiler's
time that used to come after tracing, which keeps one core busy for as long. On a machine that has them nothing is done.
"""

from __future__ import annotations

import threading

from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.runtime import headers, kernel_cache, sources
from graphweave.runtime.toolchain import toolchain

_log = logger(__name__)

_LIBRARIES = ("formats.cpp", "checksum.cpp")

_begun: set[str] = set()


def begin() -> threading.Thread | None:
    """Starts, once a process and cache folder, a thread that compiles what is missing, and returns it.

    Whoever needs it meanwhile waits for the thread's lock on the file. What fails here fails again where it is needed,
    and is told there.
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
        for name in _LIBRARIES:
            kernel_cache.library(sources.source(name))
    except (GraphweaveError, OSError) as error:
        _log.info("nothing was compiled early: %s", error)
