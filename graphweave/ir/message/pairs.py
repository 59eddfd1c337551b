"""The unique pairs of two index tensors, and the space whose rows they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from graphweave.core.types import Space
from graphweave.ir.message.fingerprint import fingerprint
from graphweave.ir.message.nodes import MapOf, Node, Ref


class PairTensors(NamedTuple):
    """The value of `UniquePairs`, int64: the pair of each row, and the two ends of each pair."""

    rows: Tensor
    a: Tensor
    b: Tensor


def unique_pairs(a: Tensor, b: Tensor) -> PairTensors:
    """The pairs (a[i], b[i]) of `a` and `b`, integer [n], ordered by b, then a.

    Values may be negative; their ranges may not span more than 2**63 pairs.
    """
    a, b = a.long(), b.long()
    if not a.numel():
        empty = a.new_empty(0)
        return PairTensors(empty, empty.clone(), empty.clone())
    (low, high), first = torch.aminmax(a), b.min()
    width = high - low + 1
    keys, rows = torch.unique((b - first) * width + (a - low), return_inverse=True)
    return PairTensors(rows, keys % width + low, keys.div(width, rounding_mode="floor") + first)


def pair_space(nodes: Sequence[Node], m: Ref, t: Ref) -> Space:
    """The space of the unique pairs of two maps (`pairs_of` their indices), even if the program does not have it."""
    a, b = nodes[m], nodes[t]
    assert isinstance(a, MapOf) and isinstance(b, MapOf)
    return pairs_of(nodes, a.index, b.index)


def pairs_of(nodes: Sequence[Node], a: Ref, b: Ref) -> Space:
    """The space of the unique pairs of two index tensors, whose name is the same in all programs and unique in each.

    Nothing is read off the name: the node `UniquePairs` tells what the space holds.
    """
    return Space(f"P_{fingerprint(nodes, a)[:8]}_{fingerprint(nodes, b)[:8]}")
