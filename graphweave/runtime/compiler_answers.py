"""A compiler's answers about itself, kept on disk: its version and the flags that it accepts.

Asking takes four runs of the compiler, and a process whose kernels are all on disk would run it for nothing else. An
answer is kept by everything that it depends on: the file that runs, what was asked, the processor, and the variables by
which GCC finds its parts. A file that only starts another program, such as a script or `ccache`, says nothing about
that program, so it is asked in each process.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from platformdirs import user_cache_path

from graphweave.core.own_folders import check_own, make_own, read_own
from graphweave.core.settings import settings

Answer = tuple[str, tuple[str, ...]]
"""The version line and the flags."""

_COMPILERS = ("g++", "clang", "c++", "zig")
"""One of these is part of the name of a file that is a compiler itself."""

_VARIABLES = ("GCC_EXEC_PREFIX", "COMPILER_PATH")


def directory() -> Path:
    """The folder of answers."""
    return (settings().cache_dir or user_cache_path("graphweave")) / "compilers"


def answer_of(command: Sequence[str], asked: Sequence[str], ask: Callable[[], Answer | None]) -> Answer | None:
    """The answer on disk, or `ask()`, which is kept unless it is None. `asked` tells what the answer depends on
    besides the compiler. A folder that cannot be used, or is not the user's own, is left alone."""
    program = _program(command)
    if program is None:
        return ask()
    variables = [os.environ.get(name, "") for name in _VARIABLES]
    key = hashlib.sha256(json.dumps([program, *command, *asked, *variables]).encode()).hexdigest()
    path = directory() / f"{key}.json"
    found = _read(path)
    if found is None:
        found = ask()
        if found is not None:
            with suppress(OSError):
                _write(path, found)
    return found


def _program(command: Sequence[str]) -> str | None:
    """Text that identifies the file that runs. None if it is not known to be a compiler itself."""
    found = shutil.which(command[0])
    if found is None:
        return None
    with suppress(OSError):
        path = Path(found).resolve()
        with path.open("rb") as file:
            is_program = file.read(4) == b"\x7fELF"
        if is_program and any(name in path.name for name in _COMPILERS):
            state = path.stat()
            return f"{path} {state.st_size} {state.st_mtime_ns} {state.st_ino}"
    return None


def _read(path: Path) -> Answer | None:
    with suppress(OSError, ValueError):
        check_own(path.parent)
        digest, _, text = read_own(path).partition(b"\n")
        if hashlib.sha256(text).hexdigest().encode() == digest:
            version, flags = json.loads(text)
            return version, tuple(flags)
    return None


def _write(path: Path, answer: Answer) -> None:
    make_own(path.parent)
    text = json.dumps(answer).encode()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="build-") as scratch:
        draft = Path(scratch) / path.name
        draft.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        draft.chmod(0o600)  # the umask may let others write
        os.replace(draft, path)
