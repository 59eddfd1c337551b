"""Facts of the calls of a captured graph, from the rows of `core/calls`."""

from __future__ import annotations

import functools
import operator

import torch

from graphweave.core.calls import UNKNOWN, CallFacts, Elements, facts_of


@functools.cache
def facts(target: object) -> CallFacts:
    """The facts of an FX node's target."""
    if target is operator.getitem:
        return facts_of("builtin.getitem")
    return facts_of(str(target)) if isinstance(target, torch._ops.OpOverload) else UNKNOWN


def is_listed(target: object, *, pushes: bool) -> bool:
    """Whether the call reads x[indices], or with `pushes` writes to it; `indices` has an index or mask for each dim."""
    index = facts(target).index
    return index is not None and index.listed and index.pushes == pushes


def is_identity(target: object) -> bool:
    """Whether the result has the values of the first operand, if these are real; complex ones are excluded by dtype."""
    return facts(target).elements is Elements.same


def is_reshape(target: object) -> bool:
    """Whether the call rearranges nothing, so that the operand and the shape of the result determine the result."""
    return facts(target).elements is Elements.reshaped
