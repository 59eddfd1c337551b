"""The package's C++ files, `native/*.cpp` and the headers `native/graphweave/*.h`, as this process has read them.

They are read once, so that the text which a process compiles fits its cache key even if the package is installed again
in the meantime. They are read as resources, not by path: a package may be imported from an archive.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.resources import files

_INCLUDE = re.compile(r"^#include <graphweave/(\w+\.h)>", re.MULTILINE)


@lru_cache(maxsize=8)
def source(name: str) -> str:
    """The text of `native/NAME`."""
    return (files("graphweave.runtime") / "native" / name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def headers() -> dict[str, bytes]:
    """Name of each header (`products.h`) -> its content."""
    folder = files("graphweave.runtime") / "native" / "graphweave"
    found = {file.name: file.read_bytes() for file in folder.iterdir() if file.name.endswith(".h")}
    return dict(sorted(found.items()))


def included(text: str) -> set[str]:
    """Names of the headers that `text` includes, directly or through other headers."""
    found: set[str] = set()
    new = set(_INCLUDE.findall(text))
    while new:
        found |= new
        new = {name for other in new for name in _INCLUDE.findall(headers()[other].decode())} - found
    return found


@lru_cache(maxsize=1)
def digest() -> str:
    """SHA-256 of all headers."""
    parts = (part for name, content in headers().items() for part in (name.encode(), content))
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
