"""Index tensors of spaces, such as disjoint unions, from index tensors and row counts alone, and checks of indices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from graphweave.core.ranges import range_error


def join_indices(indices: Sequence[Tensor], sizes: list[int], at: Sequence[int], wraps: Sequence[bool]) -> Tensor:
    """The value of `JoinIndices`, i64; segment k has `sizes[k]` rows. IndexRangeError for the first index that is out
    of range in its segment."""
    starts = _starts(sizes)
    joined = []
    for k, (index, segment, wrap) in enumerate(zip(indices, at, wraps, strict=True)):
        if not index.shape[0]:
            continue
        rows = sizes[segment]
        if not _is_within(index, -rows if wrap else 0, rows):
            raise range_error(index, rows, first=-rows if wrap else 0, what=f"relation {k} of {len(indices)}")
        index = index.long()
        if wrap:
            index = torch.where(index < 0, index + rows, index)
        joined.append(index + starts[segment])
    return torch.cat(joined) if joined else indices[0].new_empty(0, dtype=torch.int64)


def rows_of_segments(sizes: list[int], at: Sequence[int], device: torch.device | str) -> Tensor:
    """The value of `RowsOfSegments`, i64; segment k has `sizes[k]` rows."""
    starts = _starts(sizes)
    rows = [torch.arange(starts[k], starts[k] + sizes[k], device=device) for k in at if sizes[k]]
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64, device=device)


def numbers_of_segments(sizes: list[int], numbers: Sequence[int], device: torch.device | str) -> Tensor:
    """The value of `NumbersOfSegments`, i64; segment k has `sizes[k]` rows."""
    return torch.repeat_interleave(torch.tensor(numbers), torch.tensor(sizes)).to(device)


def equal_runs(rows: int, runs: int, device: torch.device | str) -> Tensor:
    """The value of `EqualRuns`, i64: for each of `rows` rows the number of its run."""
    return torch.arange(runs, device=device).repeat_interleave(rows // max(runs, 1), output_size=rows)


def rounds(rows: int, times_of: int, device: torch.device | str) -> Tensor:
    """The value of `Rounds`, i64: the numbers below `times_of`, as often as `rows` rows have them."""
    if rows == times_of:
        return torch.arange(rows, device=device)
    return torch.arange(times_of if rows else 0, device=device).repeat(rows // max(times_of, 1))


def each_item(index: Tensor, nodes: int, rows: int) -> Tensor:
    """The value of `EachItem`, i64, of an `index` into the `nodes` rows of one item, for items that have `rows` rows
    together. IndexRangeError for the first index that is out of range."""
    if not _is_within(index, 0, nodes):
        raise range_error(index, nodes)
    first = torch.arange(rows // max(index.numel(), 1), device=index.device) * nodes
    return (first[:, None] + index.long()).reshape(-1)


def check_columns(index: Tensor, size: int) -> None:
    """IndexRangeError unless every number of `index` lies in 0..size-1."""
    if not _is_within(index, 0, size):
        raise range_error(
            index, size, of="columns",
            do="Correct it, or the number of columns (the classes, where the index is the target of a loss).",
        )  # fmt: skip


def _starts(sizes: list[int]) -> list[int]:
    return [0, *accumulate(sizes)]


def _is_within(index: Tensor, first: int, end: int) -> bool:
    if not index.numel():
        return True
    low, high = (int(n) for n in index.aminmax())
    return first <= low and high < end
