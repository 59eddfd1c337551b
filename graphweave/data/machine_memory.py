"""Whether what a file says is there could be held by this machine, asked before memory is taken for it.

A count costs a file nothing: a graph of 10^15 nodes is a few bytes. Taken at its word, it ends in an error of
the allocator, or in the whole machine standing still.
"""

from __future__ import annotations

import os
from functools import lru_cache

from graphweave.core.errors import DataError

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@lru_cache(maxsize=1)
def machine_bytes() -> int | None:
    """Bytes of memory that this machine has; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_fits(nbytes: int, what: str) -> None:
    """DataError if `what`, a noun with its file, takes more bytes than the machine has."""
    there = machine_bytes()
    if there is not None and nbytes > there:
        raise DataError(
            f"{what} would take {in_words(nbytes)} at least, and this machine has {in_words(there)} of memory. "
            "Correct the number, or use a larger machine."
        )


def in_words(nbytes: int) -> str:
    """As `3.6 TiB`."""
    size, unit = float(nbytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{nbytes} bytes"
