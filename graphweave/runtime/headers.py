"""The standard headers of kernels, read by the compiler once per machine instead of once per kernel.

Most of the time that g++ takes for a kernel goes into <immintrin.h>: 0.35 of 0.42 seconds. A precompiled header lies
beside the kernels (30 MB for each compiler and its flags). The machine code is the same with and without it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from filelock import FileLock

from graphweave.core.log import logger
from graphweave.runtime.toolchain import Toolchain, run_compiler

log = logger(__name__)

_HEADERS = ("cmath", "cstdint", "cstdlib", "cstring", "immintrin.h", "omp.h")
_TEXT = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in _HEADERS)

_refused: set[str] = set()
"""Identities of compilers that could not make a precompiled header in this process; they are not asked again."""


def flags_for(text: str, tools: Toolchain, folder: Path) -> tuple[str, ...]:
    """Flags that let `tools` compile `text` from the precompiled header, which is made in `folder` if need be.

    Empty for a text without <immintrin.h>, which is compiled as fast; for clang, whose precompiled headers have a form
    of their own; for sanitized kernels, which are compiled from their text alone, so that one that includes too little
    is found; and where the header cannot be made.
    """
    if (
        "<immintrin.h>" not in text
        or "clang" in tools.version
        or any(flag.startswith("-fsanitize") for flag in tools.flags)
    ):
        return ()
    key = hashlib.sha256("\0".join((tools.identity, _TEXT)).encode()).hexdigest()[:16]
    if key in _refused:
        return ()
    header = folder / "headers" / key / "kernels.h"
    compiled = header.with_name("kernels.h.gch")
    if not compiled.exists() and not _make(tools, header, compiled):
        _refused.add(key)
        return ()
    return ("-include", str(header))


def _make(tools: Toolchain, header: Path, compiled: Path) -> bool:
    """Writes the header, and then moves what the compiler made of it into place. Several processes may ask at once."""
    header.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(header.with_suffix(".lock")):
        if compiled.exists():
            return True
        header.write_text(_TEXT, encoding="ascii")
        with tempfile.TemporaryDirectory(dir=header.parent, prefix="build-") as scratch:
            draft = Path(scratch) / compiled.name
            try:
                done = run_compiler((*tools.command, *tools.flags, "-x", "c++-header", str(header), "-o", str(draft)))
            except subprocess.TimeoutExpired:
                return False
            if done.returncode != 0:
                log.info("no precompiled header, kernels compile more slowly: %s", done.stderr[-400:])
                return False
            os.replace(draft, compiled)
    return True
