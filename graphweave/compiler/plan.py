"""Message program -> plan: the prelude, which depends on the graph alone, kernels, and calls left to PyTorch with the
reasons."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from graphweave.analysis.cones import EdgeWalks, type_of
from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import Extract, ancestors, extract, is_scalar
from graphweave.analysis.statistics import Statistics
from graphweave.codegen import cpp, triton
from graphweave.compiler.road import PRELUDE
from graphweave.compiler.walk import rewrite
from graphweave.core.errors import IRError, Reason
from graphweave.core.kernel_schedules import HALVES, KernelSchedules, lines_of
from graphweave.core.log import logger, warn_once
from graphweave.core.options import Options, Target, of_kernel
from graphweave.core.schedule import EDGE_FIELDS
from graphweave.core.spans import PRINT, span
from graphweave.core.types import DType
from graphweave.ir.loop.nodes import Kernel, Role
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.loop.verify import verify as verify_kernel
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.verify import verify as verify_program
from graphweave.lower.parameters import Column, Flat, NodeTensor, Table
from graphweave.lower.region import Lowered, lower
from graphweave.lower.row_order import ROW_ORDER
from graphweave.lower.schedule import Region, StepOrder, schedule
from graphweave.lower.scheduled import Scheduled, check_taken, scheduled, walks_edges
from graphweave.passes.pass_facts import Pass, PassFacts

_log, _lower_log, _codegen_log = logger(__name__), logger("graphweave.lower"), logger("graphweave.codegen")

WIDE = "_wide"
"""The end of the name of a kernel for 64-bit indices."""

_PRINTERS: dict[Target, Callable[[Kernel], str]] = {"cpp": cpp.print_kernel, "triton": triton.print_kernel}


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """A region, its loop IR and its code for the target.

    `scheduled` is the kernel after the user's schedule was applied. `symbol` is the kernel's name in `code`, which in
    C++ is the text of all kernels that do the same (`codegen/cpp/shared.py`).
    """

    region: Region
    lowered: Lowered
    scheduled: Scheduled
    target: Target
    code: str
    symbol: str

    @property
    def text(self) -> str:
        """The code with the names of the program and the user's lines, for people."""
        return _PRINTERS[self.target](self.lowered.kernel)

    @property
    def name(self) -> str:
        """ "forward_0": the half, and the place among its steps."""
        return self.lowered.kernel.name.removesuffix(WIDE)

    def lines(self, program: ir.Program) -> set[str]:
        """The lines, "path:number", that the kernel computes."""
        return _lines(program, self.region)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that run: a single one, or those over pieces of its rows."""
        return self.scheduled.pieces or (self.lowered.kernel,)


@dataclass(frozen=True, slots=True)
class PlanName:
    """ "graph3_forward". Kernels are called by the `half` alone, "forward_0" and so on, in errors, logs and dumps."""

    half: str
    graph: str = ""

    def __str__(self) -> str:
        return f"{self.graph}_{self.half}" if self.graph else self.half


def label_of(name: PlanName, step: str) -> str:
    """The name of a kernel or call of a plan where several graphs may have one of that name: "graph3.forward_0"."""
    return f"{name.graph}.{step}" if name.graph else step


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of `schedule` in order. A step that is a Region has an entry either in `kernels`, or in `refused` with
    the reason why it has no kernel. Both are indexed by its position among the steps.

    `prelude` computes the `hoisted` values from the inputs `prelude_inputs`, which depend on the graph alone, and runs
    checks. It is a plan that hoists nothing itself.
    """

    name: PlanName
    facts: Facts
    schedule: StepOrder
    kernels: Mapping[int, KernelPlan]
    refused: Mapping[int, Reason]
    options: Options
    constants: Mapping[str, Any] = field(default_factory=dict)
    hoisted: tuple[ir.Ref, ...] = ()
    prelude_inputs: tuple[ir.Ref, ...] = ()
    prelude: Plan | None = None

    @property
    def program(self) -> ir.Program:
        return self.facts.program

    def is_native(self, ref: ir.Ref) -> bool:
        """Whether one call of native code computes a value, without PyTorch."""
        return self.options.device == "cpu" and isinstance(self.program.nodes[ref], ir.NativeOnCpu)

    def is_left(self, ref: ir.Ref) -> bool:
        """Whether a value that no kernel computes is left to calls of PyTorch that compute something."""
        return self.facts.flow.is_work(ref) and not self.is_native(ref)


