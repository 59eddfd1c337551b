"""Numbers in which otherwise equal parts differ, such as the share of each layer of GCNII.

A part is traced twice, with its own numbers and with others. A constant that is the same in both graphs depends on no
number, and one that differs is one of a few functions of one number. So the graph of a part with other numbers follows
without a trace. If a constant is none of these functions, or the graphs differ otherwise, each part is traced by
itself. Numbers for which formulas look, such as 1, are no numbers in this sense (`core/numbers.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from torch import fx
from torch.fx.node import Argument, map_aggregate

from graphweave.core.exact import exact
from graphweave.core.numbers import any_other

Place = tuple[int, Callable[[float], float]]
"""The position of a number, and the function of it that a constant is."""

_FUNCTIONS: tuple[Callable[[float], float], ...] = (
    lambda x: x,
    lambda x: -x,
    lambda x: 1 - x,
    lambda x: x - 1,
    lambda x: 1 / x,
    lambda x: 1 / (1 - x),
)
"""Functions of a number that decompositions and derivatives have as constants."""


def numbers_of(node: fx.Node) -> list[float]:
    """The numbers in the arguments of a call, in order."""
    return [leaf for leaf in _leaves(node) if _is_number(leaf)]


def others(numbers: Sequence[float]) -> list[float]:
    """Numbers like these (`any_other`) that differ from them in other ways each. Equal ones stay equal."""
    distinct = list(dict.fromkeys(numbers))
    shares = {x: (i + 1) / (17 * len(distinct)) for i, x in enumerate(distinct)}
    return [_nudged(x, shares[x]) for x in numbers]


def _nudged(x: float, share: float) -> float:
    size = abs(x)
    other = size / (1 + share) if size < 0.5 else size + (1 - size) * share if size < 1 else size * (1 + share)
    return math.copysign(other, x)


def with_numbers(node: fx.Node, numbers: Iterator[float]) -> None:
    """Put `numbers` in the places of the numbers of a call."""
    args, kwargs = map_aggregate((node.args, node.kwargs), lambda leaf: next(numbers) if _is_number(leaf) else leaf)
    node.args, node.kwargs = args, kwargs


def varying_constants(
    graph: fx.Graph, numbers: Sequence[float], other: fx.Graph, other_numbers: Sequence[float]
) -> dict[fx.Node, dict[int, Place]] | None:
    """For each call of `graph`, the constants that depend on a number, by their positions in its arguments; None if it
    is not known how they do."""
    if len(graph.nodes) != len(other.nodes):
        return None
    found: dict[fx.Node, dict[int, Place]] = {}
    place: dict[fx.Node, fx.Node] = {}
    for a, b in zip(graph.nodes, other.nodes, strict=True):
        place[a] = b
        ours, theirs = _leaves(a), _leaves(b)
        if a.op != b.op or len(ours) != len(theirs) or (a.op == "call_function" and a.target is not b.target):
            return None
        for i, (one, two) in enumerate(zip(ours, theirs, strict=True)):
            if (place.get(one) is two) if isinstance(one, fx.Node) else exact(one) == exact(two):
                continue
            at = _function(one, numbers, two, other_numbers)
            if at is None:
                return None
            found.setdefault(a, {})[i] = at
    return found


def put(node: fx.Node, constants: dict[int, Place], numbers: Sequence[float]) -> None:
    """Put into a copied call the constants that the numbers of a part lead to."""
    position = -1

    def constant(leaf: Argument) -> Argument:
        nonlocal position
        position += 1
        if position not in constants:
            return leaf
        at, function = constants[position]
        return function(numbers[at])

    args, kwargs = map_aggregate((node.args, node.kwargs), constant)
    node.args, node.kwargs = args, kwargs


def _function(one: object, numbers: Sequence[float], two: object, other_numbers: Sequence[float]) -> Place | None:
    """The number, and the function of it, which is `one` of `numbers` and `two` of `other_numbers`."""
    if type(one) is not float or type(two) is not float:
        return None
    for at, (x, y) in enumerate(zip(numbers, other_numbers, strict=True)):
        for function in _FUNCTIONS:
            if function(x) == one and function(y) == two:
                return at, function
    return None


def _leaves(node: fx.Node) -> list[Argument]:
    """Operands and constants of a call, in order."""
    out: list[Argument] = []

    def keep(leaf: Argument) -> Argument:
        out.append(leaf)
        return leaf

    map_aggregate((node.args, node.kwargs), keep)
    return out


def _is_number(leaf: object) -> TypeGuard[float]:
    return isinstance(leaf, float) and any_other(leaf) is not None
