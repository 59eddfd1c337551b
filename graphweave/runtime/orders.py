"""Orders of rows by several keys, the rows that differ, and those that a mask chooses: on the CPU by
`native/orders.cpp`, else by PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from struct import pack

import torch
from torch import Tensor

from graphweave.core import orders
from graphweave.core.orders import DistinctRows
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.threads import num_threads

_KINDS = {
    kind: i
    for i, kind in enumerate(
        (torch.float64, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
    )
}
"""Dtypes in the order of `Kind` in `native/orders.cpp`."""

_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}
"""Dtypes that are converted first, which keeps their order."""

_SERIAL = 1 << 15
"""A mask of fewer rows is read by one thread."""


def order_rows(keys: Sequence[Tensor], descending: Sequence[bool]) -> Tensor:
    """Like `core.orders.order_rows`, but in native code on a CPU. MemoryError if there is no memory for 24 bytes a
    row."""
    if keys[0].device.type != "cpu":
        return orders.order_rows(keys, descending)
    held = _readable(keys)
    return _ordered(held, _packed(held, descending))


def distinct_rows(keys: Sequence[Tensor]) -> DistinctRows:
    """Like `core.orders.distinct_rows`, but in native code on a CPU. MemoryError if there is no memory for 24 bytes a
    row."""
    if keys[0].device.type != "cpu":
        return orders.distinct_rows(keys)
    held = _readable(keys)
    packed = _packed(held, [False] * len(held))
    order = _ordered(held, packed)
    rows, firsts = torch.empty_like(order), torch.empty_like(order)
    found = _library().gw_distinct(
        packed, len(held), len(order), order.data_ptr(), rows.data_ptr(), firsts.data_ptr(), num_threads()
    )
    if found < 0:
        raise _no_memory(len(order))
    return DistinctRows(rows, tuple(key.index_select(0, firsts[:found]).long() for key in keys))


def _readable(keys: Sequence[Tensor]) -> list[Tensor]:
    """The keys in dtypes that native code reads."""
    return [key.to(_WIDER[key.dtype]) if key.dtype in _WIDER else key for key in keys]


def _packed(keys: Sequence[Tensor], descending: Sequence[bool]) -> bytes:
    """The keys as structures `Key` of native code, which are valid for as long as the tensors live."""
    return b"".join(
        pack("qqii", key.data_ptr(), key.stride(0), _KINDS[key.dtype], falls)
        for key, falls in zip(keys, descending, strict=True)
    )


def _ordered(keys: Sequence[Tensor], packed: bytes) -> Tensor:
    count = keys[0].shape[0]
    out = torch.empty(count, dtype=torch.int64, device="cpu")
    if _library().gw_order(packed, len(keys), count, out.data_ptr(), num_threads()):
        raise _no_memory(count)
    return out


def _no_memory(count: int) -> MemoryError:
    return MemoryError(f"no memory to sort {count} rows. Free some, or take a smaller graph.")


def choose_rows(mask: Tensor) -> Tensor:
    """Like `core.orders.choose_rows`, but in native code on a CPU."""
    if mask.device.type != "cpu":
        return orders.choose_rows(mask)
    mask, count, threads = mask.contiguous(), mask.shape[0], num_threads()
    blocks = 1 if count < _SERIAL else threads
    ends, native = (ctypes.c_int64 * blocks)(), _library()
    native.gw_count_chosen(mask.data_ptr(), count, ends, blocks, threads)
    out = torch.empty(ends[blocks - 1], dtype=torch.int64, device="cpu")
    native.gw_list_chosen(mask.data_ptr(), count, ends, out.data_ptr(), blocks, threads)
    return out


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    """The native functions, whose numbers of rows and threads fit by what tensors are."""
    found = kernel_cache.library(sources.source("orders.cpp"))
    pointer, long, short = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    found.gw_order.argtypes = (ctypes.c_char_p, long, long, pointer, short)
    found.gw_order.restype = short
    found.gw_distinct.argtypes = (ctypes.c_char_p, long, long, pointer, pointer, pointer, short)
    found.gw_distinct.restype = long
    found.gw_count_chosen.argtypes = (pointer, long, pointer, long, short)
    found.gw_count_chosen.restype = None
    found.gw_list_chosen.argtypes = (pointer, long, pointer, pointer, long, short)
    found.gw_list_chosen.restype = None
    return found