def make_plan(
    name: PlanName,
    facts: Facts,
    options: Options,
    constants: Mapping[str, object],
    statistics: Statistics | None = None,
    prelude_passes: Sequence[Pass] = PRELUDE,
    passing: frozenset[ir.Ref] = frozenset(),
) -> Plan:
    """Schedule and lower a program. `constants` are values of some inputs, `statistics` the known row counts, and the
    inputs in `passing` are freed after their last use.

    Regions that cannot be lowered stay with PyTorch and are listed in `refused`.
    """
    verify_program(facts.program)
    kept, checks = facts.hoist.values, facts.hoist.checks
    hoisted = (*kept, *checks)
    plan = _plan_steps(name, facts, options, hoisted, statistics, passing)
    kept = _read(plan, kept)
    hoisted = (*kept, *checks)
    if not hoisted:
        return replace(plan, constants=constants)
    prelude, named = _prelude(facts.program, hoisted), PlanName("prelude", str(name))
    given = PassFacts(options=options, statistics=statistics or Statistics())
    once = rewrite("prelude", prelude_passes, prelude.program, given, str(named)).program
    inputs = tuple(old for old, new in prelude.where.items() if isinstance(prelude.program.nodes[new], ir.Input))
    return replace(
        plan,
        constants=constants,
        hoisted=kept,
        prelude_inputs=inputs,
        prelude=_plan_steps(named, Facts(once), options, (), statistics),
    )


def _read(plan: Plan, kept: tuple[ir.Ref, ...]) -> tuple[ir.Ref, ...]:
    """`kept` without indices that follow by arithmetic, and that nothing reads: the kernels that walk them have no
    format of them."""
    program, runs = plan.program, frozenset(r for r in kept if isinstance(plan.program.nodes[r], ir.ByArithmetic))
    if not runs:
        return kept
    roots = {r for r in program.outputs if r is not None}
    written = set(kept) - runs
    for i, step in enumerate(plan.schedule.steps):
        if i not in plan.kernels:
            roots.update(step.members if isinstance(step, Region) else (step.ref,))
            continue
        lowered = plan.kernels[i].lowered
        roots.update(lowered.maps)
        for buffer, binding in zip(lowered.kernel.buffers, lowered.bindings, strict=True):
            if isinstance(binding, NodeTensor):
                (written if buffer.role in (Role.output, Role.total) else roots).add(binding.ref)
    read = ancestors(program, roots, frozenset(written))
    return tuple(r for r in kept if r in read or r not in runs)


def _plan_steps(
    name: PlanName,
    facts: Facts,
    options: Options,
    made: tuple[ir.Ref, ...],
    statistics: Statistics | None,
    passing: frozenset[ir.Ref] = frozenset(),
) -> Plan:
    """The plan of a program where `made` is there already."""
    facts = facts.walked(EdgeWalks(options.schedule.edge_format, _few_edges(facts.program, statistics, options)))
    order = schedule(facts, made, options, statistics, passing)
    regions = sum(isinstance(step, Region) for step in order.steps)
    calls = len(order.steps) - regions
    _log.info("%s: %d regions, %d calls, values made once a graph: %d", name, regions, calls, len(made))
    kernels: dict[int, KernelPlan] = {}
    refused: dict[int, Reason] = {}
    for i, step in enumerate(order.steps):
        if isinstance(step, Region):
            try:
                kernels[i] = lower_region(facts, step, order, f"{name.half}_{i}", options, DType.i32)
            except IRError as error:
                refused[i] = error.reason
                _lower_log.info("%s: region %d has no kernel: %s", name, i, error)
    return Plan(name, facts, order, kernels, refused, options)


def _few_edges(program: ir.Program, statistics: Statistics | None, options: Options) -> frozenset[ir.MapType]:
    """The types of maps that have no more edges than rows. None where a schedule says how to go along grouped edges,
    so that it does not depend on the graph whether a kernel can take it."""
    by_name = () if options.schedules is None else options.schedules.given
    if any(name in s.given for s in (options.schedule, *(s for _, s in by_name)) for name in EDGE_FIELDS):
        return frozenset()
    known = {} if statistics is None else dict(statistics.counted)
    maps = (t for t in program.types if isinstance(t, ir.MapType) and t.dom in known and t.cod in known)
    return frozenset(t for t in maps if known[t.dom] <= known[t.cod])


def check_schedule(plans: Iterable[Plan]) -> None:
    """Raise ScheduleError if the user's schedule has a field that no kernel of `plans` can take; they are one
    function's.

    A function that walks no edges has nothing to schedule.
    """
    plans = tuple(plans)
    kernels = [k for plan in plans for k in plan.kernels.values()]
    options = plans[0].options
    if options.schedules is not None:
        _check_by_name(options.schedules, plans)
    elif any(walks_edges(k.lowered.kernel) for k in kernels):
        check_taken(options.schedule, options.target, [k.scheduled.not_taken for k in kernels])


