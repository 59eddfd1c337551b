"""Which values a balanced tree over the edges of each destination combines in each round."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.ranges import position, range_error


def tree_rounds(dst: Tensor, num_dst: int) -> tuple[Tensor | int, ...]:
    """Where each destination's value is found at the end, [destinations], and four indices for each round.

    Of a round: the rows on the left and on the right of each pair, rows carried to the next round, and rows that are
    the value of their destination. They count the rows that the round before has left, pairs before what was carried;
    in the first round edges. The values are counted in the order in which they are found, the identity last.
    """
    bad = position(dst, num_dst)
    if bad is not None:
        raise range_error(dst, num_dst, what="graph[1]", of="destinations", at=bad)
    count = torch.bincount(dst.long(), minlength=num_dst)
    row = torch.nonzero(count).squeeze(1)  # destinations that are not done
    count = count[row]
    place = torch.argsort(dst, stable=True)  # of each value among the rows of this round, destination by destination
    at = torch.empty(num_dst, dtype=torch.int64, device=dst.device)
    out: list[Tensor] = []
    found = 0
    reached = torch.zeros(num_dst, dtype=torch.bool, device=dst.device)
    while row.numel():
        start = count.cumsum(0) - count
        single = count == 1
        finished = place[start[single]]
        at[row[single]] = torch.arange(found, found + finished.numel(), device=dst.device)
        reached[row[single]] = True
        found += finished.numel()
        row, start, count = row[~single], start[~single], count[~single]
        pairs = count // 2
        first = start.repeat_interleave(pairs) + 2 * _within(pairs)
        odd = count % 2 == 1
        carried = place[(start + count - 1)[odd]]
        out += [place[first], place[first + 1], carried, finished]
        # of each destination: its pairs in order, then what was carried
        sizes = pairs + odd
        after = torch.empty(int(sizes.sum()), dtype=torch.int64, device=dst.device)
        begin = sizes.cumsum(0) - sizes
        after[begin.repeat_interleave(pairs) + _within(pairs)] = torch.arange(first.numel(), device=dst.device)
        after[(begin + sizes - 1)[odd]] = first.numel() + torch.arange(carried.numel(), device=dst.device)
        place, count = after, sizes
    at[~reached] = found
    return (at, *out)


def _within(sizes: Tensor) -> Tensor:
    """0, 1, ..., n - 1 for each n of `sizes`."""
    begin = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum()), device=sizes.device) - begin.repeat_interleave(sizes)
