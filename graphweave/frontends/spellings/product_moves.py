"""Moves along an index of rows in several dims, as moves along maps between products of spaces.

Row (b, e) of the rows picked is row b * N + index[e] of the flat form of what they are picked from. An index is checked
against the size of its own dim, since a number that is too large would be another item's row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import fx
from torch.fx.node import Argument, Target

from graphweave.core.calls import Elements, IndexUse, Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, argument, fixed, is_tensor, rank, same, shape, val
from graphweave.frontends.calls.dim_classes import PickedRows, picked
from graphweave.frontends.spellings.product_shape import ProductShape

aten = torch.ops.aten


class FlatWriter(Protocol):
    """The methods that a rule uses while it writes calls."""

    shapes: ProductShape

    def flat(self, x: fx.Node) -> fx.Node:
        """The flat form of `x`."""
        ...

    def call(self, target: Target, *args: Argument, **kwargs: Argument) -> fx.Node:
        """A call, with its value."""
        ...

    def size(self, size: Size) -> int | fx.Node:
        """A size as an argument of calls."""
        ...


@dataclass(frozen=True, slots=True)
class FlatCall:
    """How to make the flat form of a call's result: `write`, from the flat forms of `operands`."""

    write: Callable[[FlatWriter], fx.Node]
    operands: tuple[fx.Node, ...] = ()
    numbered: bool = False
    """Whether it reads numbers of rows, an index that pays only where rows move along an index anyway."""


def row_numbers(w: FlatWriter, node: fx.Node, coordinates: Sequence[tuple[Size, int | fx.Node]]) -> fx.Node:
    """For each row of the flat form of `node`, the number of a row of another tensor.

    A coordinate of the other tensor's rows is its size, and the dim of `node` along which it is the position, or the
    numbers, whose dims are the rows of `node` or 1.
    """
    rows = w.shapes.rows(node)
    total: fx.Node | None = None
    for size, at in coordinates:
        if isinstance(at, int):
            at = w.call(aten.reshape.default, _counted(w, size, node), [-1 if d == at else 1 for d in rows])
        before = None if total is None else w.call(aten.mul.Tensor, total, w.size(size))
        total = at if before is None else w.call(aten.add.Tensor, before, at)
    assert total is not None
    sizes = w.shapes.row_sizes(node)
    if not all(map(same, shape(total), sizes)):
        total = w.call(aten.expand.default, total, [w.size(n) for n in sizes])
    return w.call(aten.reshape.default, total, [-1])


def _counted(w: FlatWriter, size: Size, like: fx.Node) -> fx.Node:
    """0, 1, ..., size - 1, where `like` lies."""
    return w.call(aten.arange.default, w.size(size), dtype=torch.int64, device=val(like).device, pin_memory=False)


def _picked(w: FlatWriter, x: fx.Node, numbers: fx.Node, how: IndexUse) -> fx.Node:
    """Rows of `x` by their numbers, which count from the end where they are negative and the call says so."""
    if how.wraps:
        return w.call(aten.index.Tensor, x, [numbers])
    return w.call(aten.index_select.default, x, 0, numbers)


