"""Every switch of the package: one frozen dataclass, read once from the environment."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphweave.core.byte_sizes import parse_bytes
from graphweave.core.errors import SettingsError

GIB = 1 << 30
"""Bytes of a gibibyte."""

ROOMS = (
    "analysis", "certificate", "cli", "codegen", "compiler", "core", "data", "dgl", "distributed", "examples",
    "execute", "exporting", "extend", "frontends", "function", "graph", "ir", "jax", "loops", "lower", "md", "nn",
    "ops", "pages", "passes", "points", "pyg", "runtime", "sampling", "tensorlike", "tuning", "udf",
)  # fmt: skip
"""The packages of graphweave, each with a logger of its own."""

LOGGED = (*ROOMS, "time")
"""Names that GRAPHWEAVE_LOGS takes: the rooms, and the seconds of first calls (`core/spans.py`)."""

SANITIZERS = ("address", "undefined", "leak", "thread")
"""Sanitizers that GRAPHWEAVE_SANITIZE may name."""


def _memory_bytes() -> int:
    """Bytes of physical memory; 0 where the system does not tell."""
    known = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in known or "SC_PAGE_SIZE" not in known:
        return 0
    return max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every switch of the package. Sizes are bytes; in the environment they may end in K, M, G, T (powers of 1024)."""

    logs: str = ""
    """GRAPHWEAVE_LOGS: rooms to log, as in `passes,+codegen`: `name` means INFO, `+name` DEBUG, `-name` ERROR only.
    `time` logs the seconds of each stage of first calls."""

    dump: Path | None = None
    """GRAPHWEAVE_DUMP: directory for one numbered file per compilation stage."""

    cache_dir: Path | None = None
    """GRAPHWEAVE_CACHE_DIR: where compiled kernels are kept; None means the user's cache directory."""

    cxx: str | None = None
    """GRAPHWEAVE_CXX, else CXX: the C++ compiler command; None means g++, then clang++, then the
    package `ziglang`."""

    arch: str = "native"
    """GRAPHWEAVE_ARCH: the processor that kernels are compiled for, by the names of the compiler's -march: `native` is
    this processor, `x86-64-v3` any with AVX2, `x86-64` the plain baseline."""

    cache_bytes: int = GIB
    """GRAPHWEAVE_CACHE_BYTES: upper limit on the size of the kernel cache on disk, and another one of the same
    size on stored compilations."""

    store_compilations: bool = True
    """GRAPHWEAVE_STORE_COMPILATIONS: 0 neither keeps whole compilations on disk nor looks for them there, so that every
    process plans its own. Kernels are kept."""

    format_bytes: int = field(default_factory=lambda: max(GIB, _memory_bytes() // 4))
    """GRAPHWEAVE_FORMAT_BYTES: upper limit on cached graph formats, and another one of the same size on cached results
    that depend on the graph alone. By default a quarter of the machine's memory, at least 1 GiB."""

    arena_bytes: int = field(default_factory=lambda: max(GIB, min(4 * GIB, _memory_bytes() // 8)))
    """GRAPHWEAVE_ARENA_BYTES: upper limit on the free buffers that the arena keeps for reuse; 0 keeps none. By default
    an eighth of the machine's memory, at least 1 and at most 4 GiB."""

    target: str = "auto"
    """GRAPHWEAVE_TARGET: `auto` means C++ on the CPU and Triton on a GPU. `triton` uses Triton for CPU tensors too, in
    its interpreter (TRITON_INTERPRET=1), which is meant for tests."""

    eager_kernels: bool = True
    """GRAPHWEAVE_EAGER_KERNELS: 0 runs a graph's message passing outside compiled models as PyTorch's own calls."""

    unseen_edits: bool = True
    """GRAPHWEAVE_UNSEEN_EDITS: 0 does not look for edits of index tensors that PyTorch does not see (through NumPy,
    `.data`, dlpack), which saves a microsecond for each index and call (docs/design/running.md, "Caches and edits")."""

    equal_parts: bool = True
    """GRAPHWEAVE_EQUAL_PARTS: 0 lets AOTAutograd trace each of the equal layers of a model by itself."""

    progress: bool = True
    """GRAPHWEAVE_PROGRESS: 0 writes no line on the terminal while a compilation takes long."""

    sanitize: tuple[str, ...] = ()
    """GRAPHWEAVE_SANITIZE: sanitizers compiled into kernels, such as `address,undefined`. The process must be started
    with the sanitizer's runtime preloaded (`LD_PRELOAD=$(g++ -print-file-name=libasan.so)`)."""


def _parse_text(name: str, text: str) -> str:
    return text.strip()


def log_levels(text: str) -> dict[str, int]:
    """`passes,+codegen` -> {"passes": INFO, "codegen": DEBUG}; `all` stands for every room, later parts win."""
    levels: dict[str, int] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        level = {"+": logging.DEBUG, "-": logging.ERROR}.get(part[0], logging.INFO)
        name = part.lstrip("+-")
        if name != "all" and name not in LOGGED:
            raise SettingsError(
                f"GRAPHWEAVE_LOGS must list rooms out of all, {', '.join(LOGGED)} (got {name!r}). Name one of these."
            )
        levels.update(dict.fromkeys(LOGGED if name == "all" else (name,), level))
    return levels


def _parse_logs(name: str, text: str) -> str:
    log_levels(text)
    return text.strip()


def _parse_path(name: str, text: str) -> Path:
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise SettingsError(f"{name} must be a directory (got the file {text!r}). Name a directory or a new path.")
    return path


def _parse_switch(name: str, text: str) -> bool:
    if text.strip() not in ("0", "1"):
        raise SettingsError(f"{name} must be 0 or 1 (got {text!r}). Set it to one of them.")
    return text.strip() == "1"


def _parse_sanitize(name: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in names:
        if part not in SANITIZERS:
            raise SettingsError(
                f"{name} must list sanitizers out of {', '.join(SANITIZERS)} (got {part!r}). Name one of these."
            )
    return names


def _parse_target(name: str, text: str) -> str:
    if text.strip() not in ("auto", "triton"):
        raise SettingsError(f"{name} must be auto or triton (got {text!r}). Set it to one of them.")
    return text.strip()


_VARIABLES: tuple[tuple[str, str, Callable[[str, str], Any]], ...] = (
    ("GRAPHWEAVE_LOGS", "logs", _parse_logs),
    ("GRAPHWEAVE_DUMP", "dump", _parse_path),
    ("GRAPHWEAVE_CACHE_DIR", "cache_dir", _parse_path),
    ("CXX", "cxx", _parse_text),
    ("GRAPHWEAVE_CXX", "cxx", _parse_text),  # after CXX: it wins
    ("GRAPHWEAVE_ARCH", "arch", _parse_text),
    ("GRAPHWEAVE_CACHE_BYTES", "cache_bytes", parse_bytes),
    ("GRAPHWEAVE_STORE_COMPILATIONS", "store_compilations", _parse_switch),
    ("GRAPHWEAVE_FORMAT_BYTES", "format_bytes", parse_bytes),
    ("GRAPHWEAVE_ARENA_BYTES", "arena_bytes", parse_bytes),
    ("GRAPHWEAVE_TARGET", "target", _parse_target),
    ("GRAPHWEAVE_EAGER_KERNELS", "eager_kernels", _parse_switch),
    ("GRAPHWEAVE_UNSEEN_EDITS", "unseen_edits", _parse_switch),
    ("GRAPHWEAVE_EQUAL_PARTS", "equal_parts", _parse_switch),
    ("GRAPHWEAVE_PROGRESS", "progress", _parse_switch),
    ("GRAPHWEAVE_SANITIZE", "sanitize", _parse_sanitize),
)


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Reads every variable; an unset or empty one leaves the default. SettingsError names the variable it refuses."""
    values = {}
    for name, of, parse in _VARIABLES:
        if environ.get(name, "").strip():
            try:
                values[of] = parse(name, environ[name])
            except SettingsError as error:
                raise SettingsError(f"{error} Unset it for the default.") from None
    return Settings(**values)


def origins(environ: Mapping[str, str]) -> dict[str, tuple[str, str | None]]:
    """Field -> its variable, and the variable of `environ` that sets it (None: the field has its default)."""
    set_by = {field: name for name, field, _ in _VARIABLES if environ.get(name, "").strip()}
    return {field: (name, set_by.get(field)) for name, field, _ in _VARIABLES}


_current: Settings | None = None


def settings() -> Settings:
    """The settings in force: read from the environment at the first call, then fixed (see `override`)."""
    global _current
    if _current is None:
        _current = from_environment(os.environ)
    return _current


@contextmanager
def override(**fields: Any) -> Iterator[Settings]:
    """Changes fields of the settings, for all threads, until the block ends. Meant for tests and the command line."""
    global _current
    saved = settings()
    unknown = sorted(set(fields) - set(Settings.__dataclass_fields__))
    if unknown:
        known = ", ".join(Settings.__dataclass_fields__)
        raise SettingsError(f"override: expected fields out of {known} (got {', '.join(unknown)}). Name one of these.")
    _current = replace(saved, **fields)
    try:
        yield _current
    finally:
        _current = saved
