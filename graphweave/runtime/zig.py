"""The C++ compiler of the package `ziglang`, which pip installs on a machine that has no other one.

`zig c++` is clang with its own headers of the C++ library (libc++) and of glibc. Its usual way to link would first
compile libc++ itself and what else a program could need, which takes a minute of one core. Kernels and the runtime's
library use nothing of a C++ library beyond its templates and the functions that every one has, such as `operator new`.
So they are linked in a step of its own, with the libraries that PyTorch has loaded into this process. A text that needs
more, such as `std::mutex`, is linked in zig's way.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from graphweave.core.log import logger
from graphweave.core.own_folders import in_own_folder, make_own
from graphweave.runtime.entries import folder_of
from graphweave.runtime.threads import loaded_files

_log = logger(__name__)

_NAMES = ("zig", "ziglang")
"""The program, and the Python module that runs it."""

_SUBCOMMANDS = ("c++", "cc", "version")
"""The subcommands of zig that are used here."""

THIS_MACHINE = f"{platform.machine()}-linux-gnu.2.28"
"""The target that kernels are compiled for. It is named so that zig takes its own headers even where the system has
some; 2.28 is the glibc for which PyTorch's wheels are made."""

HEADER_FLAGS = ("-Xclang", "-fno-pch-timestamp")
"""Flags for a precompiled header. It holds as long as the headers have the same content, whenever they were written."""

_LIBRARIES = ("libstdc++.so", "libgcc_s.so", "libc.so", "libm.so", "ld-linux")
"""Prefixes of the file names of libraries that kernels may use."""


def flags(target: str) -> tuple[str, ...]:
    """Flags with which zig compiles for `target` as other compilers do."""
    # libc++ throws what only libc++ itself has, such as where a vector would be longer than memory. No kernel catches
    # anything, so the process ends there with and without exceptions.
    aborts = ("-fno-exceptions", "-D_LIBCPP_VERBOSE_ABORT(...)=__builtin_abort()")
    return (*_target_flags(target), "-fomit-frame-pointer", *aborts)


def _target_flags(target: str) -> tuple[str, ...]:
    """The flags of a target, for compiling and linking. By default zig would keep debugging information."""
    return ("-target", target, "-g0")


def installed() -> tuple[str, ...] | None:
    """The command of the compiler in the package `ziglang`; None if the package is not installed."""
    spec = find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        return None
    return (str(Path(spec.submodule_search_locations[0]) / "zig"), "c++")


def is_zig(command: Sequence[str]) -> bool:
    """Whether a command runs zig, as `zig c++` and `python -m ziglang c++` do."""
    return _subcommand(command) is not None


def with_subcommand(command: Sequence[str], name: str) -> tuple[str, ...]:
    """The command `zig name` for the zig of `command`, without the flags after its subcommand."""
    return (*command[: _subcommand(command)], name)


def _subcommand(command: Sequence[str]) -> int | None:
    """The place of zig's subcommand in a command; None if the command does not run zig."""
    pairs = enumerate(pairwise(command), start=1)
    return next((at for at, (word, then) in pairs if Path(word).name in _NAMES and then in _SUBCOMMANDS), None)


def level_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """The level of optimisation among `flags`, spelled for clang itself: zig turns -O3 into -O2."""
    return tuple(word for flag in flags if flag.startswith("-O") for word in ("-Xclang", flag))


def arch_flag(arch: str) -> str:
    """The flag for a processor, whose name zig spells with underscores: x86_64_v3."""
    return f"-march={arch.replace('-', '_')}"


def link_command(command: Sequence[str], compiled: Path, out: Path) -> tuple[str, ...]:
    """The command that makes the shared library `out` of an object file, with libraries that are there. It fails if
    they do not have all that is used."""
    libraries = sorted(str(path) for path in loaded_files() if path.name.startswith(_LIBRARIES))
    flags = ("-O3", "-shared", "-nostdlib", "-Wl,-z,defs")
    return (*c_link_command(command, THIS_MACHINE), *flags, str(compiled), *libraries, "-o", str(out))


def c_link_command(command: Sequence[str], target: str) -> tuple[str, ...]:
    """The beginning of a command that links what needs the library of C alone."""
    return (*with_subcommand(command, "cc"), *_target_flags(target))


def whole_link_command(command: Sequence[str], compiled: Path, out: Path) -> tuple[str, ...]:
    """The same, with a libc++ that zig compiles if it has not yet done so on this machine."""
    flags = (*_target_flags(THIS_MACHINE), "-O3", "-shared")
    return (*with_subcommand(command, "c++"), *flags, str(compiled), "-o", str(out))


@contextmanager
def folders(command: Sequence[str]) -> Iterator[dict[str, str]]:
    """Environment variables for one run of `command`: for zig, the folders of its two caches, else none.

    They go to a folder that is deleted after the run, since zig would keep every object file, which nothing reads
    again. What zig compiles of its own libraries to link with them stays in a folder of our cache.
    """
    if not is_zig(command):
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="graphweave-zig-") as scratch:
        needs_libraries = "-shared" in command and "-nostdlib" not in command
        kept = in_own_folder(folder_of("zig"), _make, _log) if needs_libraries else scratch
        yield {"ZIG_GLOBAL_CACHE_DIR": str(kept), "ZIG_LOCAL_CACHE_DIR": scratch}


def _make(folder: Path) -> Path:
    make_own(folder)
    with tempfile.TemporaryFile(dir=folder):  # a folder that is there may be read-only
        return folder
