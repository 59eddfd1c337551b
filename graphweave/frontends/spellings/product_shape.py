"""Which dims of captured tensors are rows, where a tensor has rows in several dims: [batch, nodes, features].

Rows are the dims along which an index counts, the dims of such an index, what these are split into or joined to, and
dims in front of rows whose sizes vary from call to call. All other dims are features, of sizes that a guard fixes. A
tensor with rows in several dims has a *flat form*: its rows in one order, that of their classes, in front as one dim,
and its features behind them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from graphweave.core.calls import Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, fixed, hint, is_tensor, rank, shape, symbols, unbacked, val
from graphweave.frontends.calls.dim_classes import Dim, DimClasses, picked

aten = torch.ops.aten

_MAX_FEATURES = 64
"""A dim of fixed size up to this, along which an index of fixed size counts, is a dim of features in another order."""


def multiplies_batches(node: fx.Node) -> bool:
    """Whether `node` is a product of batches of matrices."""
    return node.op == "call_function" and facts(node.target).rows is Lead.matrices and rank(node) > 2


def multiplied_rows(node: fx.Node) -> Iterator[Dim]:
    """The dims that are rows because `node` multiplies them, in a dim that is not the first, by shared matrices or
    adds up their products."""
    if node.target not in (aten.bmm.default, aten.mm.default):
        return
    a, b = node.args[:2]
    if not is_tensor(a) or not is_tensor(b):
        return
    batched, varying = node.target is aten.bmm.default, tuple(map(_varying, (a, b, node)))
    if varying == ((1,), (), (1,)) and batched:
        yield a, 1  # type: ignore[misc]
    last = rank(node) - 1
    if varying == ((), (last,), (last,)):
        yield b, last  # type: ignore[misc]
    if varying == ((2,), (1,), ()) and batched:
        yield a, 2  # type: ignore[misc]


def _varying(x: Any) -> tuple[int, ...]:
    return tuple(d for d, n in enumerate(shape(x)) if fixed(n) is None)


class ProductShape:
    """The rows and features of the tensors of one graph.

    With `multiplied`, the dims of products of batches of matrices that vary, but for the last, are rows too, unless an
    index counts along the batch (a matrix for each edge), and so are heads in front of rows, [batch, heads, nodes,
    features]. Rows then keep their order, so that flat forms are views.
    """

    def __init__(self, graph: fx.Graph, *, multiplied: bool = False) -> None:
        self.classes, self._in_place = DimClasses(graph), multiplied
        self._rows: set[Dim] = set()
        for node in graph.nodes:
            self._add_indexed(node)
            self._rows.update(self.classes.find(dim) for dim in multiplied_rows(node))
        for node in list(filter(multiplies_batches, graph.nodes)) if multiplied else ():
            if self.classes.find((node, 0)) not in self._rows:  # else matrices of edges, whose dims are features
                self._add_varying(node, range(rank(node) - 1))
        before = -1
        while before != len(self._rows):
            before = len(self._rows)
            self._add_parts()
            for node in graph.nodes:
                self._add_in_front(node)
        # found once, since a guard of a later call may fix a size that varies here
        self._found = {n: self._rows_of(n) for n in graph.nodes if is_tensor(n)}
        self._symbols = {s for n, rows in self._found.items() for d in rows for s in symbols(shape(n)[d])}

    def _add_varying(self, x: fx.Node, dims: Iterable[int]) -> None:
        self._rows.update(self.classes.find((x, d)) for d in dims if fixed(shape(x)[d]) is None)

    def _add_indexed(self, node: fx.Node) -> None:
        how = facts(node.target).index if node.op == "call_function" else None
        found = picked(node, how) if how is not None else None
        if found is None:
            return
        for d, (index, _) in found.at.items():
            spread = how is not None and how.spread and how.dim is not None
            sizes, size = (shape(index)[d],) if spread else shape(index), fixed(shape(found.x)[d])
            if all(fixed(n) is not None for n in sizes) and size is not None and size <= _MAX_FEATURES:
                continue
            if spread and d > 0 and d == rank(found.x) - 1:
                continue  # numbers of a row are picked, such as that of its class
            self._rows.add(self.classes.find((found.x, d)))
            if how is not None and not how.spread:
                self._rows.update(self.classes.find((index, e)) for e in range(rank(index)))
            else:
                self._add_varying(index, range(d + 1))

    def _add_in_front(self, x: fx.Node) -> None:
        """Add what varies in front of rows, such as a batch. Features stand there only where rows are transposed, as
        for the gradient of a matrix that all rows share."""
        if x.op == "call_function" and facts(x.target).rows is Lead.permuted:
            return
        rows = [d for d in range(rank(x)) if self.classes.find((x, d)) in self._rows] if is_tensor(x) else []
        if rows:
            self._add_varying(x, range(rows[-1]))

    def _add_parts(self) -> None:
        """Add the dims into which rows are split or joined, but for features of fixed size."""
        for whole, parts in self.classes.splits:
            if self.classes.find(whole) in self._rows:
                for x, d in parts:
                    self._add_varying(x, (d,))
                    if not val(x).is_floating_point():
                        self._rows.add(self.classes.find((x, d)))
            elif all(self.classes.find((x, d)) in self._rows for x, d in parts if fixed(shape(x)[d]) is None):
                self._add_varying(whole[0], (whole[1],))

    def _rows_of(self, x: fx.Node) -> tuple[int, ...]:
        sizes, find = shape(x), self.classes.find
        found = [d for d in range(rank(x)) if fixed(sizes[d]) != 1 and find((x, d)) in self._rows]
        if self._in_place:
            return tuple(d for d in range(found[-1] + 1) if fixed(sizes[d]) != 1) if found else ()
        return tuple(sorted(found, key=lambda d: (self.classes.number((x, d)), d)))

    def rows(self, x: fx.Node) -> tuple[int, ...]:
        """The dims of `x` that are rows, in the order of the flat form."""
        return self._found[x]

    def features(self, x: fx.Node) -> tuple[int, ...]:
        """The dims of `x` that are no rows."""
        rows = self.rows(x)
        return tuple(d for d in range(rank(x)) if d not in rows)

    def has_features(self, x: fx.Node) -> bool:
        """Whether the sizes of the features of `x` are fixed, or a guard can fix them, and none is 0."""
        for d in self.features(x):
            size = shape(x)[d]
            known = fixed(size)
            if known == 0 or (known is None and (unbacked(size) or symbols(size) & self._symbols or not hint(size))):
                return False
        return True

    def feature_sizes(self, x: fx.Node) -> list[int]:
        """The sizes of the features of `x`. Adds guards that fix them."""
        return [int(shape(x)[d]) for d in self.features(x)]

    def is_flat(self, x: fx.Node) -> bool:
        """Whether `x` is its own flat form."""
        return self.rows(x) in ((), (0,))

    def names(self, x: fx.Node) -> tuple[int, ...]:
        """The classes of the rows of `x`, in the order of the flat form."""
        return tuple(self.classes.number((x, d)) for d in self.rows(x))

    def leads(self, x: fx.Node) -> bool:
        """Whether the rows of `x` are its first dims, in the order of the flat form."""
        rows = self.rows(x)
        return rows == tuple(range(len(rows)))

    def count(self, x: fx.Node) -> Size:
        """The number of rows of the flat form of `x`."""
        return math.prod(self.row_sizes(x))

    def row_sizes(self, x: fx.Node) -> Sequence[Size]:
        """The sizes of the rows of `x`, in the order of the flat form."""
        return [shape(x)[d] for d in self.rows(x)]
