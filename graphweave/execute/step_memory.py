"""The memory that a call holds after each of its steps, by the sizes of the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import shares_memory
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import KernelPlan, Plan
from graphweave.compiler.report import MemoryNote
from graphweave.compiler.request import Half
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import DType, Space
from graphweave.execute.cpp_step import work_of
from graphweave.execute.cpp_stretch import MAX_BYTES
from graphweave.execute.row_chunks import rows_of_chunk
from graphweave.ir.loop.nodes import Role
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.message.show import operation
from graphweave.ir.tape import nodes as tape_ir
from graphweave.ir.tape.walk import frees_of, lives_inside, makes_of
from graphweave.runtime.formats import CHUNK_SHARE
from graphweave.runtime.launch import MAX_CHUNKS, chunk_count


@dataclass(frozen=True, slots=True)
class HeldInput:
    """An input of a tape with memory of its own, of so many bytes. It is freed after its last use, unless it `stays`
    for later calls on the same graph."""

    value: ir.Ref
    nbytes: int
    stays: bool = False


def memory_of(tape: tape_ir.Tape, plan: Plan, glossary: Glossary, held: Iterable[HeldInput]) -> tuple[MemoryNote, ...]:
    """The steps that compute something. `held` are the inputs that are kept for this call alone, as those are that a
    forward saves for its backward; other inputs are the user's."""
    alive = _Alive(plan, glossary, narrowed_in(tape))
    for one in held:
        alive.make(one.value, nbytes=one.nbytes)
        alive.stay.update([one.value] if one.stays else ())
    notes = [MemoryNote("start", alive.bytes, alive.bytes)]
    for step in tape.steps:
        if isinstance(step, tape_ir.RunKernels) and _runs_one_by_one(step, plan, glossary):
            notes += _members(step, plan, alive)
            continue
        source = _shared_by(step, plan)
        for r in makes_of(step):
            alive.make(r, source)
        alive.stay.update(step.makes if isinstance(step, tape_ir.OnceAGraph) else ())
        inside = _slots(step.inside, glossary) if isinstance(step, tape_ir.RunKernels) else 0
        if isinstance(step, tape_ir.InChunks):
            inside = max(note.during for note in memory_of(step.tape, plan, _of_chunk(step, glossary), ()))
        during = alive.bytes + inside + max(map(alive.parts, _kernels(step)), default=0)
        for r in frees_of(step):
            alive.free(r)
        words = _words(step, plan)
        if words:
            notes.append(MemoryNote(words, during, alive.bytes))
        else:  # it belongs to the step before
            notes[-1] = replace(notes[-1], after=alive.bytes)
    return (*notes, MemoryNote("end", alive.bytes, alive.bytes))


def handed_over(first: Half, ahead: tape_ir.Tape, back: tape_ir.Tape, glossary: Glossary) -> tuple[HeldInput, ...]:
    """The inputs of a backward that its forward, which follows the tape `ahead`, has made."""
    program = first.facts.program
    once = {r for step in ahead.steps if isinstance(step, tape_ir.OnceAGraph) for r in step.makes}
    sizes = Sizes(first.facts, glossary, narrowed_in(ahead))
    pairs = zip(first.saved, back.inputs, strict=False)  # tangents follow
    computed = ((r, there) for r, there in pairs if not isinstance(program.nodes[r], ir.Input))
    return tuple(HeldInput(there, sizes.bytes_of(r), r in once) for r, there in computed)


def narrowed_in(tape: tape_ir.Tape) -> frozenset[ir.Ref]:
    """The indices that a tape holds in 32 bits, with those of the values made once a graph."""
    found = {step.value for step in tape.steps if isinstance(step, tape_ir.Narrow)}
    for step in tape.steps:
        if isinstance(step, tape_ir.OnceAGraph):
            inside = narrowed_in(step.tape)
            made = zip(step.makes, step.tape.outputs, strict=False)  # checks follow
            found.update(r for r, out in made if out.value in inside)
    return frozenset(found)


def _of_chunk(step: tape_ir.InChunks, glossary: Glossary) -> Glossary:
    """The sizes of a chunk of rows."""
    counted = dict(glossary.statistics.counted)
    counted[step.space] = min(glossary.statistics.rows(step.space), rows_of_chunk(step.nbytes))
    return replace(glossary, statistics=replace(glossary.statistics, counted=tuple(counted.items())))


def _runs_one_by_one(step: tape_ir.RunKernels, plan: Plan, glossary: Glossary) -> bool:
    """Whether the values of several kernels are so large that each kernel is called by itself (`cpp_stretch.py`)."""
    types = (plan.program.types[r] for r in step.writes)
    written = sum(glossary.bytes_of(t) for t in types if isinstance(t, ir.Type))
    return len(step.members) > 1 and written + _slots(step.inside, glossary) > MAX_BYTES


def _members(step: tape_ir.RunKernels, plan: Plan, alive: _Alive) -> Iterator[MemoryNote]:
    """The kernels of a step that are called one by one: each value is freed after the last of them that reads it."""
    last = {r: end for r, (_, end) in lives_inside(step).items()}
    last.update((r, i) for i, member in enumerate(step.members) for r in member.reads if r in step.frees)
    for turn in step.transposes:
        alive.make(turn.value)
    for i, member in enumerate(step.members):
        for r in member.writes:
            alive.make(r)
        during = alive.bytes + alive.parts(member.kernel)
        for r in [r for r, at in last.items() if at == i]:
            alive.free(r)
        yield MemoryNote(plan.kernels[member.kernel].name, during, alive.bytes)


