"""Messages reduced by an associative function of two values: a balanced tree over the edges of each destination.

In every round neighbours among what a destination still has are combined in pairs, ((m0 m1)(m2 m3)) m4 for five edges,
in the order of edges. So the function need not be commutative, rounding errors grow with the logarithm of a degree, and
ceil(log2(largest degree)) rounds are enough. Which rows a round combines depends on the graph alone: those indices are
made once a graph, and kept as other results are that depend on index tensors alone (`runtime/memo.py`).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.ranges import position, range_error
from graphweave.ops.perform import key_of, performed
from graphweave.ops.reducers import Combine
from graphweave.ops.row_check import check_row_wise, drawn, once
from graphweave.runtime.memo import memo
from graphweave.runtime.unseen_edits import watch


def tree_reduced(messages: Tensor, dst: Tensor, num_dst: int, combine: Combine, identity: float) -> Tensor:
    """[edges, ...] -> [destinations, ...], `identity` for destinations without edges.

    Differentiable in `messages` and in what `combine` closes over. Each round keeps its results for the backward:
    fewer than edges + destinations rows in all, beside the messages.
    """
    if not (math.isfinite(identity) or messages.is_floating_point()):
        raise DataError(
            f"reduce: the identity of messages of {messages.dtype} must be one of their numbers (got {identity})."
            " Pass such a number, or return floating-point messages."
        )
    if messages.shape[0]:
        once(("tree", *key_of((combine,), messages)), lambda: _check(combine, messages))
    watch(dst)
    indices: Any = memo(_rounds, dst, num_dst)
    at, rounds = indices[0], indices[1:]
    current, done = messages, []
    for first in range(0, len(rounds), 4):
        left, right, carried, finished = rounds[first : first + 4]
        made, kept, out = performed(
            ("tree", *key_of((combine,), current)), _round, combine, current, left, right, carried, finished
        )
        current = torch.cat([made, kept])
        done.append(out)
    last = messages.new_full((1, *messages.shape[1:]), identity)
    # what is left has no rows, but without edges it is all that gradients lead to
    return torch.cat([*done, current, last]).index_select(0, at)


def _check(combine: Combine, messages: Tensor) -> None:
    every = torch.arange(messages.shape[0], device=messages.device)
    check_row_wise("reduce", combine, [(messages, drawn(every)), (messages, drawn(every.flip(0)))])


def _round(
    combine: Combine, x: Tensor, left: Tensor, right: Tensor, carried: Tensor, finished: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs combined; values without a partner in this round; values of destinations that have no other one."""
    ones, others = x.index_select(0, left), x.index_select(0, right)
    out = combine(ones, others)
    if not isinstance(out, Tensor) or out.shape != ones.shape or out.dtype != ones.dtype:
        got = f"{out.dtype} {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise DataError(
            f"reduce: the function of two values must return what it takes, {ones.dtype} {list(ones.shape)} "
            f"(got {got}). Return one value for each pair."
        )
    return out, x.index_select(0, carried), x.index_select(0, finished)


def _rounds(dst: Tensor, num_dst: int) -> tuple[Tensor | int, ...]:
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
