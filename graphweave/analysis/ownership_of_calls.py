"""The rows that the integers of a call of PyTorch number, in a program over the parts of a graph.

The call's row of `core/calls` says it. A call on rows that a rank has of its own is refused unless that row says that
each rank may do it alone.
"""

from __future__ import annotations

from typing import Any

from graphweave.analysis.cones import row_space
from graphweave.analysis.maps import COUNTED, REARRANGED, SAME_ROWS
from graphweave.analysis.ownership import (
    Held,
    Numbers,
    PairOfNumbers,
    WhyRefused,
)
from graphweave.analysis.ownership_so_far import OwnershipSoFar
from graphweave.core.calls import ByRank, CallFacts, Elements, Lead, facts_of
from graphweave.core.sizes import product
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import argument
from graphweave.ir.message.builder import operands


class CallOwnership(OwnershipSoFar):
    """The rules for calls, and for what computes with any operands."""

    def compute(self, ref: ir.Ref, node: ir.Node) -> Held:
        if any(self._held(r) is not None for r in operands(node)):
            kind = node.target if isinstance(node, ir.Aten) else type(node).__name__.lower()
            word = node.op.value if isinstance(node, ir.Pointwise) else kind
            self._refuse(ref, WhyRefused.numbers_computed, word)
        return None

    def call(self, ref: ir.Ref, node: ir.Aten) -> Held:
        known, held = facts_of(node.target), [self._held(r) for r in operands(node)]
        self._check_call(ref, node, known)
        if node.target == "builtin.getitem":
            return self._item(ref, node, held[0])
        if known.elements is Elements.positions and not known.of_data:
            self._sort(ref, ref)
        if known.elements in (Elements.positions, *COUNTED):
            if known.of_data:
                self.compute(ref, node)
            # the space of a row number that leads nowhere is not known; without an operand it counts shared rows
            on_type = isinstance(self.program.types[ref], ir.Type)
            return Numbers() if not on_type or self._on_sharded(ref) else None
        if known.by_rank is None or known.elements is Elements.sizes:
            if any(row_space(self.program, r) in self.copied for r in operands(node)):
                self._refuse(ref, WhyRefused.copied)
            return None
        if known.elements in SAME_ROWS or known.rows is Lead.parts or len(known.results) > 1:
            return next((h for h in held if h is not None), None)
        if known.elements not in REARRANGED:
            return self.compute(ref, node)
        return self._rearranged(ref, node, known, held[:1] if known.moves_rows else held)

    def _item(self, ref: ir.Ref, node: ir.Aten, held: Held) -> Held:
        """Finds what an item of a call with several results holds, if the call's value holds `held`."""
        source, item = self.program.nodes[at := operands(node)[0]], node.args[1]
        if not isinstance(source, ir.Aten):
            return held
        known = facts_of(source.target)
        if known.by_rank is not None and len(known.results) > 1 and isinstance(item, int):
            if Elements.positions in known.results:
                self._sort(ref, at)
            return held if known.results[item] in REARRANGED else Numbers()
        if known.rows is Lead.parts and isinstance(held, PairOfNumbers):
            of_one = len(self._shape(ref)) == 1
            return (held.first if item == 0 else held.second) if of_one else self._merged(ref, [held])
        return held

    def _rearranged(self, ref: ir.Ref, node: ir.Aten, known: CallFacts, chosen: list[Held]) -> Held:
        """Finds what moved elements hold. A pair of indices stays one if its columns are chosen or joined."""
        pair, dims = chosen[0], self._dims(node, known)
        if isinstance(pair, PairOfNumbers) and dims == (0,):
            if known.rows is Lead.taken:
                return pair.first if node.args[2] in (0, -2) else pair.second
            if known.rows is Lead.along and isinstance(node.args[1], tuple):  # a flip
                return PairOfNumbers(pair.second, pair.first)
        if dims == (1,) and (known.index is not None or known.rows in (Lead.joined, Lead.along)):
            pairs = [h if isinstance(h, PairOfNumbers) else PairOfNumbers(h, h) for h in chosen]
            return PairOfNumbers(
                self._merged(ref, [p.first for p in pairs]), self._merged(ref, [p.second for p in pairs])
            )
        if known.rows is Lead.stacked and len(chosen) == 2 and dims == (0,):
            return PairOfNumbers(*(self._merged(ref, [h]) for h in chosen))
        return self._merged(ref, chosen)

    def _check_call(self, ref: ir.Ref, node: ir.Aten, known: CallFacts) -> None:
        """Refuses a call on rows that a rank has of its own, unless it is known to do the same to each row."""
        used = [r for r in operands(node) if self._is_mine(r)]
        alike = node.target.startswith("builtin.") or known.by_rank is ByRank.each
        if alike or not (used or self._on_sharded(ref)):
            return
        if known.by_rank is ByRank.integers and self._is_integral(ref) and all(map(self._is_integral, used)):
            self._check_places(ref, node, known)
        elif not (node.serial and not used and row_space(self.program, ref) == UNIT):
            self._refuse(ref, WhyRefused.left_to_pytorch, node.target)

    def _check_places(self, ref: ir.Ref, node: ir.Aten, known: CallFacts) -> None:
        """Refuses a call on integers that tells rows apart by their place, or reads rows of others."""
        used, dims = operands(node), self._dims(node, known)
        if known.index is not None:
            by = [h for r in used[1:] if isinstance(h := self._held(r), Numbers)]
            if any(h.leaves for h in by):
                self._refuse(ref, WhyRefused.numbers_of_others)
            elif by and not self._is_mine(used[0]):
                self._refuse(ref, WhyRefused.shared_data)
        elif known.rows is Lead.joined:
            along = [self._is_divided(r, dims) for r in used]
            if any(along) and not all(found or self._is_mine(r) for r, found in zip(used, along, strict=True)):
                self._refuse(ref, WhyRefused.shared_rows)
            if any(along):
                self._lay_out(ref, behind=True)
        elif known.elements is Elements.reshaped:
            old, new = self._shape(used[0]), self._shape(ref)
            if self._cuts_rows(ref, used[0]):
                self._refuse(ref, WhyRefused.by_place)
            elif len(new) < len(old) and new[:1] != () and new[0] not in old:
                self._lay_out(ref, behind=not self._is_divided(used[0], (0,)))
        elif known.rows in (Lead.along, Lead.taken, Lead.parts) and self._is_divided(used[0], dims):
            self._refuse(ref, WhyRefused.by_place)

    def _sort(self, ref: ir.Ref, call: ir.Ref) -> None:
        """Notes that rows stand in the order of a sort."""
        node = self.program.nodes[call]
        assert isinstance(node, ir.Aten)
        if self._is_divided(operands(node)[0], self._dims(node, facts_of(node.target))):
            self._stand_in(ref, row_space(self.program, ref), call)

    def _cuts_rows(self, ref: ir.Ref, x: ir.Ref) -> bool:
        """Whether a view in row-major order takes several rows for one: it has no dim of the rows, alone or with dims
        next to them."""
        if row_space(self.program, ref) == row_space(self.program, x) != UNIT:
            return False
        old, new = self._shape(x), self._shape(ref)
        divided = [d for d in range(len(old)) if self._is_divided(x, (d,))]
        runs = (
            {product(*(n for n in old[i:j] if n is not None)) for i in range(d + 1) for j in range(d + 1, len(old) + 1)}
            for d in divided
        )
        return any(run.isdisjoint(new) for run in runs)

    def _dims(self, node: ir.Aten, known: CallFacts) -> tuple[int, ...]:
        """The dims along which a call works, counted from the front."""
        if known.index is not None and known.index.listed:
            said: Any = node.args[known.index.at]
            return tuple(i for i, index in enumerate(said) if index is not None)
        if known.index is not None:
            said = 0 if known.index.dim is None else node.args[known.index.dim]
        else:
            said = argument(node, known.dim, known.default)
        count = len(self._shape(operands(node)[0])) + (known.rows in (Lead.stacked, Lead.widened))
        return tuple(d % max(count, 1) for d in (said if isinstance(said, tuple) else (said,)) if isinstance(d, int))
