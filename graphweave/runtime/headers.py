"""The headers of kernels: a copy where the compiler finds them, and a precompiled header.

Kernels include <graphweave/....h>. A copy of these headers lies next to the kernels, in a folder named by their
content. So a cached kernel text and its headers stay together when another version is installed, and the compiler needs
no path into a package that may be an archive.

With a precompiled header, g++ or zig reads these headers and the standard ones once for each machine instead of once
in each run, which saves 0.3 s of a run, most of it for <immintrin.h>. Making it takes 1.1 s, as long as four runs
without it, and 30 MB on disk for each compiler and its flags. So it is made only on a machine that compiles more than
a model or two, and no kernel waits for it. The machine code is the same with and without it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from graphweave.core.log import logger
from graphweave.core.own_folders import check_own, make_own, read_own
from graphweave.runtime import sources, zig
from graphweave.runtime.toolchain import Toolchain, run_compiler

log = logger(__name__)

_ALONE = ("draws.h", "float16.h", "parallel.h")
"""Headers that are left out of the precompiled header: kernels do not include the first, not every compiler accepts the
second, and the third exports a function, which a library without parallel loops should not have."""

_NAME = re.compile("[0-9a-f]{16}")
"""The name of a folder of headers."""

_UNUSED_SECONDS = 24 * 3600
"""Headers of other versions are deleted if no process has compiled with them for this many seconds."""

_RUNS_WORTH_A_HEADER = 8
"""A precompiled header is made once this many runs of the compiler have read the headers themselves."""

_refused: set[Path] = set()
"""Precompiled headers that could not be made in this process. They are not tried again."""

_checked: set[Path] = set()
"""Precompiled headers that this process has compared with their digests."""


def flags_for(text: str, tools: Toolchain, folder: Path) -> tuple[str, ...]:
    """Flags that let `tools` compile `text`: the folder of the headers, which are copied to `folder` if necessary, and
    the precompiled header if there is one.

    Empty for a text that includes none of our headers. The precompiled header is not used for clang++, with which it
    is not tested, and for sanitized kernels, which are compiled from their text alone, so that a missing include is
    found.
    """
    included = sources.included(text)
    if not included:
        return ()
    root = _copied(folder)
    found = ("-I", str(root))
    if not _may_precompile(tools):
        return found
    header = _header(tools, root)
    if _intact(header, _text()):
        return (*found, "-include", str(header))
    if any(b"<immintrin.h>" in sources.headers()[name] for name in included):
        _note_run(header)
    return found


def is_due(tools: Toolchain, folder: Path) -> bool:
    """Whether the compiler has so often read the headers themselves that a precompiled header is worth its time."""
    if not _may_precompile(tools):
        return False
    header = _header(tools, folder_of(folder))
    try:
        return header not in _refused and _runs(header).stat().st_size >= _RUNS_WORTH_A_HEADER
    except OSError:
        return False


def precompile(tools: Toolchain, folder: Path) -> None:
    """Make the precompiled header in `folder` if it is not there intact."""
    if not _may_precompile(tools):
        return
    root = _copied(folder)
    header = _header(tools, root)
    make_own(header.parent)
    with FileLock(header.with_suffix(".lock")):
        if _intact(header, _text()):
            return
        if _make(tools, root, header, _text()):
            _runs(header).unlink(missing_ok=True)
        else:
            _refused.add(header)


def _may_precompile(tools: Toolchain) -> bool:
    return tools.precompiles and not any(flag.startswith("-fsanitize") for flag in tools.flags)


def include_flags(folder: Path) -> tuple[str, ...]:
    """The flags for the folder of the headers, which are copied to `folder` if necessary."""
    return ("-I", str(_copied(folder)))


def folder_of(folder: Path) -> Path:
    """The folder within `folder` that holds `graphweave/*.h` of this version, if anything has been compiled there."""
    return folder / "headers" / sources.digest()[:16]


def _copied(folder: Path) -> Path:
    """The folder that holds `graphweave/*.h`, with the content that this process has read."""
    root = folder_of(folder)
    make_own(root)
    if not _complete(root):
        with FileLock(root.with_suffix(".lock")):
            if not _complete(root):
                _write(root)
                _tidy(root)
    with suppress(OSError):  # a read-only cache may still be used
        os.utime(root)
    return root


def _complete(root: Path) -> bool:
    try:
        check_own(root / "graphweave")
        return all(read_own(root / "graphweave" / name) == text for name, text in sources.headers().items())
    except OSError:
        return False


def _write(root: Path) -> None:
    make_own(root / "graphweave")
    with tempfile.TemporaryDirectory(dir=root, prefix="build-") as scratch:
        for name, content in sources.headers().items():
            draft = Path(scratch) / name
            draft.write_bytes(content)
            draft.chmod(0o600)  # the umask may let others write
            os.replace(draft, root / "graphweave" / name)


def _tidy(root: Path) -> None:
    """Delete unused headers of other versions, 40 MB each."""
    for other in root.parent.iterdir():
        with suppress(OSError):  # another process deletes it, too
            made = _NAME.fullmatch(other.name) is not None and other.is_dir()
            if made and other != root and time.time() - other.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def _text() -> str:
    return "".join(f"#include <graphweave/{name}>\n" for name in sources.headers() if name not in _ALONE)


def _header(tools: Toolchain, root: Path) -> Path:
    """The place of the header next to its precompiled form."""
    key = hashlib.sha256("\0".join((tools.identity, sources.digest(), _text())).encode()).hexdigest()[:16]
    return root / key / "kernels.h"


def _runs(header: Path) -> Path:
    """The file that has a byte for each run of the compiler which has read the headers themselves."""
    return header.with_name("runs")


def _note_run(header: Path) -> None:
    with suppress(OSError):  # a read-only cache may still be used
        make_own(header.parent)
        with _runs(header).open("ab") as file:
            file.write(b".")


def _intact(header: Path, text: str) -> bool:
    """Whether the header is `text`, and the precompiled form is as its compiler wrote it. Each process reads the whole
    file once to find out."""
    compiled, digest = header.with_name("kernels.h.gch"), header.with_name("kernels.h.sha256")
    if not (header.exists() and compiled.exists()):
        return False
    if header not in _checked:
        try:
            if read_own(header) != text.encode():
                return False
            if hashlib.sha256(read_own(compiled)).hexdigest().encode() != read_own(digest):
                return False
        except OSError:
            return False
        _checked.add(header)
    return True


def _make(tools: Toolchain, root: Path, header: Path, text: str) -> bool:
    """Write the header, and move its precompiled form into place once it is complete. False if it cannot be made."""
    header.write_text(text, encoding="ascii")
    header.chmod(0o600)  # the umask may let others write
    with tempfile.TemporaryDirectory(dir=header.parent, prefix="build-") as scratch:
        draft = Path(scratch) / "kernels.h.gch"
        flags = (*tools.flags, *zig.HEADER_FLAGS) if zig.is_zig(tools.command) else tools.flags
        command = (*tools.command, *flags, "-I", str(root), "-x", "c++-header", str(header), "-o", str(draft))
        try:
            done = run_compiler(command, what="the precompiled header")
        except subprocess.TimeoutExpired:
            return False
        if done.returncode != 0:
            log.info("no precompiled header, kernels compile more slowly: %s", done.stderr[-400:])
            return False
        digest = Path(scratch) / "kernels.h.sha256"
        digest.write_text(hashlib.sha256(draft.read_bytes()).hexdigest(), encoding="ascii")
        for file in (digest, draft):
            file.chmod(0o600)
            os.replace(file, header.with_name(file.name))
    return True
