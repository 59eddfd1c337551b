"""Finds the spaces of a captured graph: classes of leading dims whose rows correspond.

Calls decide which rows correspond, not names or sizes. Two leading dims join one class only if a call relates row r of
one to row r of the other and their sizes are provably equal (or made equal by a guard, for a push's index and source).
A class becomes a `Space` if it is the domain or codomain of a map, or if its size varies from call to call. Every other
tensor is shared data on the unit space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from graphweave.core.types import UNIT, Space
from graphweave.frontends.calls.captured_sizes import (
    Size,
    fixed,
    is_tensor,
    rank,
    same,
    same_by_guard,
    shape,
    symbols,
    unbacked,
)
from graphweave.frontends.calls.row_rules import index_uses, ordered_rows, pushed_rows, related, within_rows
from graphweave.frontends.calls.row_unions import END, bound, joined_rows, places, sliced_rows


class Spaces:
    """The spaces of one graph."""

    def __init__(self, same_as: Mapping[fx.Node, fx.Node]) -> None:
        self._same_as = same_as
        self._parent: dict[fx.Node, fx.Node] = {}
        self._maps: list[tuple[fx.Node, fx.Node, bool]] = []
        self.nodes = [n for n, first in same_as.items() if n is first and is_tensor(n) and rank(n) > 0]
        for node in self.nodes:
            tied = pushed_rows(node) or within_rows(node)
            if tied is not None:
                # PyTorch allows the source of a scatter or gather to be longer than the index, which nobody intends
                same_by_guard(*(shape(n)[0] for n in tied))
            for a, b in related(node):
                self.join(a, b)
            for index, x, wrap in index_uses(node, self.rep):
                self._maps.append((index, x, wrap))
                self._join_ordered(index, x)
        self.join_codomains()
        self.unions = _Unions(self)
        self.mapped = self.unions.closed({self.find(n) for index, x, _ in self._maps for n in (index, x)})
        self._fix_features()
        self.rows: dict[Space, Size] = {}
        self._space = self._name()

    def space_of(self, node: fx.Node) -> Space:
        """The space of the rows of `node`; the unit space for shared data."""
        if rank(node) == 0:
            return UNIT
        return self._space.get(self.find(self.rep(node)), UNIT)

    def segments_of(self, node: fx.Node) -> tuple[Space, ...]:
        """The spaces of the operands of a call that joins their rows."""
        xs = joined_rows(node)
        assert xs is not None
        return tuple(map(self.space_of, xs))

    def segment_of(self, node: fx.Node) -> tuple[tuple[int | None, ...], tuple[Space, ...], int] | None:
        """For a slice of rows, or its gradient: the fixed row counts and the spaces of the segments of the whole, and
        which of them the part is; None if it is none of them."""
        found = self.unions.segment(node)
        if found is None:
            return None
        segments, at = found
        sizes = tuple(fixed(shape(root)[0]) for root in segments)
        return sizes, tuple(self._space.get(self.find(root), UNIT) for root in segments), at

    def wraps(self, index: fx.Node, x: fx.Node) -> bool:
        """Whether `index` may count rows of `x` from the end: False if a call of the graph with both refuses this."""
        key = (self.rep(index), self.find(self.rep(x)))
        return all(wrap for i, y, wrap in self._maps if (self.rep(i), self.find(y)) == key)

    def on_map(self, node: fx.Node) -> bool:
        """Whether the rows of `node` are the domain or codomain of a map of this graph."""
        return is_tensor(node) and rank(node) > 0 and self.find(self.rep(node)) in self.mapped

    def rep(self, node: fx.Node) -> fx.Node:
        return self._same_as[node]

    def join(self, a: fx.Node, b: Any) -> bool:
        """Make the rows of two tensors one class. False if they are one already, or if their numbers may differ."""
        if not (is_tensor(a) and is_tensor(b)) or rank(a) == 0 or rank(b) == 0:
            return False
        a, b = self.find(self.rep(a)), self.find(self.rep(b))
        if a is b or not same(shape(a)[0], shape(b)[0]):
            return False
        self._parent[b] = a
        return True

    def find(self, node: fx.Node) -> fx.Node:
        """The representative of the class of a node's rows; `node` is its own `rep`."""
        while node in self._parent:
            node = self._parent[node]
        return node

    def join_codomains(self) -> None:
        """Join tensors with provably equal row counts that one index points into: it is one map, so their rows
        correspond."""
        first: dict[fx.Node, list[fx.Node]] = {}
        for index, x, _ in self._maps:
            known = first.setdefault(self.rep(index), [])
            for y in known:
                self.join(y, x)
            known.append(x)

    def _join_ordered(self, index: fx.Node, x: fx.Node) -> None:
        """Join the rows of x with those that a sort orders, if the order is an index into x. A guard makes them equally
        many, since nobody intends the order of a shorter tensor."""
        of = ordered_rows(index)
        if of is not None and same_by_guard(shape(of)[0], shape(x)[0]):
            self.join(of, x)

    def _fix_features(self) -> None:
        """Fix the feature sizes of values on maps to numbers, with a guard for each, since they do not vary between
        calls.

        A size that depends on the number of rows of some map does vary, and stays symbolic.
        """
        varying = {s for root in self.mapped for s in symbols(shape(root)[0])}
        for node in self.nodes:
            if self.find(node) not in self.mapped or node.meta["val"].dtype not in _MOVED:
                continue
            for size in shape(node)[1:]:
                if fixed(size) is None and not unbacked(size) and not symbols(size) & varying:
                    int(size)

    def _name(self) -> dict[fx.Node, Space]:
        domains = {self.find(index) for index, _, _ in self._maps}
        out: dict[fx.Node, Space] = {}
        count = {"E": 0, "V": 0}
        for node in self.nodes:
            root = self.find(node)
            if root in out or (root not in self.mapped and fixed(shape(root)[0]) is not None):
                continue
            letter = "E" if root in domains else "V"
            out[root] = Space(f"{letter}{count[letter]}")
            count[letter] += 1
            self.rows[out[root]] = shape(root)[0]
        return out


