"""Region -> loop IR kernel: the body of a row, its members in order, with a pass over its edges between phases."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from graphweave.analysis.cones import space_of, type_of
from graphweave.core.types import UNIT, DType, Op, Space
from graphweave.ir.loop.nodes import Call, CastTo, Csr, Degree, Expr, Kernel, Let, Lit, Load, Stmt, Var
from graphweave.ir.message.nodes import Program, Push, Ref
from graphweave.lower.blocks import choose_blocks
from graphweave.lower.draft import CSR, Draft
from graphweave.lower.edges import EdgePass
from graphweave.lower.online import passes_of
from graphweave.lower.parameters import Binding, map_name, value_name
from graphweave.lower.values import NeedsLocal
from graphweave.lower.widen import widened
from graphweave.schedule.options import Options
from graphweave.schedule.regions import Region


@dataclass(frozen=True, slots=True)
class Lowered:
    """A kernel, and what its parameters stand for: `bindings` for its buffers, `spaces` for its sizes."""

    kernel: Kernel
    map: Ref | None
    bindings: tuple[Binding, ...]
    spaces: tuple[Space, ...]


def lower(
    program: Program, region: Region, stored: frozenset[Ref], name: str, options: Options, index: DType = DType.i32
) -> Lowered:
    """The kernel of `region`; `stored` are the nodes that exist as tensors."""
    forced: frozenset[Ref] = frozenset()
    while True:
        draft = Draft(program, region, stored, options, index, forced)
        try:
            body = _Rows(draft).statements()
        except NeedsLocal as need:
            assert need.ref not in forced, f"%{need.ref} was given a block and still cannot be indexed"
            forced |= {need.ref}
        else:
            return _lowered(draft, name, body)


def _lowered(draft: Draft, name: str, body: list[Stmt]) -> Lowered:
    parameters, stashes = draft.parameters, tuple(draft.stashes.values())
    csrs = (Csr(CSR),) if draft.region.map is not None else ()
    kernel = Kernel(
        name, "v", parameters.sizes, parameters.index, csrs, parameters.buffers, stashes, tuple(body)
    )  # fmt: skip
    return Lowered(widened(kernel), draft.region.map, parameters.bindings, parameters.spaces)


class _Rows:
    """What a kernel does for each row `v`."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.program = draft, draft.program
        self.positions: dict[Ref, Let] = {}  # map -> the row that this row is sent to, read before anything else

    def statements(self) -> list[Stmt]:
        draft, members = self.draft, self.draft.region.members
        phases, online = passes_of(draft)
        blocks = self._blocks()
        body: list[Stmt] = []
        for p in range(max(phases.values(), default=0) + 1):
            if p > 0:
                here = [r for r in members if r in draft.on_edges and phases[r] == p]
                body += EdgePass(draft, here, {m: sums for m, sums in online.items() if m in here}).statements()
            for r in members:
                if r not in draft.on_edges and phases[r] == p:
                    body += self._member(r, r in blocks)
        return [*self.positions.values(), *body]

    def _blocks(self) -> frozenset[Ref]:
        """Row-level members (and the rows' part of totals) that are computed once into an array."""
        draft = self.draft
        at_edges = {y for r in draft.on_edges for y in draft.local(r)}
        uses = Counter(draft.region.outputs)
        for r in at_edges:
            uses[r] += 2  # read again at every edge
        inner: set[Ref] = set()
        for r in draft.members - draft.on_edges:
            node = self.program.nodes[r]
            inner.update(draft.needs[r].inner)
            if isinstance(node, Push):
                uses[node.x] += 1
            else:
                inner.add(r)
        at_rows = [r for r in inner if space_of(self.program, r) in (draft.region.rows, UNIT)]
        chosen = choose_blocks(self.program, at_rows, uses, draft.given, frozenset(at_edges), draft.forced)
        return frozenset(chosen)

    def _member(self, ref: Ref, block: bool) -> list[Stmt]:
        draft, node = self.draft, self.program.nodes[ref]
        if isinstance(node, Push) and not draft.is_total(node):
            out = self._degree_times(ref, node)
        else:
            self._read(ref)
            out = self._blocks_inside(ref)
            if isinstance(node, Push):
                return out + draft.total(draft.row, ref, node)
            if block:
                out += draft.comment(ref) + self._block(ref)
        if ref in draft.region.outputs:
            out += draft.output(draft.row, ref, "v")
        return out

    def _read(self, ref: Ref) -> None:
        """Make every leaf of a row-level member loadable."""
        row, parameters = self.draft.row, self.draft.parameters
        n = self.draft.needs[ref]
        for r in (*n.same, *n.shared):
            self.draft.read_at_row(r)
        for y, m in n.pulls:
            at = f"{map_name(m)}_v"
            self.positions.setdefault(m, Let(at, parameters.index, Load(parameters.flat(m), (Var("v"),))))
            row.gathered[(y, m)] = (parameters.tensor(y), (Var(at),))

    def _blocks_inside(self, ref: Ref) -> list[Stmt]:
        """Arrays for what a row-level member recomputes on the way (the inside of a total)."""
        draft = self.draft
        kept = draft.given | draft.row.at.keys()
        inside = choose_blocks(self.program, draft.needs[ref].inner, {ref: 1}, kept, frozenset(), draft.forced)
        return [s for r in inside for s in self._block(r)]

    def _block(self, ref: Ref) -> list[Stmt]:
        return self.draft.block(self.draft.row, ref, f"{value_name(self.program, ref)}_v")

    def _degree_times(self, ref: Ref, push: Push) -> list[Stmt]:
        const, t = self.draft.constant_push(push), type_of(self.program, ref)
        assert const is not None
        count: Expr = CastTo(Degree(CSR, Var("v")), t.dtype)
        if const.value != 1:
            count = Call(Op.mul, (count, Lit(const.value, t.dtype)))
        return [self.draft.row_array(ref), *self.draft.fill(ref, lambda _: count)]
