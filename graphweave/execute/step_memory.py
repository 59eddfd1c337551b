"""The memory that a call holds after each of its steps, by the sizes of the first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from graphweave.analysis.flow import is_view
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import Plan
from graphweave.compiler.report import MemoryNote
from graphweave.ir.message.nodes import Ref, Type
from graphweave.ir.message.show import operation
from graphweave.ir.tape.nodes import (
    CallNode,
    FirstPart,
    Inside,
    OnceAGraph,
    OwnMemory,
    RunKernel,
    RunKernels,
    SecondPart,
    Step,
    Tape,
)
from graphweave.ir.tape.walk import frees_of, makes_of


def memory_of(tape: Tape, plan: Plan, glossary: Glossary, held: Iterable[Ref]) -> tuple[MemoryNote, ...]:
    """The steps that compute something. `held` are the inputs that are kept for this call alone, as those are that a
    forward saves for its backward; other inputs are the user's. Values whose size data decides count as nothing."""
    return tuple(_notes(tape, plan, glossary, held))


def _notes(tape: Tape, plan: Plan, glossary: Glossary, held: Iterable[Ref]) -> Iterator[MemoryNote]:
    program = plan.program

    def size(ref: Ref) -> int:
        t = program.types[ref]
        return glossary.bytes_of(t) if isinstance(t, Type) else 0

    alive = {r: size(r) for r in held}
    yield MemoryNote("start", sum(alive.values()), sum(alive.values()))
    for step in tape.steps:
        during = sum(alive.values())
        if not (isinstance(step, OwnMemory) or (isinstance(step, CallNode) and is_view(program.nodes[step.value]))):
            alive |= {r: size(r) for r in makes_of(step)}
            inside = _slots(step.inside, glossary) if isinstance(step, RunKernels) else 0
            during = sum(alive.values()) + inside
        for r in frees_of(step):
            alive.pop(r, None)
        words = _words(step, plan)
        if words:
            yield MemoryNote(words, during, sum(alive.values()))
    yield MemoryNote("end", sum(alive.values()), sum(alive.values()))


def _slots(inside: Iterable[Inside], glossary: Glossary) -> int:
    """Bytes of the memory that a native call has for itself, whose slots values share."""
    slots: dict[int, int] = {}
    for one in inside:
        slots[one.slot] = max(slots.get(one.slot, 0), one.nbytes * glossary.statistics.rows(one.space))
    return sum(slots.values())


def _words(step: Step, plan: Plan) -> str:
    """The kernels or the operator of a step; "" for one that computes nothing."""
    match step:
        case RunKernels(members=members):
            return ", ".join(plan.kernels[m.kernel].lowered.kernel.name for m in members)
        case RunKernel(kernel=kernel) | FirstPart(kernel=kernel) | SecondPart(kernel=kernel):
            return plan.kernels[kernel].lowered.kernel.name
        case CallNode(value=value, counted=True):
            return operation(plan.program.nodes[value])
        case OnceAGraph():
            return "once a graph"
    return ""
