"""Index tensors into disjoint unions of spaces, from index tensors and row counts alone: made once for a graph."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.lines import shown_location
from graphweave.core.ranges import range_error


def join_indices(indices: list[Tensor], sizes: list[int], at: list[int], wraps: list[bool], where: str) -> Tensor:
    """The indices one after the other as one index into the union of segments of `sizes` rows: i64.

    Index k counts rows of segment `at[k]`. Each is checked against its own segment, where one out of range would be a
    row of the next: IndexRangeError names it and the user's line. Where `wraps[k]`, -1 is the segment's last row.
    """
    starts = _starts(sizes)
    joined = []
    for k, (index, segment, wrap) in enumerate(zip(indices, at, wraps, strict=True)):
        rows = sizes[segment]
        _check(index, rows, wrap, f"relation {k} of {len(indices)}", shown_location(where))
        index = index.long()
        if wrap:
            index = torch.where(index < 0, index + rows, index)
        joined.append(index + starts[segment])
    return torch.cat(joined)


def rows_of_segments(sizes: list[int], at: list[int]) -> Tensor:
    """All rows of segment at[0] of a union, then those of at[1], ...: i64. Segment k has `sizes[k]` rows."""
    starts = _starts(sizes)
    return torch.cat([torch.arange(starts[k], starts[k] + sizes[k]) for k in at])


def numbers_of_segments(sizes: list[int], numbers: list[int]) -> Tensor:
    """For each row of the union of segments of `sizes` rows the number of its segment: i64."""
    return torch.repeat_interleave(torch.tensor(numbers), torch.tensor(sizes))


def _starts(sizes: list[int]) -> list[int]:
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + size)
    return starts


def _check(index: Tensor, rows: int, wrap: bool, what: str, where: str) -> None:
    if not index.numel():
        return
    first = -rows if wrap else 0
    low, high = (int(n) for n in index.aminmax())
    if low < first or high >= rows:
        raise range_error(index, rows, first=first, what=what, where=where)
