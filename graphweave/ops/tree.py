"""Messages reduced by an associative function of two values: a balanced tree over the edges of each destination.

In every round neighbours among what a destination still has are combined in pairs, ((m0 m1)(m2 m3)) m4 for five edges,
in the order of edges. So the function need not be commutative, rounding errors grow with the logarithm of a degree, and
ceil(log2(largest degree)) rounds are enough. Which rows a round combines depends on the graph alone: those indices are
made once a graph, and kept as other results are that depend on index tensors alone (`runtime/memo.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from graphweave.core.edge_functions import PairFunction, check_identity, check_pairs
from graphweave.ops.perform import key_of, performed
from graphweave.ops.row_check import check_row_wise, drawn, once
from graphweave.runtime.memo import memo
from graphweave.runtime.tree_rounds import tree_rounds
from graphweave.runtime.unseen_edits import watch


def tree_reduced(messages: Tensor, dst: Tensor, num_dst: int, combine: PairFunction, identity: float) -> Tensor:
    """[edges, ...] -> [destinations, ...], `identity` for destinations without edges.

    Differentiable in `messages` and in what `combine` closes over. Each round keeps its results for the backward:
    fewer than edges + destinations rows in all, besides the messages.
    """
    check_identity(identity, messages.dtype, messages.is_floating_point())
    if messages.shape[0]:
        once(("tree", *key_of((combine,), messages)), lambda: _check(combine, messages))
    watch(dst)
    indices: Any = memo(tree_rounds, dst, num_dst)
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
    # The rest has no rows. Without edges it is the only way by which gradients reach the messages.
    return torch.cat([*done, current, last]).index_select(0, at)


def _check(combine: PairFunction, messages: Tensor) -> None:
    every = torch.arange(messages.shape[0], device=messages.device)
    check_row_wise("reduce", combine, [(messages, drawn(every)), (messages, drawn(every.flip(0)))])


def _round(
    combine: PairFunction, x: Tensor, left: Tensor, right: Tensor, carried: Tensor, finished: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The combined pairs, the values that have no partner in this round, and the values that are their destination's
    only ones."""
    ones, others = x.index_select(0, left), x.index_select(0, right)
    out = check_pairs(combine(ones, others), ones)
    return out, x.index_select(0, carried), x.index_select(0, finished)
