"""Formats of index tensors, made by PyTorch's operations on the device of the tensor, without waiting for it.

They equal the formats that native code builds for the CPU (`formats.py`), but the host knows neither whether an index
is sorted nor the largest degree. An index out of range is an error of the device, as in PyTorch's own indexing; on the
CPU, where tests run this code too, it is an IndexRangeError.
"""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.ranges import range_error
from graphweave.runtime.index import Index


def checked(index: Index) -> Tensor:
    """The rows that `index` names, [num_edges] int64, clamped to 0..rows-1 so that no read through them is out of
    bounds."""
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
    """The rows that `index` names, checked, contiguous, int32 (int64 if wide), with wrapped values made
    non-negative."""
    return checked(index).to(_dtype(wide))


def group(index: Index, wide: bool) -> tuple[Tensor, Tensor]:
    """`indptr` [rows + 1] and the edge at each position, in a stable order."""
    in_order, perm = torch.sort(checked(index), stable=True)
    rows = torch.arange(index.rows + 1, device=perm.device)
    return torch.searchsorted(in_order, rows, out_int32=not wide), perm.to(_dtype(wide))


def by_degree(indptr: Tensor) -> Tensor:
    """The rows in order of falling number of edges, dtype of indptr, so that neighbours have about equally many
    edges."""
    return torch.argsort(indptr.diff(), descending=True, stable=True).to(indptr.dtype)


def _dtype(wide: bool) -> torch.dtype:
    return torch.int64 if wide else torch.int32