class Sizes:
    """The bytes of a program's values, by the sizes of a call. Those in `narrow` have 32 bits. A view of an input has
    no memory of its own."""

    def __init__(self, facts: Facts, glossary: Glossary, narrow: frozenset[ir.Ref] = frozenset()) -> None:
        self._program, self._flow, self._glossary, self._narrow = facts.program, facts.flow, glossary, narrow

    def bytes_of(self, ref: ir.Ref) -> int:
        t, node = self._program.types[ref], self._program.nodes[ref]
        if ref not in self._narrow and not isinstance(node, ir.Input) and self._flow.lies_in_input(ref):
            return 0
        if ref in self._narrow and isinstance(t, ir.Type):
            t = replace(t, dtype=DType.i32)
        if isinstance(t, ir.Type):
            return self._glossary.bytes_of(t)
        if not isinstance(t, ir.AnyType) or t.dims is None or t.dtype is None:
            return 0
        return prod(map(self._extent, t.dims)) * t.dtype.itemsize

    def _extent(self, size: Size) -> int:
        """A dim of a tensor without a space. A size that only data tells is taken to be as large as the smallest space
        of whose size it is a part, and as nothing if there is none."""
        if isinstance(size, int):
            return size
        spaces, rows = self._program.spaces, self._glossary.statistics.rows
        of_this_size = [rows(space) for space, own in spaces if own == size]
        return min(of_this_size or [rows(space) for space, own in spaces if size in leaves(own)], default=0)


class _Alive:
    """The values that exist, by the memory in which they lie, and its `bytes`. Those that `stay` are never freed."""

    def __init__(self, plan: Plan, glossary: Glossary, narrow: frozenset[ir.Ref]) -> None:
        self._plan, self._glossary = plan, glossary
        self._sizes, self._bytes_of = Sizes(plan.facts, glossary, narrow), dict[ir.Ref, int]()
        self._owner: dict[ir.Ref, ir.Ref] = {}
        self._values: dict[ir.Ref, set[ir.Ref]] = {}
        self.bytes, self.stay = 0, set[ir.Ref]()

    def make(self, ref: ir.Ref, source: ir.Ref | None = None, nbytes: int | None = None) -> None:
        """Note a value, in the memory of `source` if there is one. That of the user's arguments is not counted."""
        if source is not None:
            owner = self._owner.get(source)
            if owner is not None:
                self._owner[ref] = owner
                self._values[owner].add(ref)
            return
        self._owner[ref], self._values[ref] = ref, {ref}
        self._bytes_of[ref] = self._sizes.bytes_of(ref) if nbytes is None else nbytes
        self.bytes += self._bytes_of[ref]

    def free(self, ref: ir.Ref) -> None:
        if ref in self.stay:
            return
        owner = self._owner.pop(ref, None)
        if owner is not None:
            self._values[owner].remove(ref)
            self.bytes -= 0 if self._values[owner] else self._bytes_of[owner]

    def parts(self, kernel: int) -> int:
        """Bytes of the parts of totals that a kernel has while it runs, one for each chunk of rows."""
        made, rows = self._plan.kernels[kernel], self._glossary.statistics.rows
        if made.target != "cpp":
            return 0
        totals = [b for b in made.lowered.kernel.buffers if b.role is Role.total and b.rows is None]
        size = sum(numel(b.shape) * b.dtype.itemsize for b in totals)
        return (_chunks(made, self._plan.program, rows) + 1) * size if size else 0


def _chunks(kernel: KernelPlan, program: ir.Program, rows: Callable[[Space], int]) -> int:
    """The number of chunks into which the rows of a kernel are divided."""
    of, along, asked = kernel.region.rows, kernel.lowered.map, kernel.scheduled.taken.chunks
    if asked is not None:
        return max(1, min(asked, rows(of)))
    if along is None:
        return chunk_count(rows(of), work_of(kernel.lowered.kernel))
    walked = program.types[along]
    assert isinstance(walked, ir.MapType)
    return max(1, min((rows(of) + rows(walked.dom)) // CHUNK_SHARE, MAX_CHUNKS, rows(of)))


def _shared_by(step: tape_ir.Step, plan: Plan) -> ir.Ref | None:
    """The value in whose memory a step makes its own."""
    if isinstance(step, tape_ir.OwnMemory):
        return step.source
    if isinstance(step, tape_ir.CallNode) and shares_memory(plan.program.nodes[step.value]):
        return step.operands[0]
    return None


def _slots(inside: Iterable[tape_ir.Inside], glossary: Glossary) -> int:
    """Bytes of the memory that a native call has for itself, whose slots values share."""
    slots: dict[int, int] = {}
    for one in inside:
        slots[one.slot] = max(slots.get(one.slot, 0), one.nbytes * glossary.statistics.rows(one.space))
    return sum(slots.values())


def _kernels(step: tape_ir.Step) -> Iterator[int]:
    """The kernels that a step runs."""
    match step:
        case tape_ir.RunKernels(members=members):
            yield from (m.kernel for m in members)
        case tape_ir.RunKernel(kernel=kernel) | tape_ir.FirstPart(kernel=kernel) | tape_ir.SecondPart(kernel=kernel):
            yield kernel


def _words(step: tape_ir.Step, plan: Plan) -> str:
    """The kernels or the operator of a step; "" for one that computes nothing."""
    match step:
        case tape_ir.CallNode(value=value, counted=True):
            return operation(plan.program.nodes[value])
        case tape_ir.OnceAGraph():
            return "once a graph"
        case tape_ir.InChunks(space=space):
            inside = filter(None, (_words(one, plan) for one in step.tape.steps))
            return f"in chunks of {space.name}: {', '.join(inside)}"
    return ", ".join(plan.kernels[i].name for i in _kernels(step))
