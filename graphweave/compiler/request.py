"""The request of a door to the compiler, and the answer: `Request` -> `Halves`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.contract import Contract
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.compiler.road import ROAD, Road
from graphweave.core.errors import Reason
from graphweave.core.options import Options
from graphweave.core.spans import PLAN, span
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Program, Ref
from graphweave.passes.exposed_memory import Exposed
from graphweave.passes.partition import Split
from graphweave.passes.pass_facts import Pass, PassFacts
from graphweave.passes.rewritten import Rewritten

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A program, and all that its compilation depends on.

    The first `num_forward` outputs are the forward's and the others the backward's; None asks for one half, an
    inference. `facts.keep` are calls that must run even if nothing reads their results, and `facts.tangents` names the
    inputs that only the backward has.

    `inputs` are the positions of the arguments in the door's order, and `exposed` says which of them, and which
    results, the user may overwrite between the two halves. `constants` are inputs whose value is part of the program.
    `promises` says for each output how it lies in memory. `refused` are the importer's reasons for calls of PyTorch,
    and `names` the user's words for inputs.
    """

    program: Program
    facts: PassFacts = field(default_factory=PassFacts)
    num_forward: int | None = None
    inputs: tuple[Ref, ...] = ()
    exposed: Exposed | None = None
    constants: Mapping[Ref, Any] = field(default_factory=dict)
    promises: Sequence[Promise | None] = ()
    refused: Mapping[Ref, Reason] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    road: Road = ROAD


@dataclass(frozen=True, slots=True, eq=False)
class Half:
    """A program that becomes one executable, under any options of its kernels.

    `where` gives the place in it of each node of the joint program, and `saved` are the outputs that the backward takes
    over. The inputs in `passing` are there for one call alone, which may free them.
    """

    name: PlanName
    facts: Facts
    where: Mapping[Ref, Ref]
    contract: Contract
    constants: Mapping[str, Any]
    statistics: Statistics
    prelude_passes: Sequence[Pass]
    saved: tuple[Ref, ...] = ()
    passing: frozenset[Ref] = frozenset()

    def plan(self, options: Options) -> Plan:
        """The half as kernels of a target."""
        with span(PLAN, str(self.name)):
            return make_plan(
                self.name, self.facts, options, self.constants, self.statistics, self.prelude_passes, self.passing
            )


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """A request on its way: the `joint` program after all passes, its `inputs` in the door's order, and its halves, a
    forward and a backward, or one inference. `split` says how the joint program was divided."""

    request: Request
    joint: Rewritten
    glossary: Glossary
    parts: tuple[Half, ...]
    split: Split | None = None

    @property
    def program(self) -> Program:
        """The joint program."""
        return self.joint.program

    def moved(self, values: Mapping[Ref, _T]) -> dict[Ref, _T]:
        """`values` of nodes of the request's program, by their places in the joint program."""
        where = self.joint.where
        return {where[r]: value for r, value in values.items() if r in where}
