"""The C++ compiler of this machine and its flags."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from graphweave.core.errors import CompileError, ToolchainError
from graphweave.core.log import logger
from graphweave.core.settings import settings
from graphweave.core.spans import COMPILER, span
from graphweave.runtime import compiler_runs, zig
from graphweave.runtime.compiler_answers import Answer, answer_of

log = logger(__name__)

_REQUIRED: tuple[str, ...] = ("-std=c++17", "-fPIC", "-O3")
"""Flags that a compiler must accept."""

# -ffast-math is left out: NaN, infinities, signed zeros and the order of sums are part of what a kernel promises.
# Contraction is off too: the backward recomputes messages and compares them with the maximum that the forward kept, so
# an expression must have the same bits in every kernel. Kernels spell out the multiply-adds that pay off.
_WANTED = ("-ffp-contract=off", "-mprefer-vector-width=512", "-fno-math-errno", "-fno-trapping-math")
"""Flags that are used if the compiler accepts them."""

# With the first optimisation, which interleaves two edges, GCC 12 does not vectorise the inner loop over lanes. With
# the second, GCC 12.2 for AVX-512 computes wrong sums from the lanes of a vector that has just been stored. Kernels
# spell out their vectors.
_WANTED_OF_GCC = ("-fno-loop-unroll-and-jam", "-fno-tree-slp-vectorize")
"""Flags that are used if the compiler is GCC and accepts them."""

REMEDY = 'Install g++ or clang++, or run `pip install "graphweave[toolchain]"`, or set GRAPHWEAVE_CXX to a compiler.'
"""Advice where no compiler is found."""

_MAX_COMPILE_SECONDS = 600
"""A run of the compiler is stopped after this many seconds."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A working compiler."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...]
    cpu: str
    target: str | None = None
    """The machines that it compiles for, as zig names them; None stands for this one."""

    @property
    def identity(self) -> str:
        """Everything besides the text that determines the machine code. It is part of the key of every cached
        kernel."""
        executable = shutil.which(self.command[0]) or self.command[0]
        return "\n".join((executable, *self.command[1:], self.version, *self.flags, self.cpu))

    @property
    def precompiles(self) -> bool:
        """Whether our precompiled header (`runtime/headers.py`) is made for this compiler."""
        return zig.is_zig(self.command) or "clang" not in self.version


def run_compiler(
    command: tuple[str, ...], text: str = "", what: str = "its version and flags"
) -> subprocess.CompletedProcess[str]:
    """Run a command of the compiler, with messages in English, and time it as `what`. Raises TimeoutExpired after 10
    minutes."""
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # a preloaded sanitizer is meant for the kernels, not for the compiler
    with span(COMPILER, what), zig.folders(command) as folders:
        return compiler_runs.run(command, text, {**environment, **folders}, _MAX_COMPILE_SECONDS)


def _candidates(cxx: str | None) -> tuple[tuple[str, ...], ...]:
    if cxx is not None:
        return (tuple(shlex.split(cxx)),)
    from_wheel = zig.installed()
    return (("g++",), ("clang++",), *(() if from_wheel is None else (from_wheel,)))


def installed() -> tuple[tuple[str, ...], ...]:
    """The commands of the compilers that are looked for and are there, in the order in which they are taken."""
    return tuple(command for command in _candidates(None) if shutil.which(command[0]) is not None)


def _accepts(command: tuple[str, ...], flags: tuple[str, ...]) -> bool:
    only_check = "-E" if zig.is_zig(command) else "-fsyntax-only"  # zig would link what it has checked
    return run_compiler((*command, *flags, "-Werror", only_check, "-x", "c++", "-")).returncode == 0