class _Unions:
    """Which classes of rows are the concatenated rows of others (`row_unions.py`).

    Unions of equal segments become one class, and so do the segments of one class in the same places, and a segment and
    the slice that takes it out.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._joins = [n for n in spaces.nodes if joined_rows(n) is not None]
        self._slices = [n for n in spaces.nodes if sliced_rows(n) is not None] if self._joins else []
        self._places: dict[tuple[fx.Node, ...], Mapping[tuple[Any, Any], int]] = {}
        self._consists: dict[fx.Node, list[tuple[fx.Node, ...]]] = {}
        while self._step():
            spaces.join_codomains()

    def closed(self, mapped: set[fx.Node]) -> set[fx.Node]:
        """`mapped` with the segments of each union in it, and with each union that has a segment in it.

        One row stays shared data, which broadcasts.
        """
        groups = [{self._spaces.find(n), *self._segments(n)} for n in self._joins]
        groups = [{n for n in group if fixed(shape(n)[0]) != 1} for group in groups]
        while True:
            more = mapped.union(*(group for group in groups if group & mapped))
            if len(more) == len(mapped):
                return more
            mapped = more

    def segment(self, node: fx.Node) -> tuple[tuple[fx.Node, ...], int] | None:
        """The segments of the whole of a slice of rows, and the position of the part; None if it is no segment."""
        found = sliced_rows(node)
        if found is None:
            return None
        _, whole, start, end = found
        key, root = (bound(start), end if end == END else bound(end)), self._spaces.find(self._spaces.rep(whole))
        for segments in self._consists.get(root, ()):
            at = self._placed(segments).get(key)
            if at is not None:
                return segments, at
        return None

    def _step(self) -> bool:
        """Join classes whose rows correspond because of unions. Whether there were any."""
        self._consists = self._of()
        joined, first = False, dict[tuple[fx.Node, ...], fx.Node]()
        for node in self._joins:
            joined |= self._spaces.join(first.setdefault(self._segments(node), node), node)
        for known in self._consists.values():
            for other in known[1:]:
                if self._placed(other) == self._placed(known[0]):
                    joined |= any([self._spaces.join(a, b) for a, b in zip(known[0], other, strict=True)])
        for node in self._slices:
            found, part = self.segment(node), sliced_rows(node)
            if found is not None and part is not None:
                segments, at = found
                joined |= self._spaces.join(segments[at], part[0])
        return joined

    def _segments(self, node: fx.Node) -> tuple[fx.Node, ...]:
        return tuple(self._spaces.find(self._spaces.rep(x)) for x in joined_rows(node) or ())

    def _of(self) -> dict[fx.Node, list[tuple[fx.Node, ...]]]:
        """Class -> the segments that it is known to consist of."""
        out: dict[fx.Node, list[tuple[fx.Node, ...]]] = {}
        for node in self._joins:
            known, segments = out.setdefault(self._spaces.find(node), []), self._segments(node)
            if segments not in known:
                known.append(segments)
        return out

    def _placed(self, segments: tuple[fx.Node, ...]) -> Mapping[tuple[object, object], int]:
        if segments not in self._places:
            self._places[segments] = places([shape(x)[0] for x in segments])
        return self._places[segments]


_MOVED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})
"""Dtypes of values whose feature sizes are fixed."""
