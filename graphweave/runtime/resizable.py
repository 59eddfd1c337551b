"""Makes storages over foreign memory resizable: results of compiled functions must resize as eager mode's do.

PyTorch makes a storage over memory that it has not allocated itself without an allocator, and then refuses `resize_`,
`out=` and FSDP's `storage.resize_(0)`. It has no call that changes that, so two fields of its StorageImpl are written:
the flag `resizable` and the allocator, which is the one of `torch.empty`. A later resize allocates from there, copies,
and frees the foreign memory. Where the fields lie is found by comparing storages, and tried once; if it is not found,
`make_resizable` is None, and the arena is not used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core.log import logger

_log = logger(__name__)

_SEARCHED_BYTES = 96
"""The fields are searched in this many bytes from the start of a StorageImpl. Every PyTorch has a larger one."""

_WORD_BYTES = 8
_SAMPLES = 6

_flag, _word = ctypes.c_uint8.from_address, ctypes.c_uint64.from_address


@lru_cache(maxsize=1)
def make_resizable() -> Callable[[Tensor], None] | None:
    """A function that makes the storage of a CPU tensor resizable, which lies in memory that another object owns. None
    if this PyTorch's fields are not found."""
    found = _fields()
    if found is None or not _works(*found):
        _log.warning(
            "the fields of storages of PyTorch %s are not known: results use no memory of earlier ones",
            torch.__version__,
        )
        return None
    flag_at, allocator_at, allocator = found

    def make(t: Tensor) -> None:
        start = t.untyped_storage()._cdata
        _word(start + allocator_at).value = allocator
        _flag(start + flag_at).value = 1

    return make


def _fields() -> tuple[int, int, int] | None:
    """The offset of the flag, the offset of the allocator, and the allocator's address. None if there is not exactly
    one place for each."""
    own = [torch.empty(n, dtype=torch.uint8, device="cpu").untyped_storage() for n in range(1, _SAMPLES)]
    blocks = [(ctypes.c_char * n)() for n in range(1, _SAMPLES)]
    foreign = [torch.frombuffer(b, dtype=torch.uint8).untyped_storage() for b in blocks]
    ours, theirs = ([ctypes.string_at(s._cdata, _SEARCHED_BYTES) for s in storages] for storages in (own, foreign))
    words = range(0, _SEARCHED_BYTES, _WORD_BYTES)
    allocators = [
        at
        for at in words
        if len({_at(s, at) for s in ours}) == 1 and _at(ours[0], at) > 1 << 12 and not any(_at(s, at) for s in theirs)
    ]
    flags = [at for at in range(_SEARCHED_BYTES) if all(s[at] == 1 for s in ours) and all(s[at] == 0 for s in theirs)]
    if len(allocators) != 1:
        return None
    (allocator,) = allocators
    flags = [at for at in flags if at // _WORD_BYTES * _WORD_BYTES != allocator]
    return (flags[0], allocator, _at(ours[0], allocator)) if len(flags) == 1 else None


def _at(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + _WORD_BYTES], "little")


def _works(flag_at: int, allocator_at: int, allocator: int) -> bool:
    """Whether a storage of foreign memory says that it is resizable once the flag is set, and keeps its contents when
    it grows."""
    block = (ctypes.c_char * 16).from_buffer_copy(b"0123456789abcdef")
    t = torch.frombuffer(block, dtype=torch.uint8)
    storage = t.untyped_storage()
    if storage.resizable():
        return False
    _flag(storage._cdata + flag_at).value = 1
    if not storage.resizable():
        return False
    _word(storage._cdata + allocator_at).value = allocator
    t.resize_(4096)
    return bytes(t[:16].tolist()) == b"0123456789abcdef" and storage.nbytes() == 4096
