"""Facts that the tuner knows of the machine: the sizes of its caches, and a name for it and for this installation."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from graphweave.runtime import kernel_cache
from graphweave.runtime.toolchain import toolchain

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of a core's second-level cache, and of the last cache, which cores may share."""

    second: int = 1 << 20
    last: int = 16 << 20


@lru_cache(maxsize=1)
def caches() -> Caches:
    """The caches of this machine; usual sizes where the system does not tell them."""
    sizes: dict[int, int] = {}
    for folder in sorted(_CACHES.glob("index*")):
        try:
            if (folder / "type").read_text().strip() == "Instruction":
                continue
            text = (folder / "size").read_text().strip()
            sizes[int((folder / "level").read_text())] = int(text.rstrip("KMG")) * _UNITS.get(text[-1:], 1)
        except (OSError, ValueError):
            continue
    usual = Caches()
    return Caches(sizes.get(2, usual.second), max(sizes.values(), default=usual.last)) if sizes else usual


def identity() -> str:
    """A name that differs for another processor, number of threads, compiler, PyTorch, or version of graphweave."""
    found = caches()
    parts = (
        kernel_cache.key_of("", toolchain()), torch.__version__, str(torch.get_num_threads()), str(found.second),
        str(found.last),
    )  # fmt: skip
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
