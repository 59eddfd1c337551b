"""Totals of what is sent back to the owners of halo rows -> totals over own and halo rows, and nothing is sent.

    w = all_reduce(gram(exchange_back(p), x))
->  w = all_reduce(gram(p, x'))

p holds a rank's part of the sum for each of its own and halo rows, and x' is x on these rows. Both sides add p[r] x[i]
over all ranks and all of their copies r of each row i, the left one at the owner of i and the right one where it is. So
it does not matter where a sum over all rows is taken, as long as what stands between `exchange_back` and the total is
linear in p, row by row, and its factors exist on halo rows. A summand that has no part for halo rows gets zeros there.
The gradient of a first layer's weights is of this kind: nobody needs the gradients of its features row by row.

An `exchange_back` stays if one of its users is no such total, and totals stay if what they save on the wire takes less
time than their work on halo rows. All ranks decide alike, since they decide by mean numbers of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.analysis.cones import row_bytes, row_space, type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors
from graphweave.analysis.halo import ROW_WISE, WIRE_BANDWIDTH, WIRE_LATENCY
from graphweave.analysis.linear import is_linear
from graphweave.analysis.ownership import Sharding, halo_of
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.work import BANDWIDTH, PRODUCT_RATE, VECTOR_RATE
from graphweave.core.types import UNIT, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import value_type
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class HaloTotals:
    name: str = "halo-totals"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with sums that need not be sent back; the same object on one rank."""
        if facts.sharding is None:
            return unchanged(program)
        found = _Totals(facts.of(program), facts.sharding, facts.statistics)
        if not found.backs or found.seconds() <= 0:
            return unchanged(program)
        replaced = {ref: found.moved(ref) for ref in found.totals}
        return substitute(found.build, len(found.build.nodes), replaced, program.outputs, facts.keep, program.spaces)


