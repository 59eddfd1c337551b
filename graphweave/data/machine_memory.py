"""Checks, before memory is allocated, that this machine could hold what a file announces.

A file can announce 10^15 nodes in a few bytes. Allocating them would end in an error of the allocator, or bring the
whole machine to a standstill.
"""

from __future__ import annotations

import os
from functools import lru_cache

from graphweave.core.errors import DataError

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@lru_cache(maxsize=1)
def machine_bytes() -> int | None:
    """Bytes of memory of this machine; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_fits(nbytes: int, what: str) -> None:
    """Raise DataError if `nbytes` is more than the machine has. `what`, a noun with its file, takes these bytes."""
    there = machine_bytes()
    if there is not None and nbytes > there:
        raise DataError(
            f"{what} would take {in_words(nbytes)} at least, and this machine has {in_words(there)} of memory. "
            "Correct the number, or use a larger machine."
        )


def in_words(nbytes: int) -> str:
    """The size as text, such as `3.6 TiB`."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{nbytes} bytes"
