"""Which dims of the tensors of a captured graph correspond, item by item, by what each call says of its dims.

This is to all dims what `row_rules.py` is to the first one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import fx

from graphweave.core.calls import Elements, IndexUse, Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import Size, argument, dim_of, fixed, is_tensor, rank, same, shape, text
from graphweave.frontends.calls.row_rules import is_pointwise, permutation

Dim: TypeAlias = "tuple[fx.Node, int]"
Pairs: TypeAlias = Iterator[tuple[Dim, Dim]]


class DimClasses:
    """Classes of dims of the tensors of a graph: item i of one dim belongs to item i of each other dim of its class."""

    def __init__(self, graph: fx.Graph) -> None:
        self._parent: dict[Dim, Dim] = {}
        self._number: dict[Dim, int] = {}
        self.splits = [s for node in graph.nodes for s in splits(node)]
        for node in graph.nodes:
            for a, b in aligned(node):
                self._join(a, b)
        while self._join_parts():
            pass
        self._number_all(graph)

    def find(self, dim: Dim) -> Dim:
        """The representative of the class of `dim`."""
        while dim in self._parent:
            dim = self._parent[dim]
        return dim

    def number(self, dim: Dim) -> int:
        """The position of the class of `dim` among all classes.

        Parts of one dim stand in their order in it, so that a view that splits it is a view of flat rows too. Otherwise
        classes stand in the order in which the graph has them.
        """
        return self._number[self.find(dim)]

    def _number_all(self, graph: fx.Graph) -> None:
        ahead: dict[Dim, list[Dim]] = {}
        for _, parts in self.splits:
            for a, b in pairwise(self.find(part) for part in parts):
                if b not in _with_those_ahead(a, ahead):  # two views may disagree: the first one counts
                    ahead.setdefault(b, []).append(a)
        for node in graph.nodes:
            for d in range(rank(node) if is_tensor(node) else 0):
                for dim in _with_those_ahead(self.find((node, d)), ahead):
                    self._number.setdefault(dim, len(self._number))

    def _join(self, a: Dim, b: Dim) -> bool:
        """Make two dims of equal sizes one class. Whether they were none."""
        (x, d), (y, e) = a, b
        if fixed(shape(x)[d]) == 1 or not same(shape(x)[d], shape(y)[e]):
            return False
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        self._parent[b] = a
        return True

    def _join_parts(self) -> bool:
        """Join the parts of one dim that is split twice into dims of the same sizes. Whether there were any."""
        first, joined = dict[tuple[Dim, tuple[str, ...]], tuple[Dim, ...]](), False
        for whole, parts in self.splits:
            key = self.find(whole), tuple(text(shape(x)[d]) for x, d in parts)
            for a, b in zip(first.setdefault(key, parts), parts, strict=True):
                joined |= self._join(a, b)
        return joined


def _with_those_ahead(dim: Dim, ahead: Mapping[Dim, list[Dim]]) -> list[Dim]:
    """All that must stand in front of `dim`, in an order that agrees with `ahead`, and `dim` itself."""
    before = [other for nearest in ahead.get(dim, ()) for other in _with_those_ahead(nearest, ahead)]
    return list(dict.fromkeys([*before, dim]))


def aligned(node: fx.Node) -> Pairs:
    """Pairs of dims, of operands and of the result, that correspond if they have equal sizes."""
    if node.op != "call_function" or not is_tensor(node):
        return
    if node.target is operator.getitem:
        yield from _item(node)
        return
    known = facts(node.target)
    rows = Lead.each if known.rows is None and is_pointwise(node) else known.rows
    if known.elements is Elements.reshaped and rows is Lead.along:  # a squeeze
        rows = Lead.row_major
    if rows is not None:
        yield from _RULES[rows](node)


# ---------------------------------------------------------------- rules


def _from_right(x: Any, node: fx.Node) -> Pairs:
    """The dims of an operand that broadcasts to the dims of `node`."""
    if is_tensor(x):
        shift = rank(node) - rank(x)
        for d in range(max(0, -shift), rank(x)):
            yield (x, d), (node, d + shift)


def _all_but(x: Any, node: fx.Node, *dims: int) -> Pairs:
    """The dims of an operand with as many dims as `node`, but for some."""
    if is_tensor(x) and rank(x) == rank(node):
        for d in range(rank(x)):
            if d not in dims:
                yield (x, d), (node, d)


def _each(node: fx.Node) -> Pairs:
    for x in node.all_input_nodes:
        yield from _from_right(x, node)


def _product(node: fx.Node) -> Pairs:
    """A matrix product, perhaps of batches of matrices."""
    a, b = node.args[-2:] if facts(node.target).rows is Lead.product else node.args[:2]
    if not is_tensor(a) or not is_tensor(b):
        return
    if rank(b) < 2 or rank(a) < 2:  # type: ignore[arg-type]
        yield from ((((a, 0), (node, 0)),) if rank(a) == 2 and rank(node) == 1 else ())  # type: ignore[arg-type, misc]
        return
    shift, behind = rank(node) - rank(a), rank(node) - rank(b)  # type: ignore[arg-type]
    for d in range(rank(a) - 1):  # type: ignore[arg-type]
        yield (a, d), (node, d + shift)  # type: ignore[misc]
    for d in range(rank(b)):  # type: ignore[arg-type]
        if d != rank(b) - 2:  # type: ignore[arg-type]
            yield (b, d), (node, d + behind)  # type: ignore[misc]
    yield (a, rank(a) - 1), (b, rank(b) - 2)  # type: ignore[arg-type, misc]


def _dims(node: fx.Node, ndim: int) -> list[int]:
    """The dims on which a call works; all if it names none."""
    known = facts(node.target)
    dims = argument(node, known.dim, known.default)
    if dims is None or dims == []:
        return list(range(ndim))
    return [dim_of(d, ndim) for d in (dims if isinstance(dims, list | tuple) else [dims])]


def _pair_left_dims(node: fx.Node) -> Pairs:
    x: Any = node.args[0]
    gone, left = _dims(node, rank(x)), 0
    keeps = rank(x) == rank(node)
    for d in range(rank(x)):
        if d not in gone:
            yield (x, d), (node, d if keeps else left)
            left += 1


def _along(node: fx.Node) -> Pairs:
    x: Any = node.args[0]
    dims = [] if is_whole_slice(node) else _dims(node, rank(node))
    yield from _all_but(x, node, *dims)
    for name in facts(node.target).alike:
        yield from _all_but(argument(node, name), node, *dims)


def is_whole_slice(node: fx.Node) -> bool:
    """Whether the call is x[:], which has all items of its operand, since it has as many."""
    return node.target is torch.ops.aten.slice.Tensor and all(map(same, shape(node.args[0]), shape(node)))  # type: ignore[arg-type]


def _taken(node: fx.Node) -> Pairs:
    x: Any = node.args[0]
    (at,) = _dims(node, rank(x))
    for d in range(rank(x)):
        if d != at:
            yield (x, d), (node, d - (d > at))


def _widened(node: fx.Node) -> Pairs:
    x: Any = node.args[0]
    (at,) = _dims(node, rank(node))
    for d in range(rank(x)):
        yield (x, d), (node, d + (d >= at))


def _row_major(node: fx.Node) -> Pairs:
    """A view: dims of equal sizes with as many items in front of them, or behind them."""
    x: Any = node.args[0]
    if not is_tensor(x) or facts(node.target).elements is not Elements.reshaped:
        return
    pairs = _in_step(list(enumerate(shape(x))), list(enumerate(shape(node))))
    behind = _in_step(list(enumerate(shape(x)))[::-1], list(enumerate(shape(node)))[::-1])
    for d, e in dict.fromkeys([*pairs, *behind]):
        yield (x, d), (node, e)


def _in_step(a: Sequence[tuple[int, Size]], b: Sequence[tuple[int, Size]]) -> list[tuple[int, int]]:
    """Pairs of dims of equal sizes from the beginning of two lists on, dims of size 1 left out."""
    a, b = ([(d, n) for d, n in sizes if fixed(n) != 1] for sizes in (a, b))
    out: list[tuple[int, int]] = []
    for (d, m), (e, n) in zip(a, b, strict=False):
        if not same(m, n):
            break
        out.append((d, e))
    return out


def splits(node: fx.Node) -> Iterator[tuple[Dim, tuple[Dim, ...]]]:
    """A dim and the dims into which a view splits it, or that a view joins to it."""
    x: Any = node.args[0] if node.op == "call_function" and node.args else None
    known = facts(node.target)
    reshaped = known.elements is Elements.reshaped
    if not is_tensor(x) or not is_tensor(node) or not reshaped or known.rows is not Lead.row_major:
        return
    before, after = ([(d, n) for d, n in enumerate(shape(t)) if fixed(n) != 1] for t in (x, node))
    while before and after and same(before[0][1], after[0][1]):
        before, after = before[1:], after[1:]
    while before and after and same(before[-1][1], after[-1][1]):
        before, after = before[:-1], after[:-1]
    if len(before) == 1 < len(after):
        yield (x, before[0][0]), tuple((node, d) for d, _ in after)
    elif len(after) == 1 < len(before):
        yield (node, after[0][0]), tuple((x, d) for d, _ in before)


def _repeated(node: fx.Node) -> Pairs:
    yield from _from_right(node.args[0], node)


def _permuted(node: fx.Node) -> Pairs:
    x: Any = node.args[0]
    for d, of in enumerate(permutation(node)):
        yield (x, of), (node, d)


def _pair_joined_dims(node: fx.Node) -> Pairs:
    at = dim_of(argument(node, "dim", 0), rank(node))
    for x in node.args[0]:  # type: ignore[union-attr]
        yield from _all_but(x, node, at)


def _stacked(node: fx.Node) -> Pairs:
    at = dim_of(argument(node, "dim", 0), rank(node))
    for x in node.args[0]:  # type: ignore[union-attr]
        for d in range(rank(x)):  # type: ignore[arg-type]
            yield (x, d), (node, d + (d >= at))  # type: ignore[misc]


def _item(node: fx.Node) -> Pairs:
    source: Any = node.args[0]
    if not isinstance(source, fx.Node) or facts(source.target).rows is not Lead.parts:
        return
    x: Any = source.args[0]
    if not is_tensor(x):
        return
    (at,) = _dims(source, rank(x))
    for d in range(rank(x)):
        if d != at:
            yield (x, d), (node, d if rank(node) == rank(x) else d - (d > at))


# ---------------------------------------------------------------- moves along an index


def _indexed(node: fx.Node) -> Pairs:
    how = facts(node.target).index
    assert how is not None
    moved = picked(node, how)
    if moved is not None:
        yield from moved.pairs
    if how.pushes and how.base:
        yield from _all_but(node.args[0], node)


class PickedRows:
    """How rows are picked from `x` by indices, or brought to it: the dims of `items`, which are the rows picked.

    `at[d]` is the index that counts along dim d of `x`, with the dim of `items` to which each of its dims belongs;
    `kept[d]` is the dim of `items` that is dim d of `x`.
    """

    def __init__(self, x: fx.Node, items: fx.Node) -> None:
        self.x, self.items = x, items
        self.at: dict[int, tuple[fx.Node, tuple[int, ...]]] = {}
        self.kept: dict[int, int] = {}

    @property
    def pairs(self) -> Pairs:
        for d, e in self.kept.items():
            yield (self.x, d), (self.items, e)
        for index, dims in self.at.values():
            for d, e in enumerate(dims):
                yield (index, d), (self.items, e)


def picked(node: fx.Node, how: IndexUse) -> PickedRows | None:
    """The rows that a call along an index picks; None for calls with masks, with indices that are apart, or with
    numbers."""
    x: Any = node if how.pushes else node.args[0]
    items: Any = node if not how.pushes else node.args[how.source] if how.source is not None else None
    if not is_tensor(x) or not is_tensor(items) or rank(x) == 0:
        return None
    found = PickedRows(x, items)
    if how.listed:
        return _listed(found, node.args[how.at])
    index: Any = node.args[how.at]
    at = 0 if how.dim is None else dim_of(node.args[how.dim], rank(x))  # type: ignore[arg-type]
    if how.dim is None:  # an embedding: the index has all dims of the items but the last
        found.at[0] = (index, tuple(range(rank(index))))
        found.kept = {d: rank(index) + d - 1 for d in range(1, rank(x))}
    elif how.spread:
        found.at[at] = (index, tuple(range(rank(index))))
        found.kept = {d: d for d in range(rank(x)) if d != at}
    else:
        found.at[at] = (index, (at,) if rank(index) == 1 else ())
        found.kept = {d: d for d in range(rank(x)) if d != at}
    return found if rank(items) == rank(x) - 1 + (rank(index) if how.dim is None else 1) else None


def _listed(found: PickedRows, indices: Any) -> PickedRows | None:
    """x[..., i, j, ...]: adjacent indices, which broadcast against each other."""
    x = found.x
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    places = [d for d, _ in given]
    if not given or places != list(range(places[0], places[-1] + 1)):
        return None
    if any(
        not is_tensor(i) or i.meta["val"].is_floating_point() or i.meta["val"].dtype.itemsize == 1 for _, i in given
    ):
        return None
    ndim = max(rank(i) for _, i in given)
    first, last = places[0], places[-1]
    if rank(found.items) != rank(x) - len(given) + ndim:
        return None
    for d, i in given:
        found.at[d] = (i, tuple(first + ndim - rank(i) + k for k in range(rank(i))))
    for d in range(rank(x)):
        if d < first:
            found.kept[d] = d
        elif d > last:
            found.kept[d] = d - len(given) + ndim
    return found


_RULES: Mapping[Lead, Callable[[fx.Node], Pairs]] = {
    Lead.each: _each, Lead.given: _each, Lead.product: _product, Lead.matrices: _product, Lead.reduced: _pair_left_dims,
    Lead.along: _along,
    Lead.taken: _taken, Lead.widened: _widened, Lead.row_major: _row_major, Lead.repeated: _repeated,
    Lead.permuted: _permuted, Lead.joined: _pair_joined_dims, Lead.stacked: _stacked, Lead.indexed: _indexed,
    Lead.equation: lambda node: iter(()), Lead.parts: lambda node: iter(()),
}  # fmt: skip
