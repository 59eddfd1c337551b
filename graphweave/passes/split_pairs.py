"""select(cat([a, b], 1), 0, i) -> cat([select(a, 0, i), select(b, 0, i)]); likewise for columns chosen by an index.

Legal since neither call mixes the rows of a pair [2, edges]. It saves memory where nobody needs the pair as a whole:
layers that filter edges and add self-loops do so on `edge_index`, 16 bytes an edge at each step, and then use its two
rows as maps. Row by row, the first is computed, narrowed and freed before the second is begun.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.analysis.facts import Facts
from graphweave.core.calls import Lead, facts_of, named
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.nodes import AnyType, Arg, Aten, Node, Operand, Program, Ref, Type
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class SplitPairs:
    name: str = "split-pairs"

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
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
    program: Program
    pairs: frozenset[Ref]
    build: Builder
    where: dict[Ref, Ref]

    def add(self, ref: Ref) -> None:
        node, loc = self.program.nodes[ref], self.program.locs[ref]
        match node:
            case Aten(args=(Operand(pair), _, int(i)), type=t) if pair in self.pairs and _takes_rows(node, pair):
                self.where[ref] = self._row(pair, i, t)
            case Aten(target=named.SIZE, args=(Operand(pair), _)) if pair in self.pairs:
                row = self._row(pair, 0, _row_type(self.program, pair))
                self.where[ref] = self.build.add(replace(node, args=(Operand(row), 0)), loc)
            case _:
                self.where[ref] = self.build.add(with_operands(node, self.where.__getitem__), loc)

    def _row(self, pair: Ref, i: int, t: Type | AnyType) -> Ref:
        """Row `i` of a pair [2, n], of type `t`."""
        node, loc = self.program.nodes[pair], self.program.locs[pair]
        if pair not in self.pairs:
            return self.build.add(Aten(named.SELECT, (Operand(self.where[pair]), 0, i), (), t), loc)
        assert isinstance(node, Aten)
        rows = tuple(Operand(self._row(p, i, _row_type(self.program, p))) for p in _pairs_in(node))
        args: tuple[Arg, ...]
        match node.args:
            case (_, (None, Operand(index))):
                args = (rows[0], (Operand(self.where[index]),))
            case (_, _, Operand(index)):
                args = (rows[0], 0, Operand(self.where[index]))
            case _:
                args = (rows, 0)
        return self.build.add(replace(node, args=args, type=t), loc)


def _splittable(facts: Facts) -> frozenset[Ref]:
    """Pairs, computed by calls that can be split, whose users only take rows, take the length, or are such pairs."""
    program, used_by = facts.program, facts.flow.users
    found: set[Ref] = set()
    for ref in reversed(range(len(program.nodes))):
        parts = _pairs_in(program.nodes[ref])
        if not parts or ref in program.outputs or not all(_is_pair(program, p) for p in (ref, *parts)):
            continue
        # A pair used as an index of columns is no matrix of two dims, so a user in `found` takes this one as a pair.
        if all(u in found or _takes_rows(program.nodes[u], ref) for u in used_by[ref]):
            found.add(ref)
    return frozenset(found)


def _takes_rows(user: Node, pair: Ref) -> bool:
    match user:
        case Aten(target, (Operand(x), 0, 0 | 1)) if facts_of(target).rows is Lead.taken:
            return x == pair
        case Aten(target=named.SIZE, args=(Operand(x), 1)):
            return x == pair
        case _:
            return False


def _pairs_in(node: Node) -> tuple[Ref, ...]:
    """The pairs that a call concatenates along their columns, or whose columns it chooses; none for any other call."""
    if not isinstance(node, Aten) or node.kwargs:
        return ()
    known = facts_of(node.target)
    chooses = known.index is not None and not known.index.pushes and not known.index.spread
    match node.args:
        case (tuple(parts), 1 | -1) if known.rows is Lead.joined:
            return tuple(p.ref for p in parts if isinstance(p, Operand))
        case (Operand(x), (None, Operand())) | (Operand(x), 1 | -1, Operand()) if chooses:
            return (x,)
        case _:
            return ()


def _row_type(program: Program, pair: Ref) -> AnyType:
    t = program.types[pair]
    assert isinstance(t, AnyType)
    assert t.dims is not None
    return replace(t, dims=t.dims[1:])


def _is_pair(program: Program, ref: Ref) -> bool:
    """Whether `ref` is a tensor [2, n] outside of the algebra, so that its rows are not those of a space."""
    t = program.types[ref]
    return isinstance(t, AnyType) and t.dims is not None and len(t.dims) == 2 and t.dims[0] == 2
