"""Index tensors that are given by a formula, such as the node of each place in a table of neighbours.

What `arange` counts stays known through views, repetitions, products with sizes and sums. An element is then a sum: its
position along each dim has digits, and each digit counts times a step. `arange(n)[:, None].expand(n, k).reshape(-1)`
has two digits, one of size n and step 1, and behind it one of size k and step 0. A digit may also stand for the number
that an index has at its place, if a gather from `arange(n)` checks that index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.core.calls import Elements, Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, argument, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.dim_classes import is_whole_slice
from graphweave.frontends.calls.row_rules import permutation, pulled

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Digit:
    """Part of a position along a dim: a number below `size`, which counts times `step`; with `of`, a gather from
    `arange(n)`, the number that its index has there counts."""

    size: Size
    step: Size
    of: fx.Node | None = None

    @property
    def is_zero(self) -> bool:
        """Whether it adds nothing."""
        return fixed(self.step) == 0 or (self.of is None and fixed(self.size) == 1)


Digits: TypeAlias = tuple[Digit, ...]


class NumberFormulas:
    """The digits of the integer tensors of one captured graph."""

    def __init__(self) -> None:
        self._found: dict[fx.Node, tuple[Digits, ...] | None] = {}

    def counts_runs(self, index: fx.Node, rows: Size) -> bool:
        """Whether `index` has each number below `rows` several times, all equally often and in order: element i is
        i // k."""
        dims = self._dims(index)
        match None if dims is None else _join_digits(d for dim in dims for d in dim):
            case [Digit(runs, step, None), Digit(_, each)]:
                return same(runs, rows) and fixed(step) == 1 and fixed(each) == 0
            case _:
                return False

    def repeats(self, index: fx.Node, rows: Size) -> bool:
        """Whether `index` has all numbers below `rows` in order, and all of them several times: element i is
        i % rows."""
        dims = self._dims(index)
        match None if dims is None else _join_digits(d for dim in dims for d in dim):
            case [Digit(_, each), Digit(size, step, None)]:
                return same(size, rows) and fixed(step) == 1 and fixed(each) == 0
            case _:
                return False

    def of_each_item(self, index: fx.Node, rows: Size) -> fx.Node | None:
        """The gather from `arange(n)` by whose index `index` picks rows in each item of a batch: element i * E + e is
        i * n + that index at e, and the items have `rows` rows together. None for any other index."""
        dims = self._dims(index)
        match None if dims is None else _join_digits(d for dim in dims for d in dim):
            case [Digit(items, nodes, None), Digit(_, step, fx.Node() as gather)] if fixed(step) == 1:
                found = pulled(gather)
                in_items = found is not None and same(shape(found[1])[0], nodes) and same(items * nodes, rows)
                return gather if in_items else None
            case _:
                return None

    def _dims(self, node: fx.Node) -> tuple[Digits, ...] | None:
        """The digits along each dim of `node`; None for a tensor that no formula gives."""
        if node not in self._found:
            made = node.op == "call_function" and is_tensor(node) and 0 not in map(fixed, shape(node))
            whole = made and val(node).dtype in (torch.int64, torch.int32)
            self._found[node] = self._computed(node) if whole else None
        return self._found[node]

    def _computed(self, node: fx.Node) -> tuple[Digits, ...] | None:
        known, x = facts(node.target), node.args[0] if node.args else None
        if known.elements in (Elements.numbered, Elements.counted):
            start, step = argument(node, "start", 0), argument(node, "step", 1)
            return ((Digit(shape(node)[0], val(step)),),) if start == 0 else None
        dims = self._dims(x) if isinstance(x, fx.Node) and is_tensor(x) else None
        if dims is None:
            return None
        if facts(node.target).index is not None:
            return self._picked(node, dims)
        if node.target is aten.add.Tensor:
            return self._sum(node, dims)
        if node.target is aten.mul.Tensor:
            return _times(dims, val(node.args[1]))
        if node.target in _FLOOR_DIVISIONS and argument(node, "rounding_mode", "floor") == "floor":
            return _divided(dims, val(node.args[1]))
        if known.rows is Lead.permuted:
            return tuple(dims[d] for d in permutation(node))
        if known.rows is Lead.repeated and node.target is aten.expand.default:
            return _repeated(dims, shape(node))
        if node.target is aten.repeat.default:
            return _in_turn(dims, node.args[1])
        if known.elements is Elements.reshaped:
            return _reshaped([d for dim in dims for d in dim], shape(node))
        kept = known.elements in (Elements.same, Elements.converted) or is_whole_slice(node)
        return dims if kept else None

    def _picked(self, node: fx.Node, dims: tuple[Digits, ...]) -> tuple[Digits, ...] | None:
        """The numbers of an index, as a gather from 0, 1, ... gives them."""
        found = pulled(node)
        counts = len(dims) == 1 and [(fixed(d.step), d.of) for d in dims[0]] == [(1, None)]
        if found is None or not counts or rank(node) != 1 or fixed(shape(node)[0]) == 1:
            return None
        return ((Digit(shape(node)[0], 1, node),),)

    def _sum(self, node: fx.Node, dims: tuple[Digits, ...]) -> tuple[Digits, ...] | None:
        other = node.args[1]
        more = self._dims(other) if isinstance(other, fx.Node) and argument(node, "alpha", 1) == 1 else None
        if more is None:
            return None
        ndim = max(len(dims), len(more))
        pairs = zip(*(((),) * (ndim - len(d)) + d for d in (dims, more)), strict=True)
        sums = tuple(_added(a, b) for a, b in pairs)
        return None if any(s is None for s in sums) else tuple(s for s in sums if s is not None)


