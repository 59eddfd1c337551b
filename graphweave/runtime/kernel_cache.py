"""Compiled kernels on disk, keyed by everything that made them.

They are entries (`runtime/entries.py`) of three files: KEY.so, KEY.sha256 (the digest of KEY.so) and KEY.cpp (its
text, for people).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.own_folders import in_own_folder
from graphweave.core.spans import LOAD, span
from graphweave.runtime import headers, sources
from graphweave.runtime.entries import Contents, Kind, folder_of
from graphweave.runtime.launch import NativeKernel, open_library
from graphweave.runtime.toolchain import Toolchain, compile_shared, toolchain

log = logger(__name__)

ABI_VERSION = 2
"""Version of the calling convention of `launch.NativeKernel` and of how libraries get threads
(`native/graphweave/parallel.h`); it is raised when either changes."""

_libraries: dict[str, ctypes.CDLL] = {}
_kernels: dict[tuple[str, str], NativeKernel] = {}
_lock = locks.reentrant_lock()
_KIND = Kind(".so", companions=(".cpp",))


def load(text: str, symbol: str) -> NativeKernel:
    """The kernel `symbol` of a C++ text: loaded already in this process, found on disk, or compiled. See
    `launch.NativeKernel`.

    Raises ToolchainError without a compiler, CompileError if the compiler refuses the text.
    """
    key = (key_of(text, toolchain()), symbol)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = NativeKernel(library(text), symbol)
    return kernel


def library(text: str) -> ctypes.CDLL:
    """The shared library of a C++ text. The same text is loaded once per process."""
    tools = toolchain()
    key = key_of(text, tools)
    found = _libraries.get(key)
    if found is None:
        with span(LOAD, key[:12]):
            built = shared_object(text, tools)  # outside the lock, so that several kernels compile at once
            with _lock:
                found = _libraries.get(key)
                if found is None:
                    found = _libraries[key] = open_library(built)
    return found


def forget() -> None:
    """Drop what this process has loaded, so that the next `load` goes to disk. Kernels in use stay valid."""
    with _lock:
        _libraries.clear()
        _kernels.clear()


def directory() -> Path:
    """The folder of cached kernels. It exists once a kernel has been built there."""
    return folder_of("kernels")


@lru_cache(maxsize=1)
def own_version() -> str:
    try:
        return version("graphweave")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "source"


def key_of(text: str, tools: Toolchain) -> str:
    """SHA-256 of the text, the content of the headers, and everything that turns them into machine code.

    Comment lines are left out: they name the user's files, and PyG gives its generated files random names.
    """
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//"))
    parts = (f"graphweave {own_version()} abi {ABI_VERSION}", tools.identity, sources.digest(), code)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def shared_object(text: str, tools: Toolchain) -> Path:
    """The verified shared library of `text` on disk, built if necessary.

    If the cache folder cannot be written, or others could write to it, a temporary folder takes its place, with one
    warning. Raises CacheError if that cannot be written either.
    """
    return in_own_folder(directory(), lambda folder: _find_or_build(text, tools, folder), log)


def _find_or_build(text: str, tools: Toolchain, folder: Path) -> Path:
    def build(target: Path, scratch: Path) -> None:
        _build(text, tools, target, scratch)

    target, found = _KIND.find_or_make(folder, key_of(text, tools), build)
    if found:
        bump("kernel_cache_hits")
        log.info("kernel %s: found in the cache", target.stem[:12])
    return target


def _build(text: str, tools: Toolchain, target: Path, scratch: Path) -> None:
    """Compile in a scratch folder beside the target. The text goes into place first: an error of the compiler names
    it."""
    start = time.perf_counter()
    built, source = scratch / target.name, target.with_suffix(".cpp")
    built.with_suffix(".cpp").write_text(text, encoding="utf-8")
    os.replace(built.with_suffix(".cpp"), source)
    compile_shared(source, built, headers.flags_for(text, tools, target.parent))
    bump("kernel_builds")
    log.info("kernel %s: compiled in %.2f s", target.stem[:12], time.perf_counter() - start)


def contents(folder: Path) -> Contents:
    """The contents of `folder`. Every library is read and compared with its digest. A missing folder is empty."""
    return _KIND.contents(folder)


def evict(folder: Path, bound: int, keep: Path | None = None) -> int:
    """Delete the least recently used kernels until the folder is within `bound` bytes. `keep` always stays, and so do
    files that no kernel's key names.

    Returns the bytes that are left.
    """
    return _KIND.evict(folder, bound, keep)
