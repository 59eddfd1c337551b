"""Numbers of bytes as people write them: 536870912 or "512M"."""

from __future__ import annotations

import re

from graphweave.core.errors import SettingsError

_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(name: str, text: str) -> int:
    """The number of bytes that `text` says. SettingsError, which calls it `name`, for anything else."""
    match = re.fullmatch(r"\s*(\d+)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise SettingsError(f"{name} must be a number of bytes such as 536870912 or 512M (got {text!r}). Write it so.")
    return int(match[1]) * _SUFFIX[match[2].upper()]
