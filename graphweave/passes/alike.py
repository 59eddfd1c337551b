"""Which rewrites of one program are alike, so that one trial answers for all: equal layers make equal rewrites.

Two nodes look alike if they have the same operator, parameters (but for the digits of floats) and type, and so do their
neighbours, operands as well as users, within a few steps. What a rewrite saves follows from what stands around it: a
walk over edges recomputes a value from leaves that are few steps away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.core.exact import exact
from graphweave.core.numbers import any_other
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, exact_key, with_operands

T = TypeVar("T")

_STEPS = 8
"""How far the neighbours of a node count for its colour: further than from a sum over edges to the values that its
kernel reads, through all that an edge computes."""
_NEAR_STEPS = 2
"""How far they count for a look from near. Layers before and behind one that has been rewritten still look alike."""


class Looks:
    """Numbers of the nodes of one program; nodes of equal numbers look alike. `late` are those of the backward, `ends`
    the outputs and the calls that must stay. Spaces look alike if they have as many rows and maps."""

    def __init__(self, facts: Facts, statistics: Statistics, late: frozenset[ir.Ref], ends: frozenset[ir.Ref]) -> None:
        flow, program = facts.flow, facts.program
        maps = [t for t in program.types if isinstance(t, ir.MapType)]
        starts, arrives = Counter(t.dom for t in maps), Counter(t.cod for t in maps)
        self._rows = statistics.rows
        self._spaces = {s: (statistics.rows(s), starts[s], arrives[s]) for s, _ in program.spaces}
        self._spaces[UNIT] = (-1, 0, 0)
        only = flow.graph_only
        known: dict[Hashable, int] = {}
        colours = [
            known.setdefault(
                (self._form(node), self._kind(program.types[r]), r in late, r in only, r in ends), len(known)
            )
            for r, node in enumerate(program.nodes)
        ]
        self._near = colours
        for step in range(_STEPS):
            count, known = len(known), {}
            at = colours.__getitem__
            colours = [
                known.setdefault((own, tuple(map(at, used)), tuple(sorted(map(at, users)))), len(known))
                for own, used, users in zip(colours, flow.operands, flow.users, strict=True)
            ]
            if step < _NEAR_STEPS:
                self._near = colours
            if len(known) == count:  # no further step tells nodes apart
                break
        self._of = colours

    def _form(self, node: ir.Node) -> Hashable:
        """The operator of a node and its parameters, without its operands, names of inputs, numbers of parts and of
        segments, spaces and sizes."""
        match node:
            case ir.Input() | ir.Part():
                return type(node).__name__
            case ir.Const(value, t):
                return "Const", exact(_number(value)), self._kind(t)
            case ir.Aten(target, args, kwargs, serial=serial):
                return target, _blank(args), _blank(kwargs), serial > 0
            case ir.RowsOfSegments(of) | ir.NumbersOfSegments(of):
                return type(node).__name__, self._without_spaces(of)
        kind, values = exact_key(with_operands(node, lambda _: 0))
        return kind, self._without_spaces(values)

    def _kind(self, t: Hashable) -> Hashable:
        match t:
            case ir.Type(space, shape, dtype):
                return self._look(space), shape, dtype
            case ir.MapType(dom, cod):
                return self._look(dom), self._look(cod)
            case ir.AnyType(dtype, dims, size, items, other):
                return dtype, other, *(None if x is None else len(x) for x in (dims, items)), size is None
        return type(t).__name__

    def _look(self, space: Space) -> Hashable:
        """The rows and maps of a space of the program; the rows of one that a rule has made."""
        return self._spaces.get(space) or self._rows(space)

    def _without_spaces(self, value: object) -> Hashable:
        if isinstance(value, tuple):
            return tuple([self._without_spaces(v) for v in value])
        if isinstance(value, Space):
            return self._look(value)
        return self._kind(value) if isinstance(value, ir.Type | ir.AnyType | ir.MapType) else value

    def of_edit(self, edit: Edit, *, near: bool = False) -> Hashable:
        """The same for two edits that do the same to nodes that look alike, or that do so from `near`."""
        places, colours = dict[ir.Ref, int](), self._near if near else self._of

        def place(ref: ir.Ref) -> tuple[int, int]:
            number = places.setdefault(ref, len(places))
            return colours[ref] if ref < len(colours) else -1, number

        nodes = enumerate(zip(edit.nodes, edit.operands, strict=True), len(colours))
        return (
            tuple([(place(old), place(new)) for old, new in edit.replaced]),
            tuple([(self._form(node), place(ref), tuple(map(place, used))) for ref, (node, used) in nodes]),
        )


@dataclass(frozen=True, slots=True)
class Edit:
    """Nodes of a program that rules replace, each with what replaces it, and the nodes that the rules have built, with
    their operands. `first` is a first look, which agrees for edits that are alike."""

    first: Hashable
    replaced: tuple[tuple[ir.Ref, ir.Ref], ...]
    nodes: tuple[ir.Node, ...]
    operands: tuple[tuple[ir.Ref, ...], ...]

    @classmethod
    def of(cls, build: Builder, count: int, replaced: Mapping[ir.Ref, ir.Ref], rules: tuple[str, ...]) -> Edit:
        """The edit that `rules` have made to the first `count` nodes of a builder."""
        first = rules, len(build.nodes) - count, tuple([type(build.nodes[r]) for r in replaced])
        return cls(first, tuple(replaced.items()), tuple(build.nodes[count:]), tuple(build.operands[count:]))


class Answers(Generic[T]):
    """The answers that edits of one program have got. An edit gets that of an edit which is like it."""

    def __init__(self, facts: Facts, statistics: Statistics, late: frozenset[ir.Ref], ends: frozenset[ir.Ref]) -> None:
        self._program = facts, statistics, late, ends
        self._edits: dict[Hashable, list[tuple[Edit, T]]] = {}
        self._answers: dict[Hashable, dict[Hashable, T]] = {}

    @cached_property
    def _looks(self) -> Looks:
        return Looks(*self._program)

    def add(self, edit: Edit, answer: T) -> None:
        self._edits.setdefault(edit.first, []).append((edit, answer))

    def look_alike(self, one: Edit, other: Edit) -> bool:
        """Whether two edits look alike from near, so that it is worth a trial whether they gain the same."""
        look = self._looks.of_edit
        return one.first == other.first and look(one, near=True) == look(other, near=True)

    def get(self, edit: Edit) -> T | None:
        """None for an edit that is unlike all others."""
        fresh = self._edits.get(edit.first)
        if fresh is None:
            return None
        answers = self._answers.setdefault(edit.first, {})
        while fresh:
            other, answer = fresh.pop()
            answers[self._looks.of_edit(other)] = answer
        return answers.get(self._looks.of_edit(edit))


def _blank(arg: object) -> Hashable:
    """The arguments of a call without its operands."""
    if isinstance(arg, ir.Operand):
        return "%"
    return tuple(map(_blank, arg)) if isinstance(arg, tuple) else exact(_number(arg))


def _number(value: Hashable) -> Hashable:
    """A number without its digits, if no rule looks for it."""
    other = any_other(value) if isinstance(value, float) else None
    return value if other is None else other
