"""Kernels for all items of a batch that have one graph: they walk the map of one item, once for each item.

    for v < B * N: for edges of v in the CSR of B * E edges: ...
->  for i < B: for v < N: for edges of v in the CSR of E edges: ..., where x[v] is row i * N + v of x

Maps that say so (`EachItem`) lead from the edges of all items to their rows. The body of the kernel is that of one
item: a buffer with rows for each item begins at those of the item, and what items share, such as weights of edges, is
read at the rows of one item. So nothing of B * E is computed or stored to find rows, and the formats of a graph serve
batches of all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.analysis.cones import Needs, map_type, space_of, type_of
from graphweave.analysis.maps import in_equal_runs, is_repeated, item_map
from graphweave.analysis.typed import is_typed
from graphweave.core.numbers import is_neutral
from graphweave.core.sizes import Size, product
from graphweave.core.types import UNIT, OwnFold, Space
from graphweave.ir.message import nodes as ir
from graphweave.lower.schedule import Region


@dataclass(frozen=True, slots=True)
class Items:
    """How a region's rows are those of items. `rows` are the rows of all items.

    `spaces` leads from the space of all items to that of one; None stands for a single row. `maps` leads from a map for
    all items to that of one. Along the maps `repeated` all items read the same rows, each row its own, and along those
    of `single` all rows of an item read the item's. With `summed` the region's members are folded along this map, over
    all items into the rows of one.
    """

    rows: Space
    spaces: Mapping[Space, Space | None]
    maps: Mapping[ir.Ref, ir.Ref]
    repeated: frozenset[ir.Ref]
    single: frozenset[ir.Ref]
    summed: ir.Ref | None = None


def items_of(program: ir.Program, region: Region, needs: Iterable[Needs], on_edges: frozenset[ir.Ref]) -> Items | None:
    """The items of a region whose members have these needs, those `on_edges` along its map; None if it has rows that
    are in no item, or reads some along another map."""
    needs = tuple(needs)
    summed = region.map if region.map is not None and is_repeated(program.nodes, region.map) else None
    if summed is not None and not all(r in on_edges and _is_sum_over_items(program, r) for r in region.members):
        return None
    inner = {r for n in needs for r in n.inner}.union(region.members)
    fused = (isinstance(n := program.nodes[r], ir.Push) and n.fused for r in region.members)
    if any(fused) or any(isinstance(program.nodes[r], ir.Random) or is_typed(program, r) for r in inner):
        return None
    walked = () if region.map is None else (region.map,)
    found = _Found(program, region)
    fits = all(map(found.add, sorted({*walked, *(m for n in needs for _, m in n.pulls)}, key=found.order)))
    values = {r for n in needs for r in (*n.same, *(y for y, _ in n.pulls))}.union(inner)
    spaces = {s for r in values if (s := space_of(program, r)) is not None}
    of_one = {s for s in found.spaces.values() if s is not None}.union(found.shared)
    rows = region.rows if summed is None else map_type(program, summed).dom
    if not fits or rows not in found.spaces or not of_one.isdisjoint(found.spaces):
        return None
    if not spaces <= {UNIT, *found.spaces, *found.shared}:
        return None
    if summed is not None and any(isinstance(program.nodes[r], ir.MatMul) for r in inner):
        return None
    return Items(rows, found.spaces, found.maps, frozenset(found.repeated), frozenset(found.single), summed)


def _is_sum_over_items(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether a member is a fold that gives the same without items as a fold of nothing."""
    node = program.nodes[ref]
    if not isinstance(node, ir.Push) or isinstance(node.fold, OwnFold):
        return False
    return is_neutral(node.empty, node.fold, type_of(program, ref).dtype)


class _Found:
    """Collects how the maps that a region reads divide rows into items."""

    def __init__(self, program: ir.Program, region: Region) -> None:
        self._program, self._region, self._sizes = program, region, dict(program.spaces)
        self.spaces: dict[Space, Space | None] = {}
        self.maps: dict[ir.Ref, ir.Ref] = {}
        self.repeated: set[ir.Ref] = set()
        self.single: set[ir.Ref] = set()
        self.shared: set[Space] = set()

    def order(self, m: ir.Ref) -> tuple[bool, bool, ir.Ref]:
        """Maps that say what an item is come before those that only fit to it, the region's own before all."""
        return m != self._region.map, in_equal_runs(self._program.nodes, m), m

    def add(self, m: ir.Ref) -> bool:
        """Take a map into account. Whether it fits to the others."""
        nodes, ends = self._program.nodes, map_type(self._program, m)
        item = item_map(nodes, m)
        if item is not None:
            of_item = map_type(self._program, item)
            self.maps[m] = item
            return self._is(ends.dom, of_item.dom) and self._is(ends.cod, of_item.cod)
        if is_repeated(nodes, m):
            self.repeated.add(m)
            self.shared.add(ends.cod)
            return self._is(ends.dom, ends.cod)
        if in_equal_runs(nodes, m) and self._has_one_row(ends.dom, ends.cod):
            self.single.add(m)
            return self.spaces.setdefault(ends.cod, None) is None
        return False

    def _is(self, space: Space, of_one: Space) -> bool:
        """Whether each item has the rows of `of_one` in `space`."""
        known = self.spaces.setdefault(space, of_one)
        return known is not None and (known == of_one or self._size(known) == self._size(of_one) is not None)

    def _has_one_row(self, space: Space, items: Space) -> bool:
        """Whether `items` has one row for each item of `space`."""
        of_one = self.spaces.get(space)
        sizes = None if of_one is None else (self._size(of_one), self._size(items), self._size(space))
        if sizes is None or None in sizes:
            return False
        nodes, count, whole = sizes
        assert nodes is not None and count is not None
        return product(nodes, count) == whole

    def _size(self, space: Space) -> Size | None:
        return self._sizes.get(space)
