"""Where a tensor keeps its storage and its version counter, so that native code can tell whether it was edited.

Two tensors with one version counter see each other's edits. `t._version` alone proves nothing: `t.data`, and every
tensor that is made over another library's memory, has its own counter, which starts at 0. PyTorch does not expose a
counter's identity, so its address is read from the TensorImpl. Offsets are found by comparing tensors that are known to
share a storage or a counter with tensors that do not.

All else that native code reads of a tensor it asks PyTorch's stable C interface for.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from graphweave.core.log import logger

_log = logger(__name__)

_WORD_BYTES = 8
_SEARCHED_WORDS = 12
"""An offset is searched among this many words from the start of a TensorImpl. Every PyTorch has a larger one."""

_COUNTER_BYTES = 32
"""The version is searched in this many bytes of a counter. Memory is never given out in smaller pieces."""

_read = ctypes.c_uint64.from_address
_unknown = itertools.count(-1, -1)


@dataclass(frozen=True, slots=True)
class Offsets:
    """In bytes: of the storage and the version counter in a TensorImpl, and of the version in a counter."""

    storage: int
    counter: int
    version: int


def counter_of(t: Tensor) -> int:
    """The address of the version counter of `t`. It is the same for two tensors if PyTorch counts an edit of one as an
    edit of the other.

    Once every tensor with this counter is gone, another counter may get its address. Inference tensors have no counter.
    """
    found = offsets()
    return next(_unknown) if found is None else _read(t._cdata + found.counter).value


@lru_cache(maxsize=1)
def offsets() -> Offsets | None:
    """None if they are not found; nothing can be cached then."""
    with torch.inference_mode(False):
        apart = [torch.zeros(2, 2, device="cpu"), torch.ones(3, device="cpu")]
        alike = [(t, t.detach(), t.view(-1), t[:1]) for t in apart]
        apart += [t.data for t in apart]  # all are alive at once, so that no two counters have the same address
        edited = torch.zeros(1, device="cpu")
        counter = _only(
            i
            for i in range(_SEARCHED_WORDS)
            if all(len({_words(t)[i] for t in group}) == 1 for group in alike)
            and len({_words(t)[i] for t in apart}) == len(apart)
        )
        storage = _only(
            i for i in range(_SEARCHED_WORDS) if all(_words(t)[i] == t.untyped_storage()._cdata for t in apart)
        )
        version = None if counter is None else _version_at(edited, counter)
    if counter is not None and storage is not None and version is not None:
        return Offsets(storage * _WORD_BYTES, counter * _WORD_BYTES, version)
    _log.warning(
        "no version counter found in tensors of PyTorch %s: formats are built at every call", torch.__version__
    )
    return None


def _only(found: Iterable[int]) -> int | None:
    places = list(found)
    return places[0] if len(places) == 1 else None


def _version_at(t: Tensor, counter: int) -> int | None:
    """The offset of the version, found by counting up that of `t`."""
    places = set(range(0, _COUNTER_BYTES, 4))
    for _ in range(300):
        address = _words(t)[counter]
        places = {at for at in places if ctypes.c_uint32.from_address(address + at).value == t._version}
        t.add_(1)
    return _only(places)


def _words(t: Tensor) -> list[int]:
    return list((ctypes.c_uint64 * _SEARCHED_WORDS).from_address(t._cdata))


# ---------------------------------------------------------------- for native code

_FUNCTIONS = (
    *(f"get_{name}" for name in ("data_ptr", "dim", "sizes", "strides", "dtype", "device_type")),
    "is_contiguous", "new_tensor_handle", "delete_tensor_object", "call_dispatcher",
)  # fmt: skip
"""Functions `aoti_torch_NAME` of PyTorch's C interface, in the order of the structure."""


class Layout(ctypes.Structure):
    """The structure `Layout` of `native/records.cpp`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _FUNCTIONS),
        *((name, ctypes.c_int64) for name in ("int32", "int64", "cpu", "storage", "counter", "version")),
    )


@lru_cache(maxsize=1)
def layout() -> Layout:
    """How native code reads tensors. Without known offsets, every tensor seems to have no counter."""
    library = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))

    def address(function: Callable[..., object]) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    functions = [address(library[f"aoti_torch_{name}"]) for name in _FUNCTIONS]
    found = offsets()
    places = (-1, -1, -1) if found is None else (found.storage, found.counter, found.version)
    return Layout(
        *functions,
        library.aoti_torch_dtype_int32(),
        library.aoti_torch_dtype_int64(),
        library.aoti_torch_device_type_cpu(),
        *places,
    )
