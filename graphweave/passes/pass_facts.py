"""The signature of passes: `pass_(program, facts) -> Rewritten`, and what they know besides the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from graphweave.analysis.facts import Facts
from graphweave.analysis.ownership import Sharding
from graphweave.analysis.statistics import Statistics
from graphweave.core.choices import Choices
from graphweave.core.locality import RowOrder
from graphweave.core.options import Options
from graphweave.core.sizes import Size, Symbol
from graphweave.core.types import Space
from graphweave.ir.message.nodes import Input, Program, Ref
from graphweave.passes.rewritten import Rewritten
from graphweave.passes.rules.rule import AddedRules

Measure: TypeAlias = Callable[[Facts, Ref], "int | None"]
"""Gives the number of rows, in the graph at hand, of a value that depends on the graph alone; None if not known."""

ChooseOrder: TypeAlias = Callable[[Program, Mapping[Space, tuple[Ref, Ref]]], "tuple[RowOrder | None, str]"]
"""Chooses an order for a program and says why, given two maps of the same edges for each space that may get one."""


@dataclass(frozen=True, slots=True)
class GivenSize:
    """A size that is 1 or 0: `first` in the first call. The sizes `zeros` are 0 if it is 0."""

    zeros: frozenset[Size]
    first: bool


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Facts that passes know besides the program.

    `keep` are calls that must stay though no output needs them, and `tangents` the names of inputs that only the
    backward has. `statistics` estimate the rows of each space, and `measure` counts rows of the graph at hand. `steady`
    are names of inputs that are likely to be the same at the next call. `sharding` says how the program lies on several
    ranks, None that it runs on one. `added` are rules that users have registered. `choices` are the user's, `options`
    those of the target's kernels, and `choose_order` decides what the user has left open with `relabel="auto"`. `given`
    are sizes that say whether a call gives a key of the function's dictionaries. What is
    `known` of the program itself goes from pass to pass until one changes it; a pass asks `facts.of(program)`.
    """

    keep: tuple[Ref, ...] = ()
    tangents: frozenset[str] = frozenset()
    statistics: Statistics = field(default_factory=Statistics)
    measure: Measure | None = None
    steady: frozenset[str] = frozenset()
    sharding: Sharding | None = None
    added: AddedRules = field(default_factory=AddedRules)
    choices: Choices = field(default_factory=Choices)
    options: Options = field(default_factory=Options)
    choose_order: ChooseOrder | None = None
    given: Mapping[Symbol, GivenSize] = field(default_factory=dict)
    known: Facts | None = field(default=None, compare=False, repr=False)

    def of(self, program: Program) -> Facts:
        """The facts of a program: those that are `known` already, if they are of this one."""
        return self.known if self.known is not None and self.known.program is program else Facts(program)

    def tangents_of(self, program: Program) -> frozenset[Ref]:
        """The inputs of `program` that only the backward has."""
        return frozenset(r for r, n in enumerate(program.nodes) if isinstance(n, Input) and n.name in self.tangents)


class Pass(Protocol):
    """A rewrite of whole programs that keeps their values. A program without work for it comes back as it is, and a
    second run changes nothing. What runs the passes verifies, prints and times them (`compiler/walk.py`)."""

    @property
    def name(self) -> str: ...

    def __call__(self, program: Program, facts: PassFacts) -> Rewritten: ...


NO_FACTS = PassFacts()
"""The facts of a pass that is told nothing."""
