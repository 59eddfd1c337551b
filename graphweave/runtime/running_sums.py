"""Running sums over rows: on the CPU by `native/running_sums.cpp`, else by PyTorch."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from graphweave.core import orders
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.threads import num_threads

_FUNCTIONS = {torch.float64: "gw_running_f64", torch.float32: "gw_running_f32", torch.int64: "gw_running_i64"}


def running_sums(x: Tensor, reverse: bool) -> Tensor:
    """Like `core.orders.running_sums`, but floats are added in float64. MemoryError if there is no memory for the sums
    of blocks of rows."""
    name = _FUNCTIONS.get(x.dtype)
    if name is None or x.device.type != "cpu":
        return orders.running_sums(x, reverse)
    x = x.contiguous()
    out, rows = torch.empty_like(x), x.shape[0]
    width = x.numel() // max(rows, 1)
    if getattr(_library(), name)(x.data_ptr(), out.data_ptr(), rows, width, reverse, num_threads()):
        raise MemoryError(f"no memory for running sums of {rows} rows. Free some, or take a smaller graph.")
    return out


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL:
    found = kernel_cache.library(sources.source("running_sums.cpp"))
    pointer, long, short = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name in _FUNCTIONS.values():
        function = getattr(found, name)
        function.argtypes = (pointer, pointer, long, long, short, short)
        function.restype = short
    return found
