"""A compiled program on a graph, as operations of a JAX trace: tables of kernels, and XLA's own between them.

Everything is decided while JAX traces: formats of the graph are built, what depends on the graph alone is computed, and
each run of kernels without an operation of XLA's between them becomes one foreign call. Between calls, values are
JAX's arrays; within one, they lie in a buffer that XLA allocates, the last result of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import torch
from torch import Tensor

from graphweave.core.types import UNIT, Fold, Space
from graphweave.execute.cpp_calls import NativeCalls, Rest, Shape, bytes_of, native_calls
from graphweave.execute.cpp_stretch import MAX_BYTES
from graphweave.execute.demands import Demands
from graphweave.ir.message.nodes import Input, MapOf, Program, Ref, ToUnit
from graphweave.jax.calls import evaluate
from graphweave.jax.compiled import CompiledProgram
from graphweave.jax.foreign import run_kernels
from graphweave.jax.native import KernelTable
from graphweave.lower.schedule import Region
from graphweave.runtime.drive import Place

_ALIGNMENT = 64

_FOLDS = {Fold.sum.value: jnp.add, Fold.mul.value: jnp.multiply, Fold.max.value: jnp.maximum,
          Fold.min.value: jnp.minimum}  # fmt: skip


class GraphRun:
    """`run(arrays)` gives the outputs of a program on a graph, of arrays of JAX by the names of inputs."""

    def __init__(self, code: CompiledProgram, rows: Mapping[Space, int], fixed: Mapping[str, Tensor]) -> None:
        """`fixed`: tensors for the inputs that are no arrays of JAX's, such as the index tensors of the graph."""
        self._code, self._rows = code, {UNIT: 1, **rows}
        self._program: Program = code.plan.program
        self._fixed: dict[Ref, Tensor] = {
            r: fixed[n.name] for r, n in enumerate(self._program.nodes) if isinstance(n, Input) and n.name in fixed
        }
        self._hoist()
        self._demands = Demands(code.plan, code.kernels)
        self._bound: dict[int, NativeCalls | None] = {}
        self._tables: dict[tuple[int, ...], tuple[Any, ...]] = {}

    def _hoist(self) -> None:
        """Compute what depends on the graph alone. If it depends on integers of the user that JAX traces, XLA computes
        it in each call."""
        if self._code.prelude is None or not self._fixed.keys() >= set(self._code.plan.prelude_inputs):
            return
        given = [self._fixed[r] for r in self._code.plan.prelude_inputs]
        with torch.no_grad():
            made = self._code.prelude(list(given))
        self._fixed.update(zip(self._code.plan.hoisted, (t.contiguous() for t in made), strict=False))

    def __call__(self, arrays: Mapping[str, Any], outputs: Sequence[Ref | None] | None = None) -> list[Any]:
        """With `outputs`, only these of the program's outputs."""
        return _Trace(self, arrays).values(self._program.outputs if outputs is None else outputs)

    # ---------------------------------------------------------------- what a trace asks for

    @property
    def code(self) -> CompiledProgram:
        return self._code

    @property
    def program(self) -> Program:
        return self._program

    @property
    def rows(self) -> Mapping[Space, int]:
        return self._rows

    @property
    def fixed(self) -> Mapping[Ref, Tensor]:
        return self._fixed

    def native(self, i: int) -> NativeCalls | None:
        """The kernel of step i with its formats; None where it needs Python."""
        if i not in self._bound:
            step = self._code.kernels[i]
            indices = [self._fixed[self._index(m)] for m in step.maps]
            self._bound[i] = native_calls(step, tuple(self._rows[s] for s in step.spaces), indices)
        return self._bound[i]

    def _index(self, m: Ref) -> Ref:
        node = self._program.nodes[m]
        assert isinstance(node, MapOf)
        return node.index

    def kept(self, members: Sequence[int]) -> list[Ref]:
        """What these steps write and others read, or the program gives."""
        needed = self._demands.of(self._program.outputs).union(self._demands.read_elsewhere(members))
        return [r for i in members for r in self._code.kernels[i].writes if r in needed]

    def table(self, members: tuple[int, ...]) -> tuple[Any, ...]:
        """The table of these steps, the values that it reads and writes, its results, and what remains to be done with
        them."""
        if members not in self._tables:
            self._tables[members] = self._build(members)
        return self._tables[members]

    def _build(self, members: tuple[int, ...]) -> tuple[Any, ...]:
        steps = [self._code.kernels[i] for i in members]
        native = [n for i in members if (n := self.native(i)) is not None]
        written = {r for s in steps for r in s.writes}
        reads = [r for r in dict.fromkeys(r for s in steps for r in s.reads) if r not in written]
        arguments = [r for r in reads if r not in self._fixed]
        places: dict[Any, Place] = {r: (-1, self._fixed[r].data_ptr()) for r in reads if r in self._fixed}
        places.update((r, (i, 0)) for i, r in enumerate(arguments))
        shapes: dict[Any, Shape] = {}
        rests: dict[Ref, Rest] = {}
        for step, n in zip(steps, native, strict=True):
            shapes.update(zip(step.writes, n.outputs, strict=True))
            shapes.update(n.scratch)
            rests.update(n.rests)
        results: list[Any] = [*self.kept(members), *(part for rest in rests.values() for part in rest.parts)]
        places.update((r, (len(arguments) + i, 0)) for i, r in enumerate(results))
        inside, nbytes = len(arguments) + len(results), 0
        for r, shape in shapes.items():
            if r not in places:
                places[r] = inside, nbytes
                nbytes += -(-bytes_of(shape) // _ALIGNMENT) * _ALIGNMENT
        table = [
            [c.kernel.address, len(c.pointers), len(c.sizes), c.chunks.data_ptr(), c.chunks.numel() - 1,
             *(number for p in c.pointers for number in (p if isinstance(p, tuple) else places[p])), *c.sizes]
            for n in native for c in n.calls
        ]  # fmt: skip
        names = [c.name for n in native for c in n.calls]
        alive = native, [self._fixed[r] for r in reads if r in self._fixed]
        made = [(shapes[r][0], str(shapes[r][1]).removeprefix("torch.")) for r in results]
        said = (*made, ((nbytes,), "uint8"))
        sizes = [*(bytes_of(shapes[r]) for r in results), nbytes]
        made_of = KernelTable(table, names, len(arguments), sizes, alive, self._code.threads)
        return made_of, arguments, results, said, rests


class _Trace:
    """One use of a program in a trace of JAX's."""

    def __init__(self, run: GraphRun, arrays: Mapping[str, Any]) -> None:
        self._run, self._program = run, run.program
        self._made: dict[Ref, Any] = {
            r: arrays[n.name] for r, n in enumerate(self._program.nodes) if isinstance(n, Input) and n.name in arrays
        }
        self._waiting: list[int] = []
        self._kernels = run.code.kernels

    def values(self, refs: Sequence[Ref | None]) -> list[Any]:
        for i, step in enumerate(self._run.code.plan.schedule.steps):
            if i in self._kernels and self._run.native(i) is not None:
                self._wait(i)
            elif isinstance(step, Region):
                for ref in step.members:
                    self._value(ref)
        self._flush()
        return [None if r is None else self._value(r) for r in refs]

    def _wait(self, i: int) -> None:
        """Add kernel i to those that wait, after all that it reads from outside of them has been computed."""
        for r in self._kernels[i].reads:
            if r not in self._written() and r not in self._run.fixed:
                self._value(r)
        self._waiting.append(i)

    def _written(self) -> set[Ref]:
        return {r for i in self._waiting for r in self._kernels[i].writes}

    def _flush(self) -> None:
        """Run the kernels that wait: together, unless their values are large, or one of them leaves something to do."""
        waiting, self._waiting = self._waiting, []
        native = {i: n for i in waiting if (n := self._run.native(i)) is not None}
        together = sum(n.nbytes for n in native.values()) <= MAX_BYTES
        group: list[int] = []
        for i in waiting:
            group.append(i)
            if not together or native[i].rests:
                self._call(tuple(group))
                group = []
        if group:
            self._call(tuple(group))

    def _call(self, members: tuple[int, ...]) -> None:
        table, arguments, results, said, rests = self._run.table(members)
        made = run_kernels(table, [self._made[r] for r in arguments], said)
        found = dict(zip(results, made, strict=False))  # the last result is the buffer inside
        for r in results:
            if isinstance(r, int):
                self._made[r] = self._finished(found, r, rests.get(r))

    def _finished(self, found: Mapping[Any, Any], ref: Ref, rest: Rest | None) -> Any:
        x = found[ref]
        if rest is None:
            return x
        for part in rest.parts:
            x = _FOLDS[rest.fold](x, found[part])
        if rest.filled is not None:
            x = jnp.full_like(x, rest.filled)
        return x if rest.dtype is None else x.astype(str(rest.dtype).removeprefix("torch."))

    def _value(self, ref: Ref) -> Any:
        if ref in self._made:
            return self._made[ref]
        if ref in self._written():
            self._flush()
            return self._made[ref]
        if ref in self._run.fixed:
            value = jnp.asarray(self._run.fixed[ref].numpy())
        elif isinstance(self._program.nodes[ref], ToUnit):
            return None
        else:
            value = evaluate(self._program, ref, self._value, self._run.rows)
        self._made[ref] = value
        return value