class _Totals:
    """`backs` are the sums that need not be sent back, `partial` what is computed from them, up to `totals`."""

    def __init__(self, facts: Facts, sharding: Sharding, statistics: Statistics) -> None:
        program = facts.program
        self.program, self.statistics, self.build = program, statistics, Builder.of(program)
        self.users = facts.flow.users
        self.twins: dict[Space, Space] = {}  # a space -> that of own and halo rows
        self.sent: dict[ir.Ref, ir.Ref] = {}  # values that the ranks have with halo rows anyway
        self.halo: dict[Space, int] = {}
        mean = dict(sharding.mean_halo)
        for ref, node in enumerate(program.nodes):
            if isinstance(node, ir.Exchange):
                self.twins[type_of(self.program, node.x).space] = node.space
                if not node.slot:  # rows of the last step are other numbers
                    self.sent.setdefault(node.x, ref)
            elif isinstance(node, ir.ExchangeBack):
                self.halo[node.space] = mean[node.link.node_type]
        self._with_halo: dict[ir.Ref, ir.Ref | None] = {}
        self._parts: dict[ir.Ref, ir.Ref] = {}
        self.backs = frozenset(
            r for r, n in enumerate(program.nodes)
            if isinstance(n, ir.ExchangeBack) and n.fold is Fold.sum and type_of(self.program, r).dtype.is_float
            and n.space in self.twins
        )  # fmt: skip
        while self.backs:
            self.partial, self.totals, whole = self._below()
            if not whole:
                break
            self.backs -= ancestors(program, whole)

    # -------------------------------------------------------- what is computed from sums that are sent back

    def _below(self) -> tuple[set[ir.Ref], list[ir.Ref], set[ir.Ref]]:
        """The values that are computed from `backs` row by row, their totals, and those of the former that are needed
        whole."""
        partial, totals, whole = set(self.backs), list[ir.Ref](), set[ir.Ref]()
        for ref, node in enumerate(self.program.nodes):
            parts = {r for r in operands(node) if r in partial}
            if not parts:
                continue
            if self._is_total(ref, partial):
                totals.append(ref)
            elif self._is_row_wise(ref, partial):
                partial.add(ref)
            else:
                whole |= parts
        return partial, totals, whole | partial.intersection(r for r in self.program.outputs if r is not None)

    def _is_total(self, ref: ir.Ref, partial: set[ir.Ref]) -> bool:
        """Whether `ref` is a sum over all rows that the ranks add, of which each factor is known on halo rows."""
        node = self.program.nodes[ref]
        summed = all(
            isinstance(n := self.program.nodes[u], ir.AllReduce) and n.fold is Fold.sum for u in self.users[ref]
        )
        if not summed or ref in self.program.outputs:
            return False
        if isinstance(node, ir.Push):
            return isinstance(self.program.nodes[node.map], ir.ToUnit) and node.is_plain_sum
        if not isinstance(node, ir.Gram) or node.map is not None or (node.x in partial) == (node.y in partial):
            return False
        return self.with_halo(node.y if node.x in partial else node.x) is not None

    def _is_row_wise(self, ref: ir.Ref, partial: set[ir.Ref]) -> bool:
        """Whether `ref` is linear in its partial operands, row by row. Summands may be whole, and factors are known on
        halo rows."""
        node = self.program.nodes[ref]
        if not isinstance(node, (*ROW_WISE, ir.MatMul)) or getattr(node, "map", None) is not None:
            return False
        own = [r for r in operands(node) if r not in partial]
        if self._adds(ref):
            return all(type_of(self.program, r).space == type_of(self.program, ref).space for r in own)
        return is_linear(self.program, node, partial) and all(self.with_halo(r) is not None for r in own)

    # -------------------------------------------------------- values on own and halo rows

    def with_halo(self, ref: ir.Ref) -> ir.Ref | None:
        """The value on own and halo rows, if the rank has that anyway or can compute it from what it has."""
        if ref not in self._with_halo:
            self._with_halo[ref] = self._found_with_halo(ref)
        return self._with_halo[ref]

    def _found_with_halo(self, ref: ir.Ref) -> ir.Ref | None:
        node, t, loc = self.program.nodes[ref], self.program.types[ref], self.program.locs[ref]
        if not isinstance(t, ir.Type) or t.space == UNIT:
            return ref
        if t.space not in self.twins:
            return None
        twin = self.twins[t.space]
        if ref in self.sent:
            return self.sent[ref]
        match node:
            case ir.Part(x, _, 0) if type_of(self.program, x).space == twin:
                return x
            case ir.Const():
                return self.build.add(replace(node, type=replace(t, space=twin)), loc)
            case ir.Pull(x, m) if isinstance(self.program.nodes[m], ir.ToUnit):
                return self.build.add(ir.Pull(x, self.build.add(ir.ToUnit(twin), loc)), loc)
        if not isinstance(node, ROW_WISE):
            return None
        found = {r: self.with_halo(r) for r in operands(node)}
        if any(x is None for x in found.values()):
            return None
        return self.build.add(with_operands(node, lambda r: x if (x := found[r]) is not None else r), loc)

    def _scaled(self, ref: ir.Ref) -> ir.Ref | None:
        """The value of which an own summand is a multiple by what all rows share, if its rows are no wider."""
        node, space = self.program.nodes[ref], type_of(self.program, ref).space
        rows = [r for r in operands(node) if row_space(self.program, r) == space]
        scaled = isinstance(node, ROW_WISE) and len(rows) == 1 and is_linear(self.program, node, set(rows))
        return rows[0] if scaled and row_bytes(self.program, rows[0]) <= row_bytes(self.program, ref) else None

    def _extended(self, ref: ir.Ref) -> ir.Ref:
        """An own summand, with zeros for halo rows. They are put where its rows are narrowest."""
        node, t, loc = self.program.nodes[ref], type_of(self.program, ref), self.program.locs[ref]
        narrower = self._scaled(ref)
        if narrower is not None:
            inner = self._extended(narrower)
            return self.build.add(with_operands(node, lambda r: inner if r == narrower else r), loc)
        zeros = self.build.add(ir.Const(0.0, ir.Type(halo_of(t.space), t.shape, t.dtype)), loc)
        return self.build.add(ir.Join((ref, zeros), self.twins[t.space]), loc)

    def moved(self, ref: ir.Ref) -> ir.Ref:
        """A partial value, or a total, computed on own and halo rows."""
        if ref not in self._parts:
            self._parts[ref] = self._moved(ref)
        return self._parts[ref]

    def _moved(self, ref: ir.Ref) -> ir.Ref:
        node, loc = self.program.nodes[ref], self.program.locs[ref]
        if isinstance(node, ir.ExchangeBack):
            return node.x
        if isinstance(node, ir.Push):
            space = value_type(self.build, self.moved(node.x)).space
            return self.build.add(replace(node, x=self.moved(node.x), map=self.build.add(ir.ToUnit(space), loc)), loc)
        adds = self._adds(ref)

        def operand(r: ir.Ref) -> ir.Ref:
            if r in self.partial:
                return self.moved(r)
            if adds:
                return self._extended(r)
            found = self.with_halo(r)
            assert found is not None
            return found

        return self.build.add(with_operands(node, operand), loc)

    # -------------------------------------------------------- price

    def seconds(self) -> float:
        """The seconds that an average rank saves."""
        saved = 0.0
        for ref in self.backs:
            saved += row_bytes(self.program, ref) * self._halo_rows(ref) / WIRE_BANDWIDTH + WIRE_LATENCY
        for ref in self.totals:
            node = self.program.nodes[ref]
            assert isinstance(node, ir.Push | ir.Gram)
            flops = 2 * numel(type_of(self.program, ref).shape) / PRODUCT_RATE if isinstance(node, ir.Gram) else 0.0
            saved -= self._halo_rows(node.x) * (flops + row_bytes(self.program, node.x) / BANDWIDTH)
        for ref in self.partial - self.backs:
            saved -= self._halo_rows(ref) * numel(type_of(self.program, ref).shape) / VECTOR_RATE
            for r in operands(self.program.nodes[ref]) if self._adds(ref) else ():
                if r not in self.partial:
                    saved -= 2 * self.statistics.rows(type_of(self.program, r).space) * self._narrowest(r) / BANDWIDTH
        return saved

    def _adds(self, ref: ir.Ref) -> bool:
        node = self.program.nodes[ref]
        return isinstance(node, ir.Pointwise) and node.op in (Op.add, Op.sub)

    def _narrowest(self, ref: ir.Ref) -> int:
        """Bytes a row of what is copied to be extended by zeros."""
        while (narrower := self._scaled(ref)) is not None:
            ref = narrower
        return row_bytes(self.program, ref)

    def _halo_rows(self, ref: ir.Ref) -> int:
        return self.halo.get(type_of(self.program, ref).space, 0)
