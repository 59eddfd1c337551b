"""Formats of index tensors by PyTorch's own operations, on the device where the tensor lies and without waiting for it.

The same formats as native code builds for the CPU (`formats.py`), but that nothing is known about them on the host: not
whether an index is sorted, nor the largest degree. An index out of range is an error of the device, as it is for
PyTorch's own indexing; on the CPU, where tests run this too, it is an IndexRangeError.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.ranges import range_error
from graphweave.runtime.index import Index


def checked(index: Index) -> Tensor:
    """[num_edges] int64 in 0..rows: nothing that is read through it lies outside, whatever the index holds."""
    rows, num = index.values.long(), index.rows
    if index.wrap:
        rows = torch.where(rows < 0, rows + num, rows)
    good = (rows >= 0) & (rows < num)
    if rows.device.type != "cpu":
        low = f"-{num}" if index.wrap else "0"
        torch._assert_async(good.all(), f"an index is out of range for {num} rows; expected {low} <= index < {num}")
    elif not bool(good.all()):
        raise range_error(index.values, num, first=-num if index.wrap else 0)
    return rows.clamp(0, max(num - 1, 0))


def flat(index: Index, wide: bool) -> Tensor:
    """The rows, checked, contiguous, int32 (int64 if wide), wrapped values made non-negative."""
    return checked(index).to(_dtype(wide))


def group(index: Index, wide: bool) -> tuple[Tensor, Tensor]:
    """`indptr` [rows + 1] and the edge at each position, in a stable order."""
    in_order, perm = torch.sort(checked(index), stable=True)
    rows = torch.arange(index.rows + 1, device=perm.device)
    return torch.searchsorted(in_order, rows, out_int32=not wide), perm.to(_dtype(wide))


def by_degree(indptr: Tensor) -> Tensor:
    """The rows, those of most edges first: neighbours in it have about equally many. dtype of indptr."""
    return torch.argsort(indptr.diff(), descending=True, stable=True).to(indptr.dtype)


def _dtype(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32