def _supported(command: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    if _accepts(command, flags):
        return flags
    return tuple(flag for flag in flags if _accepts(command, (flag,)))


def _cpu() -> str:
    """A text that identifies the instruction set that -march=native means on this machine."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    lines: dict[str, str] = {}
    with info.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in wanted:
                lines.setdefault(name.strip(), value.strip())
    digest = hashlib.sha256(repr(sorted(lines.items())).encode()).hexdigest()
    return f"{platform.machine()} {lines.get('model name', '')} {digest[:16]}"


def _arch_flags(command: tuple[str, ...], arch: str, target: tuple[str, ...]) -> tuple[str, ...]:
    """The flag -march, for a compiler with the flags of a `target`. A compiler that does not know `native` generates
    code for its default processor; it must know any other name."""
    flag = zig.arch_flag(arch) if zig.is_zig(command) else f"-march={arch}"
    if _accepts(command, (*target, flag)):
        return (flag,)
    if arch == "native":
        return ()
    names = "generic or cortex-a72" if "aarch64" in " ".join(target) else "native, x86-64-v3 or x86-64"
    raise ToolchainError(
        "GRAPHWEAVE_ARCH (or the instruction set of an export) must be a processor that "
        f"{shlex.join(command)} knows as {flag} (got {arch!r}). Use {names}."
    )


def _sanitizer_flags(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        return ()
    return (f"-fsanitize={','.join(names)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g")


def _ask(command: tuple[str, ...], arch: str, target: str) -> Answer | None:
    """The version of a compiler and the flags to use with it, in four runs or five. None if it does not accept those
    that it must."""
    banner = run_compiler((*command, "--version"))
    of_target = zig.flags(target) if zig.is_zig(command) else ()
    required = (*_REQUIRED, *of_target, *(zig.level_flags(_REQUIRED) if of_target else ()))
    if banner.returncode != 0 or not _accepts(command, required):
        return None
    version = banner.stdout.splitlines()[0] if banner.stdout else "unknown"
    if zig.is_zig(command):
        version = f"{version}, of zig {run_compiler(zig.with_subcommand(command, 'version')).stdout.strip()}"
    wanted = _WANTED if "clang" in version else (*_WANTED, *_WANTED_OF_GCC)
    return version, (*required, *_supported(command, wanted), *_arch_flags(command, arch, of_target))


@lru_cache(maxsize=8)
def _find(cxx: str | None, arch: str, sanitize: tuple[str, ...], target: str | None = None) -> Toolchain:
    tried: list[str] = []
    for command in _candidates(cxx):
        if target is not None and not zig.is_zig(command):
            continue
        shown = shlex.join(command)
        if not command or shutil.which(command[0]) is None:
            tried.append(f"{shown or '(empty)'}: not found")
            continue
        if sanitize and zig.is_zig(command):
            tried.append(f"{shown}: has no sanitizers")
            continue
        cpu = _cpu()
        meant = target or zig.THIS_MACHINE
        asked = (*_REQUIRED, *_WANTED, *_WANTED_OF_GCC, *zig.flags(meant), arch, cpu)
        answer = answer_of(command, asked, partial(_ask, command, arch, meant))
        if answer is None:
            tried.append(f"{shown}: does not accept {' '.join(_REQUIRED)}")
            continue
        version, usual = answer
        return Toolchain(command, version, (*usual, *_sanitizer_flags(sanitize)), cpu, target)
    if target is not None:
        got = f" (got {'; '.join(tried)})" if tried else ""
        raise ToolchainError(
            f"expected the compiler zig, which compiles for {target} on this machine{got}. "
            'Run `pip install "graphweave[toolchain]"`, or set GRAPHWEAVE_CXX to `zig c++`.'
        )
    raise ToolchainError(f"expected a C++17 compiler (got {'; '.join(tried)}). {REMEDY}")


def toolchain() -> Toolchain:
    """The compiler in force, found once per process and setting. Raises ToolchainError if there is none."""
    current = settings()
    return _find(current.cxx, current.arch, current.sanitize)


def toolchain_for(target: str | None, arch: str) -> Toolchain:
    """The compiler for processors with the instruction set `arch`, of this machine or of a `target` such as
    aarch64-linux-musl, for which it is zig."""
    current = settings()
    return _find(current.cxx, arch, () if target else current.sanitize, target)


def available() -> str | None:
    """The version line of the compiler; None if there is no compiler that works."""
    try:
        return toolchain().version
    except ToolchainError as error:
        log.debug("%s", error)
        return None


def compile_shared(source: Path, out: Path, extra: tuple[str, ...] = (), what: str = "a kernel") -> None:
    """Compile one C++ file to the shared library `out`, timed as `what`. A CompileError carries the compiler's words.

    `extra` are flags that do not change the machine code (`runtime/headers.py`).
    """
    tools = toolchain()
    compiler = (*tools.command, *tools.flags, *extra)
    if not zig.is_zig(tools.command):
        _run((*compiler, "-shared", str(source), "-o", str(out)), source, what)
        return
    compiled = out.with_suffix(".o")
    try:
        _run((*compiler, "-c", str(source), "-o", str(compiled)), source, what)
        try:
            _run(zig.link_command(tools.command, compiled, out), source, what)
        except CompileError as error:
            log.info("%s is linked with libc++, which zig compiles once for a machine: %s", what, error)
            _run(zig.whole_link_command(tools.command, compiled, out), source, what)
    finally:
        compiled.unlink(missing_ok=True)


def build_library(tools: Toolchain, source: Path, out: Path, extra: tuple[str, ...], exports: Path, what: str) -> None:
    """Compile one C++ file to a shared library that needs no library of C++ and shows only the symbols of the linker
    script `exports`."""
    command, is_zig = (*tools.command, *tools.flags, *extra), zig.is_zig(tools.command)
    linked = ("-shared", "-Wl,--gc-sections", f"-Wl,--version-script={exports}", "-s")
    if is_zig:
        compiled = out.with_suffix(".o")
        try:
            _run((*command, "-c", str(source), "-o", str(compiled)), source, what)
            linker = zig.c_link_command(tools.command, tools.target or zig.THIS_MACHINE)
            _run((*linker, *linked, str(compiled), "-o", str(out)), source, what)
        finally:
            compiled.unlink(missing_ok=True)
        return
    libraries = ("-nodefaultlibs", "-Wl,--as-needed", "-lm", "-lpthread", "-ldl", "-lc", "-lgcc")
    _run((*command, *linked, "-Wl,-z,defs", str(source), *libraries, "-o", str(out)), source, what)


def _run(command: tuple[str, ...], source: Path, what: str) -> None:
    """Run a command that compiles or links `source`."""
    shown = shlex.join(command)
    log.debug("%s", shown)
    try:
        done = run_compiler(command, what=what)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{shown} took over {_MAX_COMPILE_SECONDS} s. Report {source}.") from error
    if done.returncode != 0:
        raise CompileError(f"{shown} failed. Report the text, kept at {source}:\n{done.stderr[-4000:]}")
