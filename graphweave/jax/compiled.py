"""Message programs of a graph -> kernels, by the stages that PyTorch's programs go through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from graphweave.analysis.statistics import statistics_of
from graphweave.compiler.compile import compile
from graphweave.compiler.contract import Contract
from graphweave.compiler.describe import describe
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.kernels_text import kernels_text
from graphweave.compiler.plan import Plan
from graphweave.compiler.request import Halves, Request
from graphweave.core.choices import Choices
from graphweave.core.options import options_for
from graphweave.core.schedule import Schedule
from graphweave.core.types import Space
from graphweave.execute.begun import Begun
from graphweave.execute.build import build
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.executable import Executable
from graphweave.ir.message.nodes import Input, Program, Ref
from graphweave.passes.pass_facts import PassFacts

Unions: TypeAlias = tuple[tuple[Space, tuple[Space, ...]], ...]
"""Space -> the spaces of which it is the disjoint union. Those come first."""

RowCounts = tuple[tuple[Space, int], ...]
"""How many rows each space has."""


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """The plan of a program, its kernels by step, and what computes values of the graph alone (None if there are
    none). `unions` are the spaces that the passes have made, with those of which each is the disjoint union."""

    plan: Plan
    kernels: Mapping[int, CppStep]
    prelude: Executable | None
    unions: Unions

    @property
    def once(self) -> CompiledProgram | None:
        """The program of `prelude` with its kernels, for edges that are arguments of a call."""
        if self.prelude is None:
            return None
        return CompiledProgram(self.prelude.plan, _cpp_steps(self.prelude), None, self.unions)

    @property
    def text(self) -> str:
        """The values that each kernel computes, and its code."""
        return kernels_text(describe(self.plan, "", {}, Glossary(), ()), wrapper=False)

    @property
    def threads(self) -> int | None:
        """The number of threads on which kernels run; None takes PyTorch's number."""
        return self.plan.options.schedule.threads


@dataclass(frozen=True, eq=False)
class CompiledHalves:
    """Forward and backward of a joint program. `saved` are the values that the forward gives behind its own outputs,
    each with the name that the backward's input has for it."""

    forward: CompiledProgram
    backward: CompiledProgram
    saved: tuple[tuple[Ref, str], ...]


@lru_cache(maxsize=256)
def compiled(program: Program, rows: RowCounts, schedule: Schedule, known: bool = True) -> CompiledProgram:
    """The kernels of `program`, ready to run; choices by cost are made for these row counts. Edges that are not `known`
    are arguments of each call. ToolchainError without a C++ compiler, ScheduleError for a schedule that no kernel
    takes."""
    return _ready(compile(Request(program, _facts(rows, schedule, known))))[0]


@lru_cache(maxsize=256)
def compiled_halves(
    program: Program,
    num_forward: int,
    tangents: frozenset[str],
    rows: RowCounts,
    schedule: Schedule,
    known: bool = True,
) -> CompiledHalves:
    """The halves of a program whose first `num_forward` outputs are the forward's, the others gradients.

    `tangents` are the names of the inputs that only the backward has. Both halves are optimised as one program, and the
    forward saves what the backward would otherwise walk the graph for. Errors are those of `compiled`.
    """
    halves = compile(Request(program, replace(_facts(rows, schedule, known), tangents=tangents), num_forward))
    forward, backward = _ready(halves)
    cut = halves.split
    assert cut is not None
    inputs = [backward.plan.program.nodes[cut.backward.where[r]] for r in cut.saved]
    names = [node.name for node in inputs if isinstance(node, Input)]
    return CompiledHalves(forward, backward, tuple(zip((cut.forward.where[r] for r in cut.saved), names, strict=True)))


def _facts(rows: RowCounts, schedule: Schedule, known: bool) -> PassFacts:
    options = options_for("cpp", schedule=schedule)
    # Python folds the parts of a fused push, and no foreign call can; pairs of sources and types, and the union of
    # relations, are made of edges that are known
    choices = Choices(unseen_edits=False, passes="-typed-push", compact=None if known else False, merge=known)
    return PassFacts(statistics=statistics_of(dict(rows)), options=options, choices=choices)


def _ready(halves: Halves) -> list[CompiledProgram]:
    """The halves with all kernels, also those of their preludes."""
    made = build(halves)
    preludes = [
        None if e.plan.prelude is None else Executable(e.plan.prelude, Contract(len(e.plan.hoisted))) for e in made
    ]
    begun = Begun()
    for one in preludes:
        if one is not None:
            begun.add(str(one.plan.name), one.steps.all)
    begun.wait()
    return [
        CompiledProgram(e.plan, _cpp_steps(e), prelude, halves.joint.unions)
        for e, prelude in zip(made, preludes, strict=True)
    ]


def _cpp_steps(of: Executable) -> dict[int, CppStep]:
    return {i: k for i, k in of.kernels.items() if isinstance(k, CppStep)}
