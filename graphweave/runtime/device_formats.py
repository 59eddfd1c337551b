"""Formats of index tensors by PyTorch's own operations, on the device where the tensor lies and without waiting for it.

The same formats as native code builds for the CPU (`formats.py`), but that nothing is known about them on the host: not
whether an index is sorted, nor the largest degree. An index out of range is an error of the device, as it is for
PyTorch's own indexing; on the CPU, where tests run this too, it is an IndexRangeError.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.ranges import range_error


def checked(index: Tensor, num: int, wrap: bool) -> Tensor:
    """[num_edges] int64 in 0..num: nothing that is read through it lies outside, whatever the index holds."""
    rows = index.long()
    if wrap:
        rows = torch.where(rows < 0, rows + num, rows)
    good = (rows >= 0) & (rows < num)
    if index.device.type != "cpu":
        low = f"-{num}" if wrap else "0"
        torch._assert_async(good.all(), f"an index is out of range for {num} rows; expected {low} <= index < {num}")
    elif not bool(good.all()):
        raise range_error(index, num, first=-num if wrap else 0)
    return rows.clamp(0, max(num - 1, 0))


def flat(index: Tensor, num: int, wrap: bool, wide: bool) -> Tensor:
    """`index` checked, contiguous, int32 (int64 if wide), wrapped values made non-negative."""
    return checked(index, num, wrap).to(_dtype(wide))


def group(index: Tensor, num: int, wrap: bool, wide: bool) -> tuple[Tensor, Tensor]:
    """`indptr` [num + 1] and the edge at each position, in a stable order."""
    in_order, perm = torch.sort(checked(index, num, wrap), stable=True)
    rows = torch.arange(num + 1, device=index.device)
    return torch.searchsorted(in_order, rows, out_int32=not wide), perm.to(_dtype(wide))


def by_degree(indptr: Tensor) -> Tensor:
    """The rows, those of most edges first: neighbours in it have about equally many. dtype of indptr."""
    return torch.argsort(indptr.diff(), descending=True, stable=True).to(indptr.dtype)


def _dtype(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32
