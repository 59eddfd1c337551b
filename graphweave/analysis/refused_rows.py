"""What a program over parts must not do: what sees one rank's rows only would have other numbers than the whole graph.

Each refusal names the user's line, and says what to do instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from graphweave.analysis.calls_on_rows import is_count, ordering, reorders
from graphweave.analysis.cones import row_space
from graphweave.analysis.halo_rows import HaloRows, Held, Numbers, PairOfNumbers
from graphweave.core.calls import ByRank, Lead, facts_of
from graphweave.core.errors import ShardError
from graphweave.core.types import UNIT, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.nodes import Program, Ref

_COMPARISONS = frozenset({Op.eq, Op.ne, Op.lt, Op.le, Op.gt, Op.ge})


def refuse(program: Program, ref: Ref, why: str, do: str) -> NoReturn:
    """Raise the ShardError that names the line of a node."""
    where = program.locs[ref]
    raise ShardError(f"the model cannot run over parts: {why}{f' ({where})' if where else ''}. {do}")


@dataclass(frozen=True)
class Refusals:
    """`sharded` are the spaces of which a rank has some rows, `outside` divided tensors outside the algebra, `numbers`
    says what integers number, and `halo` which rows of others are read."""

    program: Program
    sharded: set[Space]
    outside: set[Ref]
    numbers: Mapping[Ref, Held]
    halo: HaloRows

    def check(self) -> None:
        """Raises ShardError for the first node whose numbers would not be those of the whole graph."""
        for ref in range(len(self.program.nodes)):
            self._check(ref)
        self._check_orders()

    def _check(self, ref: Ref) -> None:
        node = self.program.nodes[ref]
        match node:
            case ir.Pointwise(op, args) if op in _COMPARISONS:
                held = [self.numbers[a] for a in args]
                if any(h is not None for h in held) and any(h is None for h in held):
                    self._refuse(
                        ref, "a number of a row is compared with a number that is none",
                        "A mask with a value for each own row says the same on every rank.",
                    )  # fmt: skip
            case ir.Pointwise(op, args) if op is not Op.where and any(self.numbers[a] is not None for a in args):
                self._refuse(
                    ref, f"numbers of rows are computed with ({op.value}), but each rank numbers its rows itself",
                    "Compute the index from the whole graph before it is divided.",
                )  # fmt: skip
            case ir.Push(x) | ir.Reduce(x) if self.numbers[x] is not None:
                self._refuse(
                    ref, "numbers of rows are reduced, but each rank numbers its rows itself",
                    "Pass the number of nodes, or compute it from the features (x.shape[0]).",
                )  # fmt: skip
            case ir.Pull(x, m) if m in self.halo.leaving and self.numbers[x] is not None:
                self._refuse_numbers_of_others(ref)
            case ir.MapOf(index, cod) if cod in self.sharded and (
                reorders(self.program, index) or self._counts_others(index, cod)
            ):
                self._refuse(
                    ref, "rows are chosen by their place among all rows, of which a rank has only its own",
                    "Choose them by a mask, or pass them in that order.",
                )  # fmt: skip
            case ir.Places() | ir.Inverse() | ir.Reordered() if self._on_sharded(ref):
                self._refuse(ref, "rows are put into another order", "Leave out relabel: parts are ordered on disk.")
            case ir.Order(keys) if self._on_sharded(ref) and not all(map(self._is_integral, keys)):
                self._refuse(
                    ref, "rows are put into the order of what is computed for them, while a rank sees its own alone",
                    "Sort outside of the model.",
                )  # fmt: skip
            case ir.Aten():
                self._check_call(ref, node)

    def _counts_others(self, index: Ref, cod: Space) -> bool:
        """Whether the index counts another number of rows than `cod` has, such as all but the last one."""
        rows = dict(self.program.spaces)
        known, all_rows = rows.get(row_space(self.program, index)), rows.get(cod)
        counted = is_count(self.program, index) and row_space(self.program, index) != UNIT
        return counted and known is not None and all_rows is not None and known != all_rows

    def _check_orders(self) -> None:
        """Refuses rows in the order of a sort beside rows in another one: each rank sorts its own rows only."""
        orders: dict[Space, set[Ref | None]] = {}
        for node in self.program.nodes:
            if isinstance(node, ir.Input) and isinstance(t := node.type, ir.Type):
                orders.setdefault(t.space, {None})
        for ref, node in enumerate(self.program.nodes):
            if not isinstance(node, ir.MapOf) or row_space(self.program, node.index) not in self.sharded:
                continue
            sort, index = ordering(self.program, node.index), self.program.nodes[node.index]
            in_order = isinstance(index, ir.Aten) and facts_of(index.target).rows is Lead.taken  # an end of the edges
            if sort is None and not in_order:
                continue
            known = orders.setdefault(row_space(self.program, node.index), set())
            known.add(sort)
            if len(known) > 1:
                self._refuse(
                    ref, "rows that were sorted stand beside rows in another order, while each rank sorts its own",
                    "Bring all of them into the same order.",
                )  # fmt: skip

    def _check_call(self, ref: Ref, node: ir.Aten) -> None:
        """Refuses a call of PyTorch on rows that a rank has of its own, unless it is known to treat each row alike."""
        used = [r for r in operands(node) if self._is_divided(r)]
        if not used and not self._is_divided(ref):
            return
        known = facts_of(node.target)
        if node.target.startswith("builtin.") or known.by_rank is ByRank.each:
            return
        if known.index is not None and known.by_rank is not None:
            chosen, *by = (self.numbers[r] for r in operands(node))
            if any(isinstance(h, Numbers) and h.leaves for h in by) and not isinstance(chosen, PairOfNumbers):
                self._refuse_numbers_of_others(ref)
        integral = self._is_integral(ref) and all(self._is_integral(r) for r in used)
        if integral and known.by_rank is ByRank.integers:
            return
        if node.serial and not used and row_space(self.program, ref) == UNIT:
            return
        self._refuse(
            ref, f"{node.target} is left to PyTorch, which sees only the rows of one rank",
            "Write it with operations on rows, or call it outside of the model.",
        )  # fmt: skip

    def _refuse_numbers_of_others(self, ref: Ref) -> None:
        self._refuse(
            ref, "numbers of rows are read from rows of other ranks, where they number others",
            "Compose the indices on the whole graph, and pass the result as edges of a type of their own.",
        )  # fmt: skip

    def _is_integral(self, ref: Ref) -> bool:
        t = self.program.types[ref]
        if isinstance(t, ir.AnyType) and t.items is not None:
            return all(i.dtype is not None and not i.dtype.is_float for i in t.items)
        return isinstance(t, ir.Type | ir.AnyType) and t.dtype is not None and not t.dtype.is_float

    def _on_sharded(self, ref: Ref) -> bool:
        return row_space(self.program, ref) in self.sharded

    def _is_divided(self, ref: Ref) -> bool:
        return ref in self.outside or self._on_sharded(ref)

    def _refuse(self, ref: Ref, why: str, do: str) -> None:
        refuse(self.program, ref, why, do)
