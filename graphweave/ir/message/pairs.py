"""The space whose rows are the unique pairs of two index tensors."""

from __future__ import annotations

from collections.abc import Sequence

from graphweave.core.types import Space
from graphweave.ir.message.fingerprint import fingerprint
from graphweave.ir.message.nodes import MapOf, Node, Ref


def pair_space(nodes: Sequence[Node], m: Ref, t: Ref) -> Space:
    """The space of the unique pairs of two maps (`pairs_of` their indices), even if the program does not have it."""
    a, b = nodes[m], nodes[t]
    assert isinstance(a, MapOf) and isinstance(b, MapOf)
    return pairs_of(nodes, a.index, b.index)


def pairs_of(nodes: Sequence[Node], a: Ref, b: Ref) -> Space:
    """The space of the unique pairs of two index tensors, whose name is the same in all programs and unique in each.

    Nothing is read off the name: the node `Distinct` tells what the space holds.
    """
    return Space(f"P_{fingerprint(nodes, a)[:8]}_{fingerprint(nodes, b)[:8]}")
