"""Resident memory of this process, as Linux tells it."""

from __future__ import annotations

import sys
from pathlib import Path

from graphweave.core.errors import GraphweaveError


def is_told() -> bool:
    """Whether the system tells the memory of a process."""
    return sys.platform.startswith("linux")


def resident_bytes() -> int:
    return _status("VmRSS")


def peak_bytes() -> int:
    """The largest number of resident bytes since `begin_peak`."""
    return _status("VmHWM")


def begin_peak() -> int:
    """Set the high-water mark back to the resident bytes, and return these."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident_bytes()


def _status(key: str) -> int:
    """The value of a line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise GraphweaveError(f"/proc/self/status has no {key}. Use a system that has it.")