def flat_move(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """How to write a call along indices with flat forms."""
    how = facts(node.target).index
    found = picked(node, how) if how is not None else None
    if how is None or found is None or not _fits(found, shapes):
        return None
    indices = {d: _OwnIndex.of(index, dims, how) for d, (index, dims) in found.at.items()}
    if not all(index.fits(found.items, shapes) for index in indices.values()):
        return None

    def numbers(w: FlatWriter) -> fx.Node:
        return _numbers_of(w, found, indices, how)

    if how.pushes:
        return _written(node, how, found.items, numbers, shapes)

    def read(w: FlatWriter) -> fx.Node:
        return _picked(w, w.flat(found.x), numbers(w), how)

    return FlatCall(read, (found.x,), numbered=True)


def _fits(found: PickedRows, shapes: ProductShape) -> bool:
    """Whether indices count along rows, all other rows stay, and so do all features."""
    x, items = found.x, found.items
    rows, mine, find = shapes.rows(x), shapes.rows(items), shapes.classes.find
    if not set(found.at) <= set(rows):
        return False
    for d in rows:
        if d not in found.at and (found.kept[d] not in mine or find((items, found.kept[d])) != find((x, d))):
            return False
    features = [[shape(t)[d] for d in shapes.features(t)] for t in (x, items)]
    return len(features[0]) == len(features[1]) and all(map(same, *features))


@dataclass(frozen=True, slots=True)
class _OwnIndex:
    """An index without its repetition over features, and the dims of the rows picked to which its dims belong."""

    index: fx.Node
    dims: tuple[int, ...]

    @staticmethod
    def of(index: fx.Node, dims: tuple[int, ...], how: IndexUse) -> _OwnIndex:
        while how.spread and how.dim is not None and index.op == "call_function":
            known, x = facts(index.target), index.args[0] if index.args else None
            repeats = known.rows is Lead.repeated and isinstance(x, fx.Node) and rank(x) == rank(index)
            if not isinstance(x, fx.Node) or not (repeats or known.elements is Elements.same):
                break
            index = x
        return _OwnIndex(index, dims)

    @property
    def rows(self) -> tuple[int, ...]:
        """The dims of the rows picked along which the index varies."""
        return tuple(d for d, n in zip(self.dims, shape(self.index), strict=True) if fixed(n) != 1)

    def fits(self, items: fx.Node, shapes: ProductShape) -> bool:
        """Whether each dim, but for those of size 1, is a row of the rows picked."""
        if len(self.dims) != rank(self.index):
            return False
        sizes = zip(self.dims, shape(self.index), strict=True)
        return all(d in shapes.rows(items) or fixed(n) == 1 for d, n in sizes)

    def coordinate(self, w: FlatWriter, size: Size, items: fx.Node, how: IndexUse) -> fx.Node:
        """The numbers, checked against `size`, with the rows of `items` as dims."""
        rows = w.shapes.rows(items)
        order = sorted((k for k, d in enumerate(self.dims) if d in rows), key=lambda k: rows.index(self.dims[k]))
        order += [k for k in range(len(self.dims)) if k not in order]
        plain = self.index if order == sorted(order) else w.call(aten.permute.default, self.index, order)
        vector = w.call(aten.reshape.default, plain, [-1])
        checked = _picked(w, _counted(w, size, self.index), vector, how)
        sizes = dict(zip(self.dims, shape(self.index), strict=True))
        return w.call(aten.reshape.default, checked, [w.size(sizes[d]) if d in sizes else 1 for d in rows])


def _numbers_of(w: FlatWriter, found: PickedRows, indices: dict[int, _OwnIndex], how: IndexUse) -> fx.Node:
    """For each row picked, the number of the flat row of `found.x`."""
    rows = w.shapes.rows(found.x)
    if len(rows) == 1 and indices[rows[0]].rows == w.shapes.rows(found.items):
        return _vector(w, indices[rows[0]].index)
    coordinates: list[tuple[Size, int | fx.Node]] = []
    for d in rows:
        size = shape(found.x)[d]
        at = indices[d].coordinate(w, size, found.items, how) if d in indices else found.kept[d]
        coordinates.append((size, at))
    return row_numbers(w, found.items, coordinates)


def _vector(w: FlatWriter, index: fx.Node) -> fx.Node:
    """The numbers of an index as a vector: the one of which `index` is a view, if there is one."""
    x = index
    while x.op == "call_function" and facts(x.target).elements is Elements.reshaped and is_tensor(x.args[0]):
        x = x.args[0]  # type: ignore[assignment]
        if rank(x) == 1 and same(shape(x)[0], prod(shape(index))):
            return x
    return w.call(aten.reshape.default, index, [-1])


def _written(
    node: fx.Node, how: IndexUse, items: fx.Node, numbers: Callable[[FlatWriter], fx.Node], shapes: ProductShape
) -> FlatCall | None:
    """A write of `items` to rows of a tensor."""
    base: Any = node.args[0]
    if not how.base or shapes.names(base) != shapes.names(node):
        return None

    def write(w: FlatWriter) -> fx.Node:
        flat, rows, at = w.flat(base), w.flat(items), numbers(w)
        if how.listed:
            return w.call(aten.index_put.default, flat, [at], rows, bool(argument(node, "accumulate", False)))
        fold = argument(node, "reduce", "sum" if node.target in _ADDS else None)
        if fold is None:
            return w.call(aten.index_copy.default, flat, 0, at, rows)
        if fold != "sum":
            own = argument(node, "include_self", True)
            return w.call(aten.index_reduce.default, flat, 0, at, rows, fold, include_self=own)
        alpha = argument(node, "alpha", 1)
        return w.call(aten.index_add.default, flat, 0, at, rows, **({} if alpha == 1 else {"alpha": alpha}))

    return FlatCall(write, (base, items), numbered=True)


_ADDS = frozenset({aten.scatter_add.default, aten.index_add.default})
"""Scatters that add, and have no argument that says so."""