def _check_by_name(schedules: KernelSchedules, plans: Sequence[Plan]) -> None:
    """ScheduleError if a schedule has a field that none of the kernels with its name can take.

    Another graph of the function may have a kernel that this one has not, so a name without one is a warning.
    """
    found: dict[str, list[Mapping[str, str]]] = {key: [] for key, _ in schedules.given}
    kernels = [
        (part.program, kernel)
        for plan in plans for part in (plan, plan.prelude) if part is not None for kernel in part.kernels.values()
    ]  # fmt: skip
    for program, kernel in kernels:
        for at, (key, _) in enumerate(schedules.naming(kernel.name, kernel.lines(program))):
            found[key].append({} if at else kernel.scheduled.not_taken)  # it follows the first
    for key, wanted in schedules.given:
        if found[key]:
            check_taken(wanted, plans[0].options.target, found[key])
        elif key not in HALVES:
            named = ", ".join(sorted(kernel.name for _, kernel in kernels))
            warn_once(
                f"graphweave: schedule: no kernel of {plans[0].name.graph or 'the function'} has the name or the line"
                f" {key!r}; there are {named}. Name one of these, or a line that graphweave.explain prints."
            )


def lower_region(
    facts: Facts, region: Region, order: StepOrder, name: str, options: Options, index: DType
) -> KernelPlan:
    """The kernel of one region, verified and printed. An IRError says why there is none."""
    options = of_kernel(options, name.removesuffix(WIDE), _lines(facts.program, region))
    lowered = lower(facts, region, order.stored, name, options, index)
    made = scheduled(lowered.kernel, options, *_gathered(facts.program, lowered))
    ordered = (Table(ROW_ORDER),) if made.kernel.row != lowered.kernel.row else ()
    lowered = replace(lowered, kernel=made.kernel, bindings=(*lowered.bindings, *ordered))
    verify_kernel(made.kernel)
    _lower_log.info("%s: %d nodes of rows of %s, %d buffers", name, len(region.members), region.rows.name,
                    len(lowered.kernel.buffers))  # fmt: skip
    if _lower_log.isEnabledFor(logging.DEBUG):
        _lower_log.debug("%s", show_kernel(lowered.kernel))
    with span(PRINT, name):
        code, symbol = _code(lowered.kernel, options.target)
    made_plan = KernelPlan(region, lowered, made, options.target, code, symbol)
    _codegen_log.info("%s: %d lines for %s", name, code.count("\n"), options.target)
    if _codegen_log.isEnabledFor(logging.DEBUG):
        _codegen_log.debug("%s", made_plan.text)
    for name_of_field, why in made.not_taken.items():
        _lower_log.info("%s: the schedule's %s is left out: %s", name, name_of_field, why)
    return made_plan


def _lines(program: ir.Program, region: Region) -> set[str]:
    return {line for ref in region.members for line in lines_of(program.locs[ref])}


def _code(kernel: Kernel, target: Target) -> tuple[str, str]:
    """The code that is compiled for a kernel, and the kernel's name there."""
    return cpp.shared_text(kernel) if target == "cpp" else (_PRINTERS[target](kernel), kernel.name)


def _gathered(program: ir.Program, lowered: Lowered) -> tuple[bool, tuple[int, ...]]:
    """Whether the kernel's edges read rows at the other end of a map, and the widest feature shape of its results."""
    buffers = tuple(zip(lowered.kernel.buffers, lowered.bindings, strict=True))
    gathers = any(buffer.role is Role.column and isinstance(b, Column | Flat) for buffer, b in buffers)
    shapes = [
        type_of(program, b.ref).shape
        for buffer, b in buffers
        if isinstance(b, NodeTensor) and buffer.role in (Role.output, Role.total)
    ]
    return gathers, max(shapes, key=numel, default=())  # a region whose values nobody needs writes nothing


def _prelude(program: ir.Program, kept: tuple[ir.Ref, ...]) -> Extract:
    """The program of the prelude, which computes `kept`.

    All sizes are inputs, since row counts may have to be computed from them; tensors are inputs only if they are used.
    """
    needed = ancestors(program, kept)
    inputs = (
        r for r, n in enumerate(program.nodes) if isinstance(n, ir.Input) and (r in needed or is_scalar(program, r))
    )
    return extract(program, inputs, kept)
