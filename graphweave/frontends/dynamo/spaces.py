"""Finds the spaces of a captured graph: classes of leading dims whose rows correspond.

Calls decide which rows correspond, not names or sizes. Two leading dims join one class only if a call relates row r of
one to row r of the other and their sizes are provably equal (or made equal by a guard, for a push's index and source).
A class becomes a `Space` if it is the domain or codomain of a map, or if its size varies from call to call. Every other
tensor is shared data on the unit space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from graphweave.core.types import UNIT, Space
from graphweave.frontends.dynamo.captured_sizes import (
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
from graphweave.frontends.dynamo.row_rules import RULES, index_uses, is_pointwise, pushed_rows, within_rows


class Spaces:
    """The spaces of one graph."""

    def __init__(self, same_as: Mapping[fx.Node, fx.Node]) -> None:
        self._same_as = same_as
        self._parent: dict[fx.Node, fx.Node] = {}
        self._maps: list[tuple[fx.Node, fx.Node, bool]] = []
        self._nodes = [n for n, first in same_as.items() if n is first and is_tensor(n) and rank(n) > 0]
        for node in self._nodes:
            tied = pushed_rows(node) or within_rows(node)
            if tied is not None:
                # PyTorch allows the source of a scatter or gather to be longer than the index, which nobody intends
                same_by_guard(*(shape(n)[0] for n in tied))
            for a, b in self._related(node):
                self._join(a, b)
            for index, x, wrap in index_uses(node, self.rep):
                self._maps.append((index, x, wrap))
        self._join_codomains()
        self.mapped = {self._find(n) for index, x, _ in self._maps for n in (index, x)}
        self._fix_features()
        self.rows: dict[Space, Size] = {}
        self._space = self._name()

    def space_of(self, node: fx.Node) -> Space:
        """The space of the rows of `node`; the unit space for shared data."""
        if rank(node) == 0:
            return UNIT
        return self._space.get(self._find(self.rep(node)), UNIT)

    def wraps(self, index: fx.Node, x: fx.Node) -> bool:
        """Whether `index` may count rows of `x` from the end: False if a call of the graph with both refuses this."""
        key = (self.rep(index), self._find(self.rep(x)))
        return all(wrap for i, y, wrap in self._maps if (self.rep(i), self._find(y)) == key)

    def on_map(self, node: fx.Node) -> bool:
        """Whether the rows of `node` are the domain or codomain of a map of this graph."""
        return is_tensor(node) and rank(node) > 0 and self._find(self.rep(node)) in self.mapped

    def rep(self, node: fx.Node) -> fx.Node:
        return self._same_as[node]

    def _related(self, node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
        rule: Callable[[fx.Node], Iterator[tuple[Any, Any]]] | None = RULES.get(node.target)
        if rule is not None:
            yield from rule(node)
        elif is_pointwise(node):
            for x in node.all_input_nodes:
                if is_tensor(x) and rank(x) == rank(node):
                    yield x, node

    def _join(self, a: Any, b: Any) -> None:
        if not (is_tensor(a) and is_tensor(b)) or rank(a) == 0 or rank(b) == 0:
            return
        a, b = self._find(self.rep(a)), self._find(self.rep(b))
        if a is not b and same(shape(a)[0], shape(b)[0]):
            self._parent[b] = a

    def _find(self, node: fx.Node) -> fx.Node:
        while node in self._parent:
            node = self._parent[node]
        return node

    def _join_codomains(self) -> None:
        """Join tensors with provably equal row counts that one index points into: it is one map, so their rows
        correspond."""
        first: dict[fx.Node, list[fx.Node]] = {}
        for index, x, _ in self._maps:
            known = first.setdefault(self.rep(index), [])
            for y in known:
                self._join(y, x)
            known.append(x)

    def _fix_features(self) -> None:
        """Fix the feature sizes of values on maps to numbers, with a guard for each, since they do not vary between
        calls.

        A size that depends on the number of rows of some map does vary, and stays symbolic.
        """
        varying = {s for root in self.mapped for s in symbols(shape(root)[0])}
        for node in self._nodes:
            if self._find(node) not in self.mapped or node.meta["val"].dtype not in _MOVED:
                continue
            for size in shape(node)[1:]:
                if fixed(size) is None and not unbacked(size) and not symbols(size) & varying:
                    int(size)

    def _name(self) -> dict[fx.Node, Space]:
        domains = {self._find(index) for index, _, _ in self._maps}
        out: dict[fx.Node, Space] = {}
        count = {"E": 0, "V": 0}
        for node in self._nodes:
            root = self._find(node)
            if root in out or (root not in self.mapped and fixed(shape(root)[0]) is not None):
                continue
            letter = "E" if root in domains else "V"
            out[root] = Space(f"{letter}{count[letter]}")
            count[letter] += 1
            self.rows[out[root]] = shape(root)[0]
        return out


_MOVED = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool})
"""Dtypes of values whose feature sizes are fixed."""