def _join_digits(digits: Iterable[Digit]) -> list[Digit]:
    """The same numbers with as few digits as possible."""
    out: list[Digit] = []
    for digit in digits:
        if digit.of is None and fixed(digit.size) == 1:
            continue
        plain = digit.of is None and out and out[-1].of is None
        if plain and same(out[-1].step, digit.step * digit.size):
            digit = Digit(out.pop().size * digit.size, digit.step)
        out.append(digit)
    return out


def _times(dims: tuple[Digits, ...], factor: object) -> tuple[Digits, ...] | None:
    if not isinstance(factor, int | torch.SymInt):
        return None
    return tuple(tuple(replace(d, step=d.step * factor) for d in dim) for dim in dims)


def _divided(dims: tuple[Digits, ...], by: object) -> tuple[Digits, ...] | None:
    """The digits of 0, 1, ... divided by a divisor of their number."""
    match dims:
        case [[Digit(size, step, None)]] if fixed(step) == 1 and isinstance(by, int | torch.SymInt) and fixed(by) != 0:
            count = size // by
            return ((Digit(count, 1), Digit(by, 0)),) if same(count * by, size) else None
        case _:
            return None


def _added(a: Digits, b: Digits) -> Digits | None:
    """The digits of a sum along one dim, along which one of the operands may be repeated."""
    for one, other in ((a, b), (b, a)):
        if all(d.is_zero for d in one):
            return other or one
    if (
        any(d.of is not None for d in (*a, *b))
        or len(a) != len(b)
        or not all(same(d.size, e.size) for d, e in zip(a, b, strict=True))
    ):
        return None
    return tuple(Digit(d.size, d.step + e.step) for d, e in zip(a, b, strict=True))


def _repeated(dims: tuple[Digits, ...], sizes: Sequence[Size]) -> tuple[Digits, ...]:
    """The digits after `expand`: along a dim that is new, or had one item, all items are equal."""
    lead = len(sizes) - len(dims)
    padded = ((),) * lead + dims
    is_one = [all(fixed(d.size) == 1 for d in dim) for dim in padded]
    return tuple((Digit(n, 0),) if one else dim for n, one, dim in zip(sizes, is_one, padded, strict=True))


def _in_turn(dims: tuple[Digits, ...], times: Any) -> tuple[Digits, ...]:
    """The digits after `repeat`: along each dim, all items so many times, one after the other."""
    padded = ((),) * (len(times) - len(dims)) + dims
    counts = [n.meta["val"] if isinstance(n, fx.Node) else n for n in times]
    return tuple((Digit(n, 0), *dim) for n, dim in zip(counts, padded, strict=True))


def _reshaped(digits: Sequence[Digit], sizes: Sequence[Size]) -> tuple[Digits, ...] | None:
    """The digits of a view with dims of these sizes: a dim has several digits, or several dims divide one."""
    out: list[Digits] = [()] * len(sizes)
    left = [d for d in digits if fixed(d.size) != 1]
    places = [d for d, n in enumerate(sizes) if fixed(n) != 1]
    while left and places:
        whole = _run([d.size for d in left], sizes[places[0]])
        parts = _run([sizes[d] for d in places], left[0].size)
        if whole:
            out[places.pop(0)], left = tuple(left[:whole]), left[whole:]
        elif parts and left[0].of is None:
            step = left.pop(0).step
            for d in reversed(places[:parts]):
                out[d], step = (Digit(sizes[d], step),), step * sizes[d]
            places = places[parts:]
        else:
            return None
    return None if left or places else tuple(out)


def _run(sizes: Sequence[Size], product: Size) -> int:
    """How many of `sizes`, from the first on, have this product; 0 if it is none of these products."""
    total: Size = 1
    for count, size in enumerate(sizes, start=1):
        total = total * size
        if same(total, product):
            return count
    return 0


_FLOOR_DIVISIONS = frozenset({aten.floor_divide.default, aten.div.Tensor_mode, aten.div.Scalar_mode})
