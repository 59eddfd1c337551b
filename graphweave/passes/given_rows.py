"""Rows of relations that a call does not give -> no rows.

    where(pull(flags, t), x, 0) on U        (U has the rows of V for each of several relations)
->  x on a union of spaces that have the rows of V, or none

A function whose dictionaries have other keys in each call is captured with all keys, and a flag says of each whether
it is given (`dynamo/varying_keys.py`). Once relations are merged, their nodes have a row for each relation and node,
and most of these have no effect in a call. Legal where `GivenSegments` says so; pays always, since no kernel visits
the rows that are left out, and nothing is stored for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.analysis.cones import row_space
from graphweave.core.lines import Location
from graphweave.core.sizes import Size, Symbol, product, total
from graphweave.core.types import Op, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands, with_spaces
from graphweave.passes.given_segments import GivenSegments
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.substitute import substitute


@dataclass(frozen=True, slots=True)
class GivenRows:
    name: str = "given-rows"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` without the rows of relations that a call does not give; the same object where there are none."""
        if not facts.given:
            return unchanged(program)
        found = GivenSegments(facts.of(program), facts.given)
        return _Writer(found, facts).written() if found.flags else unchanged(program)


class _Writer:
    def __init__(self, found: GivenSegments, facts: PassFacts) -> None:
        self._found, self._facts, self._program = found, facts, found.program
        self._build = Builder()
        self._moved: dict[ir.Ref, ir.Ref] = {}
        self._sizes: dict[Space, Size] = {}
        self._counted: dict[Space, int] = {}
        self._taken = {space.name for space, _ in found.program.spaces}
        self._segments: dict[tuple[Space, Symbol], Space] = {}
        self._unions = {union: self._union(union) for union in found.flags}
        """Each union, without the rows that are not given."""

    def written(self) -> Rewritten:
        for ref, node in enumerate(self._program.nodes):
            self._moved[ref] = self._written(ref, node, self._program.locs[ref])
        outputs = [None if r is None else self._moved[r] for r in self._program.outputs]
        keep = [self._moved[r] for r in self._facts.keep]
        kept = [(space, size) for space, size in self._program.spaces if space not in self._unions]
        done = substitute(self._build, len(self._build.nodes), {}, outputs, keep, [*kept, *self._sizes.items()])
        where = {old: done.where[new] for old, new in self._moved.items() if new in done.where}
        return Rewritten(done.program, where, operands=done.operands, counted=tuple(self._counted.items()))

    # -------------------------------------------------------- spaces

    def _union(self, union: Space) -> Space:
        made = self._fresh(f"{union.name}_given")
        parts = self._of(union)
        self._sizes[made] = total(*(self._rows(s) for s in parts))
        known = dict(self._facts.statistics.counted)
        rows = sum(self._counted.get(s, self._facts.statistics.rows(s)) for s in parts)
        self._counted[made] = known.get(made, rows)
        return made

    def _rows(self, space: Space) -> Size:
        size = self._sizes.get(space, dict(self._program.spaces).get(space))
        assert size is not None
        return size

    def _of(self, union: Space) -> tuple[Space, ...]:
        """The segments of a union, without rows where they are not given."""
        of = self._found.segments[union]
        flags = self._found.flags.get(union, (None,) * len(of))
        return tuple(s if flag is None else self._segment(s, flag) for s, flag in zip(of, flags, strict=True))

    def _segment(self, of: Space, flag: Symbol) -> Space:
        """The space that has the rows of `of` in calls in which the size `flag` is 1, and none where it is 0."""
        if (of, flag) not in self._segments:
            made = self._segments[of, flag] = self._fresh(f"{of.name}_{flag.name}")
            self._sizes[made] = product(flag, self._rows(of))
            self._counted[made] = self._facts.statistics.rows(of) if self._facts.given[flag].first else 0
        return self._segments[of, flag]

    def _fresh(self, name: str) -> Space:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return Space(name)

    # -------------------------------------------------------- nodes

    def _written(self, ref: ir.Ref, node: ir.Node, loc: Location) -> ir.Ref:
        match node:
            case ir.NumbersOfSegments(_, numbers, union) if union in self._unions:
                return self._build.add(ir.NumbersOfSegments(self._of(union), numbers, self._unions[union]), loc)
            case ir.RowsOfSegments(of):
                to = self._led_to(ref)
                return self._build.add(self._rows_of_segments(node, of if to is None else self._of(to), loc), loc)
            case ir.JoinIndices(indices, _, at, wraps, space) if (to := self._led_to(ref)) in self._unions:
                assert to is not None
                moved = tuple(self._moved[x] for x in indices)
                return self._build.add(ir.JoinIndices(moved, self._of(to), at, wraps, space), loc)
            case ir.Join(xs, union) if union in self._unions:
                pairs = zip(xs, self._of(union), strict=True)
                return self._build.add(ir.Join(tuple(self._on(x, s, loc) for x, s in pairs), self._unions[union]), loc)
            case ir.Part(x, _, at) if (union := row_space(self._program, x)) in self._unions:
                return self._build.add(ir.Part(self._moved[x], self._of(union), at), loc)
            case ir.Pointwise(Op.where, (condition, x, _)) if self._always(condition, row_space(self._program, ref)):
                if self._program.types[x] == self._program.types[ref]:
                    return self._moved[x]
        renamed = with_spaces(node, lambda s: self._unions.get(s, s))
        return self._build.add(with_operands(renamed, self._moved.__getitem__), loc)

    def _always(self, condition: ir.Ref, union: Space) -> bool:
        """Whether a condition is true on all rows that are given."""
        return union in self._unions and self._found.chooses_given(condition, union) is True

    def _led_to(self, index: ir.Ref) -> Space | None:
        """The union to which an index leads; None if it leads to rows that are no union's."""
        for user in self._found.users[index]:
            made = self._program.nodes[user]
            if isinstance(made, ir.MapOf) and made.cod in self._found.segments:
                return made.cod
        return None

    def _rows_of_segments(self, node: ir.RowsOfSegments, of: tuple[Space, ...], loc: Location) -> ir.Node:
        if node.space not in self._unions:
            return ir.RowsOfSegments(of, node.at, node.space)
        own = self._of(node.space)
        if own == tuple(of[k] for k in node.at):
            return ir.RowsOfSegments(of, node.at, self._unions[node.space])
        # rows of a segment are those of a space as often as the flag says: once or not at all
        indices = tuple(self._build.add(ir.Rounds(of[k], s), loc) for k, s in zip(node.at, own, strict=True))
        return ir.JoinIndices(indices, of, node.at, (False,) * len(indices), self._unions[node.space])

    def _on(self, x: ir.Ref, segment: Space, loc: Location) -> ir.Ref:
        """`x` on a segment of the same rows, or of those that are given."""
        moved, own = self._moved[x], row_space(self._program, x)
        t = self._build.types[moved]
        assert isinstance(t, ir.Type)
        if t.space == segment:
            return moved
        m = self._build.add(ir.MapOf(self._build.add(ir.Rounds(own, segment), loc), own), loc)
        return self._build.add(ir.Pull(moved, m), loc)
