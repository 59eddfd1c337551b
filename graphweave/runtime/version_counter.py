"""Which version counter a tensor has: two tensors with one counter see each other's edits.

`t._version` alone proves nothing: `t.data`, and every tensor that is made over another library's memory, has its own
counter, which starts at 0. PyTorch does not expose a counter's identity, so its address is read from the TensorImpl.
The offset in it is found by comparing tensors that are known to share a counter with tensors that do not.
"""

from __future__ import annotations

import ctypes
import itertools
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core.log import logger

_log = logger(__name__)

_WORD_BYTES = 8
_SEARCHED_WORDS = 12
"""The counter is searched among this many words from the start of a TensorImpl. Every PyTorch has a larger
TensorImpl."""

_read = ctypes.c_uint64.from_address
_unknown = itertools.count(-1, -1)


def counter_of(t: Tensor) -> int:
    """The address of the version counter of `t`. It is the same for two tensors if PyTorch counts an edit of one as an
    edit of the other.

    Once every tensor with this counter is gone, another counter may get its address. Inference tensors have no counter.
    """
    offset = _offset()
    return next(_unknown) if offset is None else _read(t._cdata + offset).value


@lru_cache(maxsize=1)
def _offset() -> int | None:
    """The offset of the counter in a TensorImpl, in bytes. None if it is not found; nothing can be cached then."""
    with torch.inference_mode(False):
        apart = [torch.zeros(2, 2, device="cpu"), torch.ones(3, device="cpu")]
        alike = [(t, t.detach(), t.view(-1), t[:1]) for t in apart]
        apart += [t.data for t in apart]  # all are alive at once, so that no two counters have the same address
    same = [[_words(t) for t in tensors] for tensors in alike]
    other = [_words(t) for t in apart]
    found = [
        i
        for i in range(_SEARCHED_WORDS)
        if all(len({words[i] for words in group}) == 1 for group in same)
        and len({words[i] for words in other}) == len(other)
    ]
    if len(found) == 1:
        return found[0] * _WORD_BYTES
    _log.warning(
        "no version counter found in tensors of PyTorch %s: formats are built at every call", torch.__version__
    )
    return None


def _words(t: Tensor) -> list[int]:
    return list((ctypes.c_uint64 * _SEARCHED_WORDS).from_address(t._cdata))
