"""Compiled kernels on disk, keyed by everything that made them.

A key owns three files: KEY.so, KEY.sha256 (the digest of KEY.so) and KEY.cpp (its text, for people). A library is
loaded only if its digest matches, so a truncated or altered file is rebuilt, never executed. Writers hold KEY.lock and
move finished files into place, so that any number of processes may share a directory; readers need no lock. All of
this holds in a folder of the user's own (`core/own_folders.py`); another one is not used.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.log import logger
from graphweave.core.own_folders import check_own, in_own_folder, make_own, read_own
from graphweave.core.settings import settings
from graphweave.core.spans import LOAD, span
from graphweave.runtime import headers, sources
from graphweave.runtime.launch import NativeKernel, open_library
from graphweave.runtime.toolchain import Toolchain, compile_shared, toolchain

log = logger(__name__)

ABI_VERSION = 2
"""Version of the calling convention of `launch.NativeKernel` and of how libraries get threads
(`native/graphweave/parallel.h`); it is raised when either changes."""

_libraries: dict[str, ctypes.CDLL] = {}
_kernels: dict[tuple[str, str], NativeKernel] = {}
_lock = locks.reentrant_lock()
_KEY = re.compile("[0-9a-f]{64}")


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
    return (settings().cache_dir or user_cache_path("graphweave")) / "kernels"


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
    target = folder / f"{key_of(text, tools)}.so"
    if target.exists():
        check_own(folder)
        if _intact(target):
            return _used(target)
    make_own(folder)
    with FileLock(target.with_suffix(".lock")):
        if _intact(target):  # another process built it while we waited
            return _used(target)
        if target.exists():
            log.warning("%s is damaged, or others could write to it: building it again", target)
            bump("kernel_damaged")
        _build(text, tools, target)
    _keep_within(folder, settings().cache_bytes, target)
    return target


def _used(target: Path) -> Path:
    bump("kernel_cache_hits")
    log.info("kernel %s: found in the cache", target.stem[:12])
    with suppress(OSError):  # a read-only cache may still be used
        os.utime(target)
    return target


def _intact(target: Path) -> bool:
    try:
        expected = read_own(target.with_suffix(".sha256"))
        return hashlib.sha256(read_own(target)).hexdigest().encode() == expected
    except OSError:
        return False


def _build(text: str, tools: Toolchain, target: Path) -> None:
    """Compile in a scratch folder beside the target, then move the digest and the library into place."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="build-") as scratch:
        built, source = Path(scratch) / target.name, target.with_suffix(".cpp")
        built.with_suffix(".cpp").write_text(text, encoding="utf-8")
        os.replace(built.with_suffix(".cpp"), source)
        compile_shared(source, built, headers.flags_for(text, tools, target.parent))
        digest = built.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(built.read_bytes()).hexdigest(), encoding="ascii")
        # not flushed to disk: after a power cut, a file that is half written fails its digest
        for path in (digest, built):
            path.chmod(0o700)  # the umask may let others write
            os.replace(path, target.with_suffix(path.suffix))
    bump("kernel_builds")
    log.info("kernel %s: compiled in %.2f s", target.stem[:12], time.perf_counter() - start)


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a folder of kernels: their number, the bytes of their files, and the damaged libraries."""

    kernels: int
    bytes: int
    damaged: tuple[Path, ...]


def contents(folder: Path) -> Contents:
    """The contents of `folder`. Every library is read and compared with its digest. A missing folder is empty."""
    sizes: list[int] = []
    damaged: list[Path] = []
    for path in sorted(folder.glob("*.so")):
        try:
            sizes.append(_bytes_of(path))
        except FileNotFoundError:
            continue  # another process is evicting
        if not _intact(path):
            damaged.append(path)
    return Contents(len(sizes), sum(sizes), tuple(damaged))


def _bytes_of(library: Path) -> int:
    """The size of a library and its text, in bytes."""
    return sum(file.stat().st_size for s in (".so", ".cpp") if (file := library.with_suffix(s)).exists())


_room: dict[tuple[Path, int], int] = {}
"""For each folder and bound, the bytes that this process may still add before it scans the folder again."""


def _keep_within(folder: Path, bound: int, added: Path) -> None:
    """Keep the folder within `bound` after a kernel was `added`. Each process may exceed the bound by a sixteenth: in a
    large cache, a scan of all kernels after each compilation would take longer than the compilation."""
    room = _room.get((folder, bound), 0) - _bytes_of(added)
    _room[folder, bound] = room if room > 0 else min(bound - evict(folder, bound, keep=added), bound >> 4)


def evict(folder: Path, bound: int, keep: Path | None = None) -> int:
    """Delete the least recently used kernels until the folder is within `bound` bytes. `keep` always stays, and so do
    files that no kernel's key names.

    Returns the bytes that are left.
    """
    used: dict[str, float] = {}
    sizes: dict[str, int] = defaultdict(int)  # of each library and its text, by key
    with os.scandir(folder) as files:  # makes no Path of each file, of which a full cache has 200,000
        for file in files:
            key, _, suffix = file.name.rpartition(".")
            if suffix in ("so", "cpp") and _KEY.fullmatch(key):
                with suppress(FileNotFoundError):  # another process is evicting too
                    found = file.stat()
                    sizes[key] += found.st_size
                    if suffix == "so":
                        used[key] = found.st_mtime
    total = sum(sizes[key] for key in used)
    for key in sorted(used, key=lambda key: (used[key], key)):
        if total <= bound:
            break
        if keep is not None and key == keep.stem:
            continue
        for suffix in (".so", ".sha256", ".cpp", ".lock"):
            (folder / (key + suffix)).unlink(missing_ok=True)
        total -= sizes[key]
    return total
