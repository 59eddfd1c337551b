"""A compiled program on a graph, as operations of a JAX trace: tables of kernels, and XLA's own between them.

Everything is decided before JAX runs anything: formats of the graph are built, what depends on the graph alone is
computed, and a tape says which kernels run in one foreign call. A trace follows the tape. Between calls, values are
JAX's arrays; within one, they lie in a buffer that XLA allocates, the last result of the call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import torch
from torch import Tensor

from graphweave.core.types import UNIT, Fold, Space
from graphweave.execute.cpp_calls import NativeCalls, Rest, Shape, bytes_of, native_calls
from graphweave.execute.cpp_stretch import MAX_BYTES
from graphweave.execute.tape_of import RunnerTraits, TapeMaker, finished
from graphweave.ir.message.nodes import Input, MapOf, Program, Ref, ToUnit
from graphweave.ir.tape.nodes import CallNode, Free, RunKernels, Tape
from graphweave.jax.calls import evaluate
from graphweave.jax.compiled import CompiledProgram
from graphweave.jax.foreign import Shapes, run_kernels
from graphweave.jax.native import KernelTable
from graphweave.runtime.drive import Place

_ALIGNMENT = 64

_FOLDS = {Fold.sum.value: jnp.add, Fold.mul.value: jnp.multiply, Fold.max.value: jnp.maximum,
          Fold.min.value: jnp.minimum}  # fmt: skip


@dataclass(frozen=True, eq=False)
class _ForeignCall:
    """One step of kernels: the table, the values that it reads and writes, its results, and what remains to be done
    with them."""

    table: KernelTable
    arguments: Sequence[Ref]
    writes: Sequence[Any]  # values of the program, and the names of parts of totals
    results: Shapes
    rests: Mapping[Ref, Rest]


class GraphRun:
    """`run(arrays)` gives the outputs of a program on a graph, of arrays of JAX by the names of inputs."""

    def __init__(self, code: CompiledProgram, rows: Mapping[Space, int], fixed: Mapping[str, Tensor]) -> None:
        """`fixed`: tensors for the inputs that are no arrays of JAX's, such as the index tensors of the graph."""
        self.code, self._rows = code, {UNIT: 1, **rows}
        self.program: Program = code.plan.program
        self.fixed: dict[Ref, Tensor] = {
            r: fixed[n.name] for r, n in enumerate(self.program.nodes) if isinstance(n, Input) and n.name in fixed
        }
        self._hoist()
        found = {i: self._native_calls(i) for i in code.kernels}
        self._native = {i: calls for i, calls in found.items() if calls is not None}
        self._tapes: dict[tuple[Ref | None, ...], Tape] = {}
        self._calls: dict[RunKernels, _ForeignCall] = {}

    def _hoist(self) -> None:
        """Compute what depends on the graph alone. If it depends on integers of the user that JAX traces, XLA computes
        it in each call."""
        if self.code.prelude is None or not self.fixed.keys() >= set(self.code.plan.prelude_inputs):
            return
        given = [self.fixed[r] for r in self.code.plan.prelude_inputs]
        with torch.no_grad():
            made = self.code.prelude(list(given))
        self.fixed.update(zip(self.code.plan.hoisted, (t.contiguous() for t in made), strict=False))

    def _native_calls(self, i: int) -> NativeCalls | None:
        """The kernel of step i with its formats; None where it needs Python."""
        step, nodes = self.code.kernels[i], self.program.nodes
        indices = [self.fixed[n.index] for m in step.maps if isinstance(n := nodes[m], MapOf)]
        return native_calls(step, tuple(self._rows[s] for s in step.spaces), indices)

    def __call__(self, arrays: Mapping[str, Any], outputs: Sequence[Ref | None] | None = None) -> list[Any]:
        """With `outputs`, only these of the program's outputs."""
        wanted = tuple(self.program.outputs if outputs is None else outputs)
        if wanted not in self._tapes:
            self._tapes[wanted] = self._tape(wanted)
        nodes = self.program.nodes
        made = {r: arrays[n.name] for r, n in enumerate(nodes) if isinstance(n, Input) and n.name in arrays}
        for step in self._tapes[wanted].steps:
            match step:
                case CallNode(ref):
                    made[ref] = evaluate(self.program, ref, partial(self._value, made), self._rows)
                case RunKernels():
                    made.update(self._run_kernels(step, made))
                case Free(refs):
                    for r in refs:
                        made.pop(r, None)
        return [None if r is None else self._value(made, r) for r in wanted]

    def _value(self, made: dict[Ref, Any], ref: Ref) -> Any:
        if ref not in made and ref in self.fixed:
            made[ref] = jnp.asarray(self.fixed[ref].numpy())
        return None if isinstance(self.program.nodes[ref], ToUnit) else made[ref]

    # ---------------------------------------------------------------- the tape

    def _tape(self, outputs: Sequence[Ref | None]) -> Tape:
        traits = RunnerTraits(
            self._native.__contains__, lambda ref: (), self._divide, frozenset(self.fixed), counts=False,
            transposes=False, in_order=False,
        )  # fmt: skip
        kernels = {i: self.code.kernels[i] for i in self._native}
        return finished(TapeMaker(self.code.plan, kernels, traits, outputs=outputs).make())

    def _divide(self, members: Sequence[int]) -> Iterator[Sequence[int]]:
        """Kernels run together, unless their values are large, or one of them leaves something to do."""
        together = sum(self._native[i].nbytes for i in members) <= MAX_BYTES
        group: list[int] = []
        for i in members:
            group.append(i)
            if not together or self._native[i].rests:
                yield group
                group = []
        yield group

    # ---------------------------------------------------------------- foreign calls

    def _run_kernels(self, step: RunKernels, made: dict[Ref, Any]) -> Iterator[tuple[Ref, Any]]:
        if step not in self._calls:
            self._calls[step] = self._foreign_call(step)
        call = self._calls[step]
        results = run_kernels(call.table, [self._value(made, r) for r in call.arguments], call.results)
        found = dict(zip(call.writes, results, strict=False))  # the last result is the buffer inside
        for r in step.writes:
            yield r, _finished(found, r, call.rests.get(r))

    def _foreign_call(self, step: RunKernels) -> _ForeignCall:
        native = [self._native[m.kernel] for m in step.members]
        fixed = {r: self.fixed[r] for r in step.reads if r in self.fixed}
        arguments = [r for r in step.reads if r not in fixed]
        places: dict[Any, Place] = {r: (-1, t.data_ptr()) for r, t in fixed.items()}
        places.update((r, (i, 0)) for i, r in enumerate(arguments))
        shapes: dict[Any, Shape] = {}
        rests: dict[Ref, Rest] = {}
        for member, n in zip(step.members, native, strict=True):
            shapes.update(zip(member.writes, n.outputs, strict=True))
            shapes.update(n.scratch)
            rests.update(n.rests)
        writes: list[Any] = [*step.writes, *(part for rest in rests.values() for part in rest.parts)]
        places.update((r, (len(arguments) + i, 0)) for i, r in enumerate(writes))
        inside, nbytes = _inside(step, shapes, places)
        places.update((r, (len(arguments) + len(writes), at)) for r, at in inside.items())
        table = [
            [c.kernel.address, len(c.pointers), len(c.sizes), c.chunks.data_ptr(), c.chunks.numel() - 1,
             *(number for p in c.pointers for number in (p if isinstance(p, tuple) else places[p])), *c.sizes]
            for n in native for c in n.calls
        ]  # fmt: skip
        names = [c.name for n in native for c in n.calls]
        sizes = [*(bytes_of(shapes[r]) for r in writes), nbytes]
        made_of = KernelTable(table, names, len(arguments), sizes, (native, fixed), self.code.threads)
        results = (*((shapes[r][0], str(shapes[r][1]).removeprefix("torch.")) for r in writes), ((nbytes,), "uint8"))
        return _ForeignCall(made_of, arguments, writes, results, rests)


def _inside(step: RunKernels, shapes: Mapping[Any, Shape], placed: Mapping[Any, Place]) -> tuple[dict[Any, int], int]:
    """Where values that are not `placed` elsewhere begin in the buffer inside, and its bytes. Values share memory as
    the tape says; scratch memory has its own."""
    slots = {one.value: one.slot for one in step.inside}
    largest: dict[Any, int] = {}
    for r, shape in shapes.items():
        if r not in placed:
            slot = slots.get(r, r)
            largest[slot] = max(bytes_of(shape), largest.get(slot, 0))
    starts: dict[Any, int] = {}
    nbytes = 0
    for slot, size in largest.items():
        starts[slot] = nbytes
        nbytes += -(-size // _ALIGNMENT) * _ALIGNMENT
    return {r: starts[slots.get(r, r)] for r in shapes if r not in placed}, nbytes


def _finished(found: Mapping[Any, Any], ref: Ref, rest: Rest | None) -> Any:
    x = found[ref]
    if rest is None:
        return x
    for part in rest.parts:
        x = _FOLDS[rest.fold](x, found[part])
    if rest.filled is not None:
        x = jnp.full_like(x, rest.filled)
    return x if rest.dtype is None else x.astype(str(rest.dtype).removeprefix("torch."))
