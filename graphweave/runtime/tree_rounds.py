"""Which values a balanced tree over the edges of each destination combines in each round."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.ranges import position, range_error


def tree_rounds(dst: Tensor, num_dst: int) -> tuple[Tensor | int, ...]:
    """The position of each destination's final value, [destinations], and four indices for each round.

    The four indices of a round are: the rows on the left of each pair, the rows on the right, the rows carried to the
    next round, and the rows that are the final value of their destination. In the first round they count edges; later
    they count the rows that the round before has produced, pairs first, carried rows after them. Final values are
    counted in the order in which they are found; the identity comes last.
    """
    bad = position(dst, num_dst)
    if bad is not None:
        raise range_error(dst, num_dst, what="graph[1]", of="destinations", at=bad)
    count = torch.bincount(dst.long(), minlength=num_dst)
    row = torch.nonzero(count).squeeze(1)  # destinations that are not done
    count = count[row]
    # position of each value among the rows of this round, destination by destination
    place = torch.argsort(dst, stable=True)
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
        # for each destination, its pairs in order, then the carried row
        sizes = pairs + odd
        after = torch.empty(int(sizes.sum()), dtype=torch.int64, device=dst.device)
        begin = sizes.cumsum(0) - sizes
        after[begin.repeat_interleave(pairs) + _within(pairs)] = torch.arange(first.numel(), device=dst.device)
        after[(begin + sizes - 1)[odd]] = first.numel() + torch.arange(carried.numel(), device=dst.device)
        place, count = after, sizes
    at[~reached] = found
    return (at, *out)


def _within(sizes: Tensor) -> Tensor:
    """0, 1, ..., n - 1 for each n in `sizes`, one after the other."""
    begin = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum()), device=sizes.device) - begin.repeat_interleave(sizes)
