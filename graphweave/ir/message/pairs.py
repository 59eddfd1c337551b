"""The unique pairs of two index tensors, as programs call them (`builtin._unique_pairs`), and their space."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.core.types import Space
from graphweave.ir.message.fingerprint import fingerprint
from graphweave.ir.message.nodes import AnyType, MapOf, Node, Ref, ValueType

_PAIRS, _PREFIX = "pairs ", "P_"  # of the type of a call, of the name of a space


def unique_pairs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of `a` and `b`, integer [n]: which pair (a[i], b[i]) is, int64 [n], and a and b of each, int64 [pairs].

    Pairs are ordered by b, then a. Values may be negative; their ranges may not span more than 2**63 pairs.
    """
    a, b = a.long(), b.long()
    if not a.numel():
        empty = a.new_empty(0)
        return empty, empty.clone(), empty.clone()
    (low, high), first = torch.aminmax(a), b.min()
    width = high - low + 1
    keys, pair = torch.unique((b - first) * width + (a - low), return_inverse=True)
    return pair, keys % width + low, keys.div(width, rounding_mode="floor") + first


def pair_space(nodes: Sequence[Node], m: Ref, t: Ref) -> Space:
    """The space of pairs of two maps. Its name says of which index tensors, and so is the same wherever they stand."""
    a, b = nodes[m], nodes[t]
    assert isinstance(a, MapOf) and isinstance(b, MapOf)
    return pairs_of(nodes, a.index, b.index)


def pairs_of(nodes: Sequence[Node], a: Ref, b: Ref) -> Space:
    """The same of two index tensors."""
    return Space(f"{_PREFIX}{fingerprint(nodes, a)[:8]}_{fingerprint(nodes, b)[:8]}")


def is_pair_space(space: Space) -> bool:
    return space.name.startswith(_PREFIX)


def pairs_type(space: Space) -> AnyType:
    """The type of a call that makes the pairs of `space`."""
    return AnyType(_PAIRS + space.name)


def space_of_pairs(t: ValueType) -> Space | None:
    """The space whose pairs a value of type `t` is."""
    if not isinstance(t, AnyType) or not t.text.startswith(_PAIRS):
        return None
    return Space(t.text.removeprefix(_PAIRS))
