"""Folders whose files this process may run: they are the user's own, and nobody else may write to them.

Kernels are libraries and modules that are loaded and run, and data that PyG keeps is read by pickle. A digest next
to such a file proves nothing if somebody else could write both. So folders are made for the user alone (0700, each of
them, whatever the umask), and a folder or file is used only if it belongs to the user or to root, no group and nobody
else may write to it, and no folder around it lets everybody put another in its place.
"""

from __future__ import annotations

import atexit
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from logging import Logger
from pathlib import Path
from typing import TypeVar

from graphweave.core import locks
from graphweave.core.errors import CacheError
from graphweave.core.log import warn_once

T = TypeVar("T")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_temporary: tuple[int, Path] | None = None
"""The process that made the temporary folder, and the folder."""
_lock = locks.lock()


def make_own(folder: Path) -> None:
    """Make `folder` and the missing folders above it, for the user alone. PermissionError if others could put files
    there; OSError if it cannot be made."""
    missing = []
    at = folder
    while not at.is_dir() and at != at.parent:
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        with suppress(FileExistsError):  # another process made it, or it is a file: the check below says so
            each.mkdir(mode=0o700)
    check_own(folder)


def check_own(folder: Path) -> None:
    """PermissionError if somebody else could have put files into `folder`; OSError if it is none."""
    why = why_not_own(folder)
    if why is not None:
        raise PermissionError(errno.EPERM, why, str(folder))


def why_not_own(folder: Path) -> str | None:
    """The reason why somebody else could have put files into `folder`; None if nobody could. OSError if it is none."""
    found = folder.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    why = _why_others_could_write(found)
    if why is not None:
        return why
    for above in folder.resolve().parents:
        if _temporary is not None and above == _temporary[1]:
            return None  # the last resort of this process, made a moment ago
        mode = above.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"everybody may replace it, since {above} has mode {stat.S_IMODE(mode):04o}"
    return None


def read_own(path: Path) -> bytes:
    """The content of a file. PermissionError if somebody else could have written it, or if it is only a link to
    one."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
        why = _why_others_could_write(os.fstat(file.fileno()))
        if why is not None:
            raise PermissionError(errno.EPERM, why, str(path))
        return file.read()


def _why_others_could_write(found: os.stat_result) -> str | None:
    if not hasattr(os, "geteuid"):  # Windows, whose modes say nothing
        return None
    if found.st_uid not in (0, os.geteuid()):  # root could write to any other one as well
        return f"it belongs to user {found.st_uid}, not to {os.geteuid()}"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write to it, since it has mode {stat.S_IMODE(found.st_mode):04o}"
    return None


def temporary_folder() -> Path:
    """A folder for this process alone, which is removed when the process ends. A forked process gets another one."""
    global _temporary
    with _lock:
        if _temporary is None or _temporary[0] != os.getpid():
            _temporary = os.getpid(), Path(tempfile.mkdtemp(prefix="graphweave-")).resolve()
            atexit.register(_remove, *_temporary)
        return _temporary[1]


def _remove(process: int, folder: Path) -> None:
    if os.getpid() == process:  # not in a child, which inherits the registration
        shutil.rmtree(folder, ignore_errors=True)


def in_own_folder(folder: Path, use: Callable[[Path], T], log: Logger) -> T:
    """`use(folder)`, or, with one warning, `use` of a folder for this process alone where that raises OSError: the
    folder cannot be written, or others could write to it. CacheError if that one cannot be written either."""
    try:
        return use(folder)
    except OSError as error:
        warn_once(
            f"cannot keep kernels in {folder} ({error.strerror or error}): using a temporary directory, so they are "
            "compiled again next time. Set GRAPHWEAVE_CACHE_DIR to a writable directory that is yours alone (chmod "
            "700).",
            log,
        )
    try:
        return use(temporary_folder() / folder.name)
    except OSError as error:
        raise CacheError(
            f"expected a writable directory for kernels (got {error}). Set GRAPHWEAVE_CACHE_DIR or TMPDIR."
        ) from error
