"""The memory that a call holds after each of its steps, by the sizes of the first call."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from graphweave.analysis.flow import is_view
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import Plan
from graphweave.compiler.report import MemoryNote
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.show import operation
from graphweave.ir.tape import nodes as tape_ir
from graphweave.ir.tape.walk import frees_of, makes_of


def memory_of(tape: tape_ir.Tape, plan: Plan, glossary: Glossary, held: Iterable[ir.Ref]) -> tuple[MemoryNote, ...]:
    """The steps that compute something. `held` are the inputs that are kept for this call alone, as those are that a
    forward saves for its backward; other inputs are the user's. Values whose size data decides count as nothing."""
    alive = _Alive(plan, glossary)
    for r in held:
        alive.make(r)
    notes = [MemoryNote("start", alive.bytes, alive.bytes)]
    for step in tape.steps:
        source = _shared_by(step, plan)
        for r in makes_of(step):
            alive.make(r, source)
        during = alive.bytes + (_slots(step.inside, glossary) if isinstance(step, tape_ir.RunKernels) else 0)
        for r in frees_of(step):
            alive.free(r)
        words = _words(step, plan)
        if words:
            notes.append(MemoryNote(words, during, alive.bytes))
        else:  # it belongs to the step before
            notes[-1] = replace(notes[-1], after=alive.bytes)
    return (*notes, MemoryNote("end", alive.bytes, alive.bytes))


class _Alive:
    """The values that exist, by the memory in which they lie, and its `bytes`."""

    def __init__(self, plan: Plan, glossary: Glossary) -> None:
        self._types, self._glossary = plan.program.types, glossary
        self._owner: dict[ir.Ref, ir.Ref] = {}
        self._values: dict[ir.Ref, set[ir.Ref]] = {}
        self.bytes = 0

    def make(self, ref: ir.Ref, source: ir.Ref | None = None) -> None:
        """Note a value, in the memory of `source` if there is one. That of the user's arguments is not counted."""
        if source is not None:
            owner = self._owner.get(source)
            if owner is not None:
                self._owner[ref] = owner
                self._values[owner].add(ref)
            return
        self._owner[ref], self._values[ref] = ref, {ref}
        self.bytes += self._size(ref)

    def free(self, ref: ir.Ref) -> None:
        owner = self._owner.pop(ref, None)
        if owner is not None:
            self._values[owner].remove(ref)
            self.bytes -= 0 if self._values[owner] else self._size(owner)

    def _size(self, ref: ir.Ref) -> int:
        t = self._types[ref]
        return self._glossary.bytes_of(t) if isinstance(t, ir.Type) else 0


def _shared_by(step: tape_ir.Step, plan: Plan) -> ir.Ref | None:
    """The value in whose memory a step makes its own."""
    if isinstance(step, tape_ir.OwnMemory):
        return step.source
    if isinstance(step, tape_ir.CallNode):
        node = plan.program.nodes[step.value]
        if is_view(node) or isinstance(node, ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice):
            return step.operands[0]
    return None


def _slots(inside: Iterable[tape_ir.Inside], glossary: Glossary) -> int:
    """Bytes of the memory that a native call has for itself, whose slots values share."""
    slots: dict[int, int] = {}
    for one in inside:
        slots[one.slot] = max(slots.get(one.slot, 0), one.nbytes * glossary.statistics.rows(one.space))
    return sum(slots.values())


def _words(step: tape_ir.Step, plan: Plan) -> str:
    """The kernels or the operator of a step; "" for one that computes nothing."""
    match step:
        case tape_ir.RunKernels(members=members):
            return ", ".join(plan.kernels[m.kernel].lowered.kernel.name for m in members)
        case tape_ir.RunKernel(kernel=kernel) | tape_ir.FirstPart(kernel=kernel) | tape_ir.SecondPart(kernel=kernel):
            return plan.kernels[kernel].lowered.kernel.name
        case tape_ir.CallNode(value=value, counted=True):
            return operation(plan.program.nodes[value])
        case tape_ir.OnceAGraph():
            return "once a graph"
    return ""
