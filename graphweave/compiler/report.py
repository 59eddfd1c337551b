"""What was compiled, as data: `explain` prints it, tests read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from graphweave.analysis.flow import is_work
from graphweave.compiler.plan import Plan
from graphweave.ir.message.nodes import Aten, Program, Ref
from graphweave.ir.message.show import show, show_type
from graphweave.lower.parameters import value_name
from graphweave.passes.rewritten import Rewritten, Step
from graphweave.schedule.regions import Region


@dataclass(frozen=True, slots=True)
class KernelNote:
    name: str
    rows: str
    along: str | None
    computes: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class FallbackNote:
    """A piece left to PyTorch: the operator, why, and the user's line."""

    what: str
    why: str
    where: str


@dataclass(frozen=True, slots=True)
class GraphNote:
    """One compiled graph: forward, backward or inference. `recompute` is the policy of what is `saved`."""

    name: str
    ir: str
    kernels: tuple[KernelNote, ...]
    fallbacks: tuple[FallbackNote, ...]
    hoisted: int
    saved: tuple[str, ...]
    wrapper: str
    recompute: str = ""


@dataclass(frozen=True, slots=True)
class RewriteNote:
    """A program before and after rewriting, and the choices made by cost, taken and refused."""

    before: str
    after: str
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Report:
    """Everything compiled while it was collected; `eager` lists whole graphs that could not be compiled, and why."""

    rewrites: list[RewriteNote] = field(default_factory=list)
    graphs: list[GraphNote] = field(default_factory=list)
    eager: list[str] = field(default_factory=list)


_collecting: list[Report] = []


@contextmanager
def collect() -> Iterator[Report]:
    """Record what is compiled inside the block."""
    report = Report()
    _collecting.append(report)
    try:
        yield report
    finally:
        _collecting.remove(report)


def record(plan: Plan, wrapper: str, refused: dict[Ref, str], saved: tuple[Ref, ...] = (), recompute: str = "") -> None:
    """Tell whoever is collecting about `plan`."""
    if _collecting:
        note = describe(plan, wrapper, refused, saved, recompute)
        for report in _collecting:
            report.graphs.append(note)


def record_rewrites(before: Program, done: Rewritten) -> None:
    if _collecting:
        note = RewriteNote(show(before), show(done.program), done.steps)
        for report in _collecting:
            report.rewrites.append(note)


def record_eager(why: str) -> None:
    for report in _collecting:
        report.eager.append(why)


def describe(
    plan: Plan, wrapper: str, refused: dict[Ref, str], saved: tuple[Ref, ...], recompute: str = ""
) -> GraphNote:
    """`plan` in words; `refused` tells why the importer left nodes outside, `saved` what forward keeps for backward."""
    program = plan.program
    kernels = []
    for k in plan.kernels.values():
        region = k.region
        along = None if region.map is None else f"map %{region.map}"
        computes = tuple(f"{value_name(program, r)} ({program.locs[r] or 'generated'})" for r in region.members)
        kernels.append(KernelNote(k.lowered.kernel.name, region.rows.name, along, computes, k.text))
    fallbacks = [
        FallbackNote(f"region {plan.name}_{i}", why, _lines(plan, step.members))
        for i, why in plan.refused.items()
        if isinstance(step := plan.schedule.steps[i], Region)
    ]
    for step in plan.schedule.steps:
        if isinstance(step, Region):
            continue
        node = program.nodes[step.ref]
        if is_work(program, step.ref):
            if isinstance(node, Aten):
                what, why = node.target, refused.get(step.ref, "not an operator of the algebra")
            else:
                what, why = type(node).__name__.lower(), f"no kernels for {show_type(program.types[step.ref])}"
            fallbacks.append(FallbackNote(what, why, program.locs[step.ref]))
    names = tuple(f"%{r}: {show_type(program.types[r])}" for r in saved)
    hoisted = len(plan.hoisted)
    return GraphNote(plan.name, show(program), tuple(kernels), tuple(fallbacks), hoisted, names, wrapper, recompute)


def _lines(plan: Plan, refs: tuple[Ref, ...]) -> str:
    return "; ".join(dict.fromkeys(plan.program.locs[r] for r in refs if plan.program.locs[r]))
