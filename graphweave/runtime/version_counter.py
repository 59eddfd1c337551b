"""Which version counter a tensor has: two tensors with one counter see each other's edits.

`t._version` alone proves nothing: `t.data`, and every tensor newly made over foreign memory, has a counter of its own,
which starts at 0. PyTorch has no name for a counter, so its address is read where PyTorch keeps it, in the TensorImpl.
At which offset is found by looking, at tensors known to share a counter or not.
"""

from __future__ import annotations

import ctypes
import itertools
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core.log import logger

_log = logger(__name__)

_WORD = 8
_SEARCHED = 12
"""Words from the start of a TensorImpl among which its counter is looked for; it is larger in every PyTorch."""

_read = ctypes.c_uint64.from_address
_unknown = itertools.count(-1, -1)


def counter_of(t: Tensor) -> int:
    """The address of the counter of `t`: the same for two tensors of which an edit of one is an edit of the other.

    It may be given to another tensor once every tensor with this counter is gone. Not for inference tensors.
    """
    offset = _offset()
    return next(_unknown) if offset is None else _read(t._cdata + offset).value


@lru_cache(maxsize=1)
def _offset() -> int | None:
    """Bytes into a TensorImpl; None if PyTorch has changed so much that it is not found, and nothing can be cached."""
    with torch.inference_mode(False):
        apart = [torch.zeros(2, 2, device="cpu"), torch.ones(3, device="cpu")]
        alike = [(t, t.detach(), t.view(-1), t[:1]) for t in apart]
        apart += [t.data for t in apart]  # all alive at once, so that no two have one address
    same = [[_words(t) for t in tensors] for tensors in alike]
    other = [_words(t) for t in apart]
    found = [
        i
        for i in range(_SEARCHED)
        if all(len({words[i] for words in group}) == 1 for group in same)
        and len({words[i] for words in other}) == len(other)
    ]
    if len(found) == 1:
        return found[0] * _WORD
    _log.warning(
        "no version counter found in tensors of PyTorch %s: formats are built at every call", torch.__version__
    )
    return None


def _words(t: Tensor) -> list[int]:
    return list((ctypes.c_uint64 * _SEARCHED).from_address(t._cdata))
