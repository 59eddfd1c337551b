"""The state that the rules for the rows of a rank share: answers for the values so far, and questions about them."""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.analysis.cones import row_space
from graphweave.analysis.ownership import (
    Held,
    Numbers,
    Owned,
    PairOfNumbers,
    Refusal,
    Sharding,
    Whose,
    WhyRefused,
    sharded_spaces,
)
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir


class OwnershipSoFar:
    """The rows that a rank has of the values of a program, found for one value after the other.

    `symbols` are numbers of rows that differ from rank to rank. `copied` are spaces of pairs of which several ranks may
    have the same. `orders` says in which orders the rows of a space stand: that of a sort, or None. `layouts` says
    whether rows of a space are those of others one behind the other, or several for each row of another.
    """

    def __init__(self, program: ir.Program, sharding: Sharding) -> None:
        self.program, self.shared, self.sizes = program, sharding.shared, dict(program.spaces)
        self.given = {name: PairOfNumbers(Numbers(src, True), Numbers(dst)) for name, src, dst in sharding.edges}
        self.sharded, self.symbols = sharded_spaces(program, sharding)
        self.values, self.refused = list[Owned](), list[Refusal]()
        self.leaving, self.copied, self.layouts = set[ir.Ref](), set[Space](), dict[Space, set[bool]]()
        self.node_types, self.unions = dict[Space, str](), dict[Space, tuple[Space, ...]]()
        inputs = (n.type for n in program.nodes if isinstance(n, ir.Input))
        self.orders: dict[Space, set[ir.Ref | None]] = {t.space: {None} for t in inputs if isinstance(t, ir.Type)}

    def _refuse(self, ref: ir.Ref, reason: WhyRefused, *words: object) -> None:
        self.refused.append(Refusal(ref, reason, words))

    # -------------------------------------------------------- what rules note

    def _lay_out(self, ref: ir.Ref, *, behind: bool) -> None:
        """Notes that rows of several kinds are one behind the other, or that those of one row follow each other. Rows
        of both kinds do not fit, since a rank has others at the same place than the whole graph."""
        space = row_space(self.program, ref)
        layouts = self.layouts.setdefault(space, set())
        layouts.add(behind)
        if space in self.sharded and len(layouts) > 1:
            self._refuse(ref, WhyRefused.by_place)

    def _stand_in(self, ref: ir.Ref, space: Space, order: ir.Ref | None) -> None:
        """Notes an order of the rows of a space. Rows in two orders do not fit, since each rank sorts its own."""
        orders = self.orders.setdefault(space, set())
        orders.add(order)
        if space in self.sharded and len(orders) > 1:
            self._refuse(ref, WhyRefused.two_orders)

    # -------------------------------------------------------- what rules ask

    def _is_mine(self, ref: ir.Ref) -> bool:
        return self.values[ref].whose is not Whose.all

    def _held(self, ref: ir.Ref) -> Held:
        return self.values[ref].numbers

    def _merged(self, ref: ir.Ref, held: Iterable[Held]) -> Numbers | None:
        """Finds what a value holds if its elements come from several values."""
        flat: list[Numbers] = []
        for h in held:
            flat += [n for n in ((h.first, h.second) if isinstance(h, PairOfNumbers) else (h,)) if n is not None]
        if not flat:
            return None
        types = {n.node_type for n in flat if n.node_type is not None}
        leaves = any(n.leaves for n in flat)
        segments = {n.segments for n in flat}
        if segments != {None}:
            if len(segments) > 1:
                self._refuse(ref, WhyRefused.joined_with_others)
            return Numbers(None, leaves, next(s for s in segments if s is not None))
        if leaves and len(types) > 1:
            self._refuse(ref, WhyRefused.several_types, len(types), ", ".join(sorted(types)))
        return Numbers(types.pop() if len(types) == 1 else None, leaves)

    def _is_integral(self, ref: ir.Ref) -> bool:
        t = self.program.types[ref]
        if isinstance(t, ir.AnyType) and t.items is not None:
            return all(i.dtype is not None and not i.dtype.is_float for i in t.items)
        return isinstance(t, ir.Type | ir.AnyType) and t.dtype is not None and not t.dtype.is_float

    def _is_divided(self, ref: ir.Ref, dims: tuple[int, ...]) -> bool:
        """Whether one of `dims` of a tensor counts rows of which each rank has its own."""
        t, sizes = self.program.types[ref], self._shape(ref)
        if isinstance(t, ir.Type):
            return t.space in self.sharded and 0 in dims
        return any(d < len(sizes) and not self.symbols.isdisjoint(leaves(sizes[d])) for d in dims)

    def _on_sharded(self, ref: ir.Ref) -> bool:
        return row_space(self.program, ref) in self.sharded

    def _shape(self, ref: ir.Ref) -> tuple[Size | None, ...]:
        """The sizes of a tensor, its number of rows among them."""
        match self.program.types[ref]:
            case ir.Type(space, shape):
                return shape if space == UNIT else (self.sizes.get(space), *shape)
            case ir.AnyType(dims=dims):
                return dims or ()
            case _:
                return ()
