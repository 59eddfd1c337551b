"""Chains of steps that can run for some rows after the others, so that what only they read never exists whole.

    h = relu(x @ w); out = h @ v  ->  for a chunk of rows of x: h, then out; the next chunk reuses the memory of h

Legal for steps that compute each row of a space from the same row of other values and from shared data, and for sums
over all rows, which add up over the chunks. No step of a chain reads such a sum, and no other step must run between
two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphweave.analysis.flow import BETWEEN_RANKS
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.lower.dependencies import StepNodes, dependencies
from graphweave.lower.memory_order import operands_read

_ADDED = (DType.f32, DType.f64, DType.i64)
"""Types of sums that add up over chunks as exactly as they are computed."""

_MIN_INSIDE = 256
"""Bytes of a row that must be left inside of a chain."""

_MOVED = ir.Pad | ir.Concat | ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice
_ROW_WISE = _MOVED | ir.Pointwise | ir.Cast | ir.Reduce | ir.Const | ir.After


@dataclass(frozen=True, slots=True)
class RowChain:
    """Consecutive `steps` that run for chunks of rows of `space`. Other steps read the rows `makes` and the sums
    `totals`. Values that only the chain reads have `nbytes` in a row."""

    steps: tuple[int, ...]
    space: Space
    makes: tuple[ir.Ref, ...]
    totals: tuple[ir.Ref, ...]
    nbytes: int


def row_chains(
    program: ir.Program, made: Sequence[StepNodes], stored: frozenset[ir.Ref]
) -> tuple[list[int], tuple[RowChain, ...]]:
    """An order of the steps in which each chain is in one piece, and the chains, by their places in that order. The
    values in `stored` exist as tensors."""
    if any(isinstance(program.nodes[r], BETWEEN_RANKS) for m in made for r in m.nodes):
        return [*range(len(made))], ()  # rows are sent from the memory into which a kernel has written all of them
    search = _Chains(program, made, stored)
    for i in range(len(made)):
        search.place(i)
    found = {min(g): g for g in search.groups if len(g) > 1 and search.bytes_inside(g) >= _MIN_INSIDE}
    order = search.ordered(list(found.values()))
    place = {step: at for at, step in enumerate(order)}
    return order, tuple(search.chain(g, tuple(sorted(place[i] for i in g))) for g in found.values())


class _Chains:
    """`groups` are sets of steps that may be chains."""

    def __init__(self, program: ir.Program, made: Sequence[StepNodes], stored: frozenset[ir.Ref]) -> None:
        self._program, self._made = program, made
        self._before = dependencies(program, made)
        self._maker = {r: i for i, m in enumerate(made) for r in m.stored}
        self._reads = [_row_wise_reads(program, m, stored) for m in made]
        self._readers: dict[ir.Ref, set[int]] = {}
        for i, m in enumerate(made):
            for r in _reads(program, m, stored):
                self._readers.setdefault(r, set()).add(i)
        self._outputs = {r for r in program.outputs if r is not None}
        self.groups: list[frozenset[int]] = []

    def place(self, i: int) -> None:
        """Put a step into the groups whose rows it reads, if they may then be one chain, or into one of its own."""
        reads = self._reads[i]
        if reads is None:
            return
        read_from = {self._maker[r] for r in reads if r in self._maker and self._is_rows(r)}
        near = [g for g in self.groups if g & read_from and self._space(g) == self._space([i])]
        for joined in (near, *([g] for g in reversed(near))):
            chain = frozenset([i]).union(*joined)
            if joined and self._may_be_chain(chain):
                self.groups = [g for g in self.groups if g not in joined] + [chain]
                return
        self.groups.append(frozenset([i]))

    def _may_be_chain(self, chain: frozenset[int]) -> bool:
        """Whether no step of the chain reads a total of it, and it can run in one piece, as can the other chains."""
        sums = {r for i in chain for r in self._made[i].stored if not self._is_rows(r)}
        if any(self._readers.get(r, set()) & chain for r in sums):
            return False
        return len(self.ordered([chain, *(g for g in self.groups if not g & chain)])) == len(self._made)

    def ordered(self, groups: Iterable[frozenset[int]]) -> list[int]:
        """The steps in an order that respects their dependencies, each group in one piece. Steps of groups that wait
        for each other are missing."""
        of = {i: g for g in groups for i in g}
        order, done, left = list[int](), set[int](), list(range(len(self._made)))
        while left:
            ready = next((g for i in left if self._outside(g := of.get(i, frozenset([i]))) <= done), None)
            if ready is None:
                return order
            order += sorted(ready)
            done |= ready
            left = [i for i in left if i not in ready]
        return order

    def _outside(self, group: frozenset[int]) -> set[int]:
        return set[int]().union(*(self._before[i] for i in group)) - group

    # -------------------------------------------------------- what a chain makes

    def _is_rows(self, ref: ir.Ref) -> bool:
        t = self._program.types[ref]
        return isinstance(t, ir.Type) and t.space != UNIT

    def _space(self, group: Iterable[int]) -> Space:
        """The space whose rows the steps compute, or add up."""
        nodes = (self._program.types[r] for i in group for r in (*self._made[i].nodes, *(self._reads[i] or ())))
        return next(t.space for t in nodes if isinstance(t, ir.Type) and t.space != UNIT)

    def _inside(self, group: frozenset[int]) -> Iterator[ir.Ref]:
        for i in group:
            for r in self._made[i].stored:
                if self._is_rows(r) and r not in self._outputs and self._readers.get(r, set()) <= group:
                    yield r

    def bytes_inside(self, group: frozenset[int]) -> int:
        """Bytes in a row of the values that only the group reads."""
        types = (self._program.types[r] for r in self._inside(group))
        return sum(numel(t.shape) * t.dtype.itemsize for t in types if isinstance(t, ir.Type))

    def chain(self, group: frozenset[int], places: tuple[int, ...]) -> RowChain:
        inside = set(self._inside(group))
        given = [r for i in sorted(group) for r in self._made[i].stored if r not in inside]
        makes, totals = (tuple(r for r in given if self._is_rows(r) is rows) for rows in (True, False))
        return RowChain(places, self._space(group), makes, totals, self.bytes_inside(group))


def _reads(program: ir.Program, step: StepNodes, stored: frozenset[ir.Ref]) -> set[ir.Ref]:
    """The stored values and inputs that a step reads."""
    return {r for r in _needed(program, step, stored) if r in stored or isinstance(program.nodes[r], ir.Input)}


def _row_wise_reads(program: ir.Program, step: StepNodes, stored: frozenset[ir.Ref]) -> set[ir.Ref] | None:
    """The values that a step reads, if it computes rows of one space from the same rows and shared data, or adds them
    up; None if not."""
    reads = _reads(program, step, stored)
    computed = {*step.nodes, *_needed(program, step, stored)} - reads
    types = [program.types[r] for r in (*step.nodes, *reads)]
    spaces = {t.space for t in types if isinstance(t, ir.Type)} - {UNIT}
    plain = all(isinstance(t, ir.Type) for t in types) and len(spaces) == 1
    return reads if plain and all(_is_row_wise(program, r) for r in computed) else None


def _is_row_wise(program: ir.Program, ref: ir.Ref) -> bool:
    match program.nodes[ref]:
        case ir.MatMul(map=along) | ir.AddMatMul(map=along):
            return along is None
        case ir.Gram(map=along):
            return along is None and _adds(program, ref)
        case ir.Push(map=along, fold=fold):
            return isinstance(program.nodes[along], ir.ToUnit) and fold is Fold.sum and _adds(program, ref)
        case ir.Pull(map=along):
            return isinstance(program.nodes[along], ir.ToUnit)
        case node:
            return isinstance(node, _ROW_WISE | ir.ToUnit)


def _adds(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) and t.space == UNIT and t.dtype in _ADDED


def _needed(program: ir.Program, step: StepNodes, stored: frozenset[ir.Ref]) -> set[ir.Ref]:
    """The nodes from which a step computes, down to what is stored; it only waits for the others of `After`."""
    found = set[ir.Ref]()
    todo = [r for m in step.nodes for r in operands_read(program, m)]
    while todo:
        ref = todo.pop()
        if ref in found or ref in step.nodes:
            continue
        found.add(ref)
        if ref not in stored:
            todo.extend(operands_read(program, ref))
    return found
