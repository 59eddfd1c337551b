"""A compiler command for the tests that has read the kernels' headers before the first kernel.

Most of the time of a small kernel goes into <immintrin.h>. The machine code is the same with and without. Sanitized
kernels are compiled from their text alone, so a kernel that includes too little is still found.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from filelock import FileLock

from graphweave.core.settings import settings
from graphweave.runtime.toolchain import available, toolchain

HEADERS = ("algorithm", "cmath", "cstdint", "cstdlib", "cstring", "immintrin.h", "omp.h")

SCRIPT = """#!/bin/sh
case " $* " in
*" -fsanitize"*) ;;
*" -c "*) exec {compiler} -include "{header}" "$@" ;;
esac
exec {compiler} "$@"
"""


def compiler(folder: Path) -> str | None:
    """A command for GRAPHWEAVE_CXX, made in `folder` if need be; None where the user names a compiler or g++ lacks."""
    if settings().cxx is not None or settings().sanitize or available() is None:
        return None
    tools = toolchain()
    text = "".join(f"#if __has_include(<{name}>)\n#include <{name}>\n#endif\n" for name in HEADERS)
    if tools.command != ("g++",) or any(letter in str(folder) for letter in ' "$`\\'):
        return None
    key = hashlib.sha256("\0".join((tools.identity, text, SCRIPT)).encode()).hexdigest()[:16]
    script = folder / key / "g++"
    with FileLock(folder / f"{key}.lock"):
        if not script.exists():
            script.parent.mkdir(exist_ok=True)
            header = script.with_name("headers.h")
            header.write_text(text)
            built = ("-x", "c++-header", str(header), "-o", str(header.with_suffix(".h.gch")))
            subprocess.run([*tools.command, *tools.flags, *built], check=True)
            draft = script.with_name("draft")
            draft.write_text(SCRIPT.format(compiler="g++", header=header))
            draft.chmod(0o755)
            draft.rename(script)
    return str(script)
