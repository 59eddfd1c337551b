"""Compiled kernels on disk, keyed by everything that made them.

They are entries (`runtime/entries.py`) of three files: KEY.so, KEY.sha256 (the digest of KEY.so) and KEY.cpp (its
text, for people). Kernels that were compiled together share one library, to which each has a link.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphweave.core import locks
from graphweave.core.counters import bump
from graphweave.core.errors import CompileError
from graphweave.core.log import logger
from graphweave.core.own_folders import in_own_folder
from graphweave.core.spans import LOAD, span
from graphweave.runtime import headers, sources
from graphweave.runtime.entries import Contents, Kind, folder_of, link_or_copy
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
    return libraries([text])[0]


def libraries(texts: Sequence[str]) -> list[ctypes.CDLL]:
    """The shared library of each text. Those that are not on disk are compiled as one text, which takes less time than
    one after the other: the compiler starts and reads the headers once."""
    tools = toolchain()
    keys = [key_of(text, tools) for text in texts]
    new = {key: text for key, text in zip(keys, texts, strict=True) if key not in _libraries}
    if new:
        with span(LOAD, next(iter(new))[:12]):
            built = _shared_objects(new, tools)  # outside the lock, so that several kernels compile at once
            with _lock:
                for key, path in built.items():
                    if key not in _libraries:
                        _libraries[key] = open_library(path)
    return [_libraries[key] for key in keys]


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
    return next(iter(_shared_objects({key_of(text, tools): text}, tools).values()))


def _shared_objects(texts: Mapping[str, str], tools: Toolchain) -> dict[str, Path]:
    """See `shared_object`, for texts and libraries by key."""
    return in_own_folder(directory(), lambda folder: _find_or_build(texts, tools, folder), log)


def _find_or_build(texts: Mapping[str, str], tools: Toolchain, folder: Path) -> dict[str, Path]:
    def build(targets: Sequence[Path], scratch: Path) -> None:
        _build({target: texts[target.stem] for target in targets}, tools, scratch)

    found = {key: _KIND.path(folder, key) for key in texts}
    for target in sorted({*found.values()} - {*_KIND.make_missing(folder, texts, build)}):
        bump("kernel_cache_hits")
        log.info("kernel %s: found in the cache", target.stem[:12])
    return found


def _build(texts: Mapping[Path, str], tools: Toolchain, scratch: Path) -> None:
    """Compile texts, by the places of their libraries, in a scratch folder next to these. The texts go into place
    first: an error of the compiler names them."""
    for target, text in texts.items():
        draft = (scratch / target.name).with_suffix(".cpp")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target.with_suffix(".cpp"))
    if len(texts) == 1 or not _compile_together(texts, tools, scratch):
        for target, text in texts.items():
            what = f"kernel {target.stem[:12]}"
            _compile(target.with_suffix(".cpp"), text, scratch / target.name, what, tools)
    bump("kernel_builds", len(texts))


def _compile_together(texts: Mapping[Path, str], tools: Toolchain, scratch: Path) -> bool:
    """Compile several texts as one, whose library each of them then has a link to. False if the compiler refuses it,
    so that each is to be compiled by itself, which tells the one that is at fault."""
    one, source = "\n".join(texts.values()), scratch / "together.cpp"
    source.write_text(one, encoding="utf-8")
    first, *others = (scratch / target.name for target in texts)
    what = f"kernels {', '.join(target.stem[:12] for target in texts)}"
    try:
        _compile(source, one, first, what, tools)
    except CompileError as error:
        log.info("%s: not compiled as one text: %s", what, error)
        return False
    for other in others:
        link_or_copy(first, other)
    return True


def _compile(source: Path, text: str, built: Path, what: str, tools: Toolchain) -> None:
    start = time.perf_counter()
    compile_shared(source, built, headers.flags_for(text, tools, built.parent.parent), what)
    log.info("%s: compiled in %.2f s", what, time.perf_counter() - start)


def contents(folder: Path) -> Contents:
    """The contents of `folder`. Every library is read and compared with its digest. A missing folder is empty."""
    return _KIND.contents(folder)


def evict(folder: Path, bound: int, keep: Collection[Path] = ()) -> int:
    """Delete the least recently used kernels until the folder is within `bound` bytes. Those in `keep` always stay, and
    so do files that no kernel's key names.

    Returns the bytes that are left.
    """
    return _KIND.evict(folder, bound, keep)
