"""select(cat([a, b], 1), 0, i) -> cat([select(a, 0, i), select(b, 0, i)]); likewise for columns chosen by an index.

Legal since neither call mixes the rows of a pair [2, edges]. It saves memory where nobody needs the pair as a whole:
layers that filter edges and add self-loops do so on `edge_index`, 16 bytes an edge at each step, and then use its two
rows as maps. Row by row, the first is computed, narrowed and freed before the second is begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.analysis.facts import Facts
from graphweave.core.calls import Lead, facts_of, named
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class SplitPairs:
    name: str = "split-pairs"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        pairs = _splittable(facts.of(program))
        if not pairs:
            return unchanged(program)
        split = _Splitter(program, pairs, Builder(), {})
        for ref in range(len(program.nodes)):
            if ref not in pairs:
                split.add(ref)
        outputs = [None if r is None else split.where[r] for r in program.outputs]
        return Rewritten(split.build.program(outputs, program.spaces), split.where)


@dataclass(frozen=True, slots=True)
class _Splitter:
    program: ir.Program
    pairs: frozenset[ir.Ref]
    build: Builder
    where: dict[ir.Ref, ir.Ref]

    def add(self, ref: ir.Ref) -> None:
        node, loc = self.program.nodes[ref], self.program.locs[ref]
        match node:
            case ir.Aten(args=(ir.Operand(pair), _, int(i)), type=t) if pair in self.pairs and _takes_rows(node, pair):
                self.where[ref] = self._row(pair, i, t)
            case ir.Aten(target=named.SIZE, args=(ir.Operand(pair), _)) if pair in self.pairs:
                row = self._row(pair, 0, _row_type(self.program, pair))
                self.where[ref] = self.build.add(replace(node, args=(ir.Operand(row), 0)), loc)
            case _:
                self.where[ref] = self.build.add(with_operands(node, self.where.__getitem__), loc)

    def _row(self, pair: ir.Ref, i: int, t: ir.Type | ir.AnyType) -> ir.Ref:
        """Row `i` of a pair [2, n], of type `t`."""
        node, loc = self.program.nodes[pair], self.program.locs[pair]
        if pair not in self.pairs:
            return self.build.add(ir.Aten(named.SELECT, (ir.Operand(self.where[pair]), 0, i), (), t), loc)
        assert isinstance(node, ir.Aten)
        rows = tuple(ir.Operand(self._row(p, i, _row_type(self.program, p))) for p in _pairs_in(node))
        args: tuple[ir.Arg, ...]
        match node.args:
            case (_, (None, ir.Operand(index))):
                args = (rows[0], (ir.Operand(self.where[index]),))
            case (_, _, ir.Operand(index)):
                args = (rows[0], 0, ir.Operand(self.where[index]))
            case _:
                args = (rows, 0)
        return self.build.add(replace(node, args=args, type=t), loc)


def _splittable(facts: Facts) -> frozenset[ir.Ref]:
    """Pairs, computed by calls that can be split, whose users only take rows, take the length, or are such pairs."""
    program, used_by = facts.program, facts.flow.users
    found: set[ir.Ref] = set()
    for ref in reversed(range(len(program.nodes))):
        parts = _pairs_in(program.nodes[ref])
        if not parts or ref in program.outputs or not all(_is_pair(program, p) for p in (ref, *parts)):
            continue
        # A pair used as an index of columns is no matrix of two dims, so a user in `found` takes this one as a pair.
        if all(u in found or _takes_rows(program.nodes[u], ref) for u in used_by[ref]):
            found.add(ref)
    return frozenset(found)


def _takes_rows(user: ir.Node, pair: ir.Ref) -> bool:
    match user:
        case ir.Aten(target, (ir.Operand(x), 0, 0 | 1)) if facts_of(target).rows is Lead.taken:
            return x == pair
        case ir.Aten(target=named.SIZE, args=(ir.Operand(x), 1)):
            return x == pair
        case _:
            return False


def _pairs_in(node: ir.Node) -> tuple[ir.Ref, ...]:
    """The pairs that a call concatenates along their columns, or whose columns it chooses; none for any other call."""
    if not isinstance(node, ir.Aten) or node.kwargs:
        return ()
    known = facts_of(node.target)
    chooses = known.index is not None and not known.index.pushes and not known.index.spread
    match node.args:
        case (tuple(parts), 1 | -1) if known.rows is Lead.joined:
            return tuple(p.ref for p in parts if isinstance(p, ir.Operand))
        case (ir.Operand(x), (None, ir.Operand())) | (ir.Operand(x), 1 | -1, ir.Operand()) if chooses:
            return (x,)
        case _:
            return ()


def _row_type(program: ir.Program, pair: ir.Ref) -> ir.AnyType:
    t = program.types[pair]
    assert isinstance(t, ir.AnyType)
    assert t.dims is not None
    return replace(t, dims=t.dims[1:])


def _is_pair(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether `ref` is a tensor [2, n] outside of the algebra, so that its rows are not those of a space."""
    t = program.types[ref]
    return isinstance(t, ir.AnyType) and t.dims is not None and len(t.dims) == 2 and t.dims[0] == 2
