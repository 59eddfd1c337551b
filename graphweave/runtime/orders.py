"""Orders of rows by several keys, and the rows that a mask chooses: on the CPU by `native/orders.cpp`, else by
PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from struct import pack

import torch
from torch import Tensor

from graphweave.core import orders
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
    """As `core.orders.order_rows`. MemoryError if there is no memory for 24 bytes a row."""
    if keys[0].device.type != "cpu":
        return orders.order_rows(keys, descending)
    count = keys[0].shape[0]
    held = [key.to(_WIDER[key.dtype]) if key.dtype in _WIDER else key for key in keys]
    packed = b"".join(
        pack("qqii", key.data_ptr(), key.stride(0), _KINDS[key.dtype], falls)
        for key, falls in zip(held, descending, strict=True)
    )
    out = torch.empty(count, dtype=torch.int64, device="cpu")
    if _library().gw_order(packed, len(held), count, out.data_ptr(), num_threads()):
        raise MemoryError(f"no memory to sort {count} rows. Free some, or take a smaller graph.")
    return out


def choose_rows(mask: Tensor) -> Tensor:
    """As `core.orders.choose_rows`."""
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
    found.gw_count_chosen.argtypes = (pointer, long, pointer, long, short)
    found.gw_count_chosen.restype = None
    found.gw_list_chosen.argtypes = (pointer, long, pointer, pointer, long, short)
    found.gw_list_chosen.restype = None
    return found
