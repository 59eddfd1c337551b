"""Which segments of unions have no effect in calls that do not give them.

A segment belongs to a relation if nothing but the relation's edges leads to it. In a call that does not give the
relation there are no such edges. The rows of the segment then have no effect if each value on them goes

- along edges of the relation,
- into a sum as zeros (into a maximum as -inf), because a flag chooses them, or no edge has pushed to them,
- or to other rows of the same relation.

A union is left as it is if any of its values goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from graphweave.analysis.cones import row_space, type_of
from graphweave.analysis.facts import Facts
from graphweave.core.calls import named
from graphweave.core.numbers import Number, neutral
from graphweave.core.sizes import Size, Symbol
from graphweave.core.types import DType, Fold, Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.passes.pass_facts import GivenSize

Flags = tuple[Symbol | None, ...]
"""For each segment of a union the flag without which it has no effect; None if it has."""

_ROW_WISE = (
    ir.Pointwise,
    ir.Cast,
    ir.Reduce,
    ir.Reshape,
    ir.Broadcast,
    ir.Permute,
    ir.Slice,
    ir.Pad,
    ir.Concat,
    ir.MatMul,
    ir.AddMatMul,
)
_MADE_ON_UNIONS = (*_ROW_WISE, ir.Pull, ir.Push, ir.Const, ir.Join, ir.NumbersOfSegments, ir.RowsOfSegments)
_SAME_NUMBER = ir.Cast | ir.Reshape | ir.Broadcast | ir.Permute | ir.Slice
_Index = ir.RowsOfSegments | ir.JoinIndices


class GivenSegments:
    """`flags` are those of the unions that have any; `segments` are the segments of all unions of the program, and
    `users` the users of its nodes."""

    def __init__(self, facts: Facts, given: Mapping[Symbol, GivenSize]) -> None:
        self.program, self._given = facts.program, given
        self.users, self._operands = facts.flow.users, facts.flow.operands
        self._rows = dict(facts.program.spaces)
        """Not those of the unit space, which is a segment of no union with flags."""
        self.segments = _unions(facts.program)
        self._touched = self._touching_edges()
        self._worked_on = {row_space(self.program, r) for r, n in enumerate(self.program.nodes) if _is_work(n)}
        self._banned: set[Space] = set()
        self.flags: dict[Space, Flags] = {}
        self._numbers: dict[ir.Ref, Number | None] = {}
        while not self._settled():
            pass

    def _settled(self) -> bool:
        """Find flags without the unions that are banned, ban those that may not have them; whether there are none."""
        self.flags, self._numbers, banned = self._found(), {}, len(self._banned)
        self._banned.update(self._wrong())
        return len(self._banned) == banned

    # -------------------------------------------------------- flags

    def _touching_edges(self) -> dict[Space, list[set[Symbol | None]]]:
        """For each segment the flags of the edges that lead to it; None among them for edges without a flag."""
        of_edges = {size: flag for flag, known in self._given.items() for size in known.zeros}
        found = {u: [set[Symbol | None]() for _ in of] for u, of in self.segments.items()}
        for _, index, union in self._maps():
            if isinstance(index, ir.JoinIndices):
                for x, at in zip(index.indices, index.at, strict=True):
                    edges = self._rows.get(row_space(self.program, x))
                    found[union][at].add(of_edges.get(edges) if isinstance(edges, Symbol) else None)
        return found

    def _maps(self) -> Iterator[tuple[ir.Ref, _Index, Space]]:
        """The maps to unions by segments: each with its index and the union."""
        for ref, node in enumerate(self.program.nodes):
            if isinstance(node, ir.MapOf) and node.cod in self.segments:
                index = self.program.nodes[node.index]
                if isinstance(index, _Index) and index.of == self.segments[node.cod]:
                    yield ref, index, node.cod

    def _found(self) -> dict[Space, Flags]:
        """Flags by edges, and those of rows that lead to a segment with a flag, of which there are no others."""
        flags = {u: [_only(flags) for flags in touched] for u, touched in self._touched.items() if self._may_have(u)}
        for _ in flags:
            before = sum(flag is not None for of in flags.values() for flag in of)
            for _, index, union in self._maps():
                if isinstance(index, ir.RowsOfSegments) and union in flags and index.space in flags:
                    for k, at in enumerate(index.at):
                        if not self._touched[index.space][k]:
                            flags[index.space][k] = flags[index.space][k] or flags[union][at]
            if before == sum(flag is not None for of in flags.values() for flag in of):
                break
        return {union: tuple(of) for union, of in flags.items() if any(of)}

    def _may_have(self, union: Space) -> bool:
        if union not in self._worked_on or union in self._banned:
            return False
        return all(s not in self.segments and self._rows.get(s) is not None for s in self.segments[union])

    # -------------------------------------------------------- unions that may not have them

    def _wrong(self) -> Iterator[Space]:
        """Unions of which a segment that is not given would have an effect."""
        for r in self.program.outputs:
            if r is not None and row_space(self.program, r) in self.flags:
                yield row_space(self.program, r)
        by_segments = {ref for ref, _, _ in self._maps()}
        for ref, node in enumerate(self.program.nodes):
            own, t = row_space(self.program, ref), self.program.types[ref]
            if own in self.flags and not isinstance(node, _MADE_ON_UNIONS):
                yield own
            if isinstance(t, ir.MapType) and t.cod in self.flags and not (ref in by_segments and self._leads(ref)):
                yield t.cod
            for x in dict.fromkeys(self._operands[ref]):
                union = row_space(self.program, x)
                if union in self.flags and not self._without_effect(ref, node, x):
                    yield union

    def _leads(self, m: ir.Ref) -> bool:
        """Whether no row leads along a map to a segment that is not given."""
        node = self.program.nodes[m]
        assert isinstance(node, ir.MapOf)
        index, flags = self.program.nodes[node.index], self.flags[node.cod]
        if isinstance(index, ir.RowsOfSegments):
            own = self.flags.get(index.space, (None,) * len(index.at))
            return all(flags[at] is None or flags[at] == own[k] for k, at in enumerate(index.at))
        return isinstance(index, ir.JoinIndices)  # the flags are those of the edges

    def _without_effect(self, ref: ir.Ref, node: ir.Node, x: ir.Ref) -> bool:
        """Whether node `ref` is the same without those rows of its operand `x` that are not given."""
        union = row_space(self.program, x)
        match node:
            case ir.Pull() | ir.MapOf():
                return True
            case ir.Push(_, m, Fold.sum | Fold.max | Fold.min):
                nothing = neutral(node.fold, type_of(self.program, x).dtype)
                return self._all_lead_to_given(m, union) or self._nothing(x) == nothing == node.empty
            case ir.Gram(a, b):
                return 0 in (self._nothing(a), self._nothing(b))
            case ir.Part(_, _, at):
                flag = self.flags[union][at]
                return flag is None or self._only_joined(ref, flag)
            case _ if isinstance(node, _ROW_WISE):
                return row_space(self.program, ref) == union
            case _:
                return False

    def _all_lead_to_given(self, m: ir.Ref, union: Space) -> bool:
        """Whether a map leads from segments with flags to segments with the same flags."""
        node, own = self.program.nodes[m], self.flags[union]
        index = self.program.nodes[node.index] if isinstance(node, ir.MapOf) else None
        if not isinstance(index, ir.RowsOfSegments) or not isinstance(node, ir.MapOf):
            return False
        flags = self.flags.get(node.cod, (None,) * len(index.of))
        return all(own[k] is None or own[k] == flags[at] for k, at in enumerate(index.at))

    def _only_joined(self, part: ir.Ref, flag: Symbol) -> bool:
        """Whether a part is read as a segment with the same flag only."""
        if part in self.program.outputs:
            return False
        for user in self.users[part]:
            node = self.program.nodes[user]
            flags = self.flags.get(node.space) if isinstance(node, ir.Join) else None
            if flags is None or not isinstance(node, ir.Join):
                return False
            if any(x == part and flags[k] != flag for k, x in enumerate(node.xs)):
                return False
        return True

    # -------------------------------------------------------- numbers on rows that are not given

    def _nothing(self, ref: ir.Ref) -> Number | None:
        """The number that a value has on all rows that are not given; None if that is not known."""
        if ref not in self._numbers:
            self._numbers[ref] = self._number(ref)
        return self._numbers[ref]

    def _number(self, ref: ir.Ref) -> Number | None:
        node = self.program.nodes[ref]
        match node:
            case ir.Const(value):
                return value
            case ir.Pointwise(Op.where, (condition, x, otherwise)):
                if self.chooses_given(condition, row_space(self.program, ref)) is not None:
                    return self._nothing(otherwise)
                both = self._nothing(x), self._nothing(otherwise)
                return both[0] if both[0] == both[1] else None
            case ir.Pointwise(Op.mul, args):
                return 0 if 0 in map(self._nothing, args) else None
            case ir.Pointwise(Op.div, (x, _)) | ir.MatMul(x) | ir.Reduce(x, Fold.sum) | ir.Pad(x):
                return 0 if self._nothing(x) == 0 else None
            case ir.Pointwise(Op.add | Op.sub, args):
                return 0 if all(self._nothing(a) == 0 for a in args) else None
            case ir.Pointwise(Op.neg, (x,)):
                return 0 if self._nothing(x) == 0 else None
            case ir.Push(_, m) if node.is_plain_sum:
                made = self.program.nodes[m]
                by_edges = isinstance(made, ir.MapOf) and isinstance(self.program.nodes[made.index], ir.JoinIndices)
                return 0 if by_edges and row_space(self.program, ref) in self.flags else None
            case _ if isinstance(node, _SAME_NUMBER):
                return self._nothing(node.x)
            case _:
                return None

    def chooses_given(self, condition: ir.Ref, union: Space) -> bool | None:
        """Whether a condition is true on exactly the rows of `union` that are given; None if it may be on others."""
        node = self.program.nodes[condition]
        match node:
            case ir.Pointwise(Op.logical_and, args):
                return None if all(self.chooses_given(a, union) is None for a in args) else False
            case ir.Reshape(x) | ir.Broadcast(x):
                return self.chooses_given(x, union)
            case ir.Pull(x, m) if union in self.flags:
                return self._pulls_given(self.program.nodes[x], self.program.nodes[m], self.flags[union])
            case _:
                return None

    def _pulls_given(self, flags: ir.Node, m: ir.Node, wanted: Flags) -> bool | None:
        numbers = self.program.nodes[m.index] if isinstance(m, ir.MapOf) else None
        if not isinstance(flags, ir.Join) or not isinstance(numbers, ir.NumbersOfSegments):
            return None
        found = [self._flag(flags.xs[n]) for n in numbers.numbers]
        if any(want is not None and want != flag for want, flag in zip(wanted, found, strict=True)):
            return None
        return None not in wanted

    def _flag(self, ref: ir.Ref) -> Symbol | None:
        """The flag that a bool is."""
        match self.program.nodes[ref]:
            case ir.Aten(target=named.TENSOR_OF_SIZE, args=(ir.Operand(size), *_), type=ir.Type(_, (), DType.bool)):
                of: Size | None = getattr(self.program.types[size], "size", None)
                return of if isinstance(of, Symbol) and of in self._given else None
            case _:
                return None


def _is_work(node: ir.Node) -> bool:
    """Whether rows cost more than the copies that a union without some of them would take."""
    return not isinstance(node, ir.Join | ir.NumbersOfSegments | ir.RowsOfSegments | ir.JoinIndices)


def _only(flags: set[Symbol | None]) -> Symbol | None:
    (flag,) = flags if len(flags) == 1 else (None,)
    return flag


def _unions(program: ir.Program) -> dict[Space, tuple[Space, ...]]:
    """The segments of each space that is always made of the same segments."""
    found: dict[Space, tuple[Space, ...]] = {}
    unclear: set[Space] = set()
    for node in program.nodes:
        for union, of in _said(program, node):
            if found.setdefault(union, of) != of:
                unclear.add(union)
    return {union: of for union, of in found.items() if union not in unclear and of != (union,)}


def _said(program: ir.Program, node: ir.Node) -> Iterator[tuple[Space, tuple[Space, ...]]]:
    match node:
        case ir.NumbersOfSegments(of, _, space):
            yield space, of
        case ir.RowsOfSegments(of, at, space):
            yield space, tuple(of[k] for k in at)
        case ir.Join(xs, space):
            yield space, tuple(row_space(program, x) for x in xs)
        case ir.Part(x, of):
            yield row_space(program, x), of
        case ir.MapOf(index, cod):
            made = program.nodes[index]
            if isinstance(made, _Index):
                yield cod, made.of
