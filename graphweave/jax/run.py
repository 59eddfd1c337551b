"""A compiled program on a graph, as operations of a JAX trace: segments of kernels, and XLA's own between them.

Everything is decided before JAX runs anything: what depends on the graph alone is computed, a tape says which kernels
run in one foreign call, and their segment is bound to the graph. A trace follows the tape. Between calls, values are
JAX's arrays; within one, they lie in a buffer that XLA allocates, the last result of the call. Edges that are arguments
are operands of the calls: the kernels are bound to them, and what depends on them alone is computed, at each call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import jax.numpy as jnp
import torch
from jax import Array
from torch import Tensor

from graphweave.core.errors import IndexRangeError
from graphweave.core.types import UNIT, Space
from graphweave.execute.cpp_segment import made_segment
from graphweave.execute.cpp_step import CppStep
from graphweave.execute.cpp_stretch import MAX_BYTES
from graphweave.execute.range_errors import of_map
from graphweave.execute.runner_traits import RunnerTraits
from graphweave.execute.tape_of import TapeMaker, finished
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.ir.tape import nodes as tape
from graphweave.jax.calls import evaluate
from graphweave.jax.compiled import CompiledProgram
from graphweave.jax.foreign import Shapes, run_kernels
from graphweave.jax.native import CallTable, KernelTable
from graphweave.jax.served import IndexShape, ServedTable
from graphweave.runtime.segments import OnOneGraph, Segment


@dataclass(frozen=True, eq=False)
class _ForeignCall:
    """One step of kernels: the table, the values that it reads, and its results, some of which are then converted to
    another dtype."""

    table: CallTable
    arguments: Sequence[ir.Ref]
    results: Shapes
    converted: Mapping[ir.Ref, str]


class GraphRun:
    """`run(arrays)` gives the outputs of a program on a graph, of arrays of JAX by the names of inputs."""

    def __init__(self, code: CompiledProgram, rows: Mapping[Space, int], fixed: Mapping[str, Tensor]) -> None:
        """`fixed`: tensors for the inputs that are no arrays of JAX's, such as the index tensors of the graph."""
        self.code, self._rows = code, {UNIT: 1, **rows}
        for space, of in code.unions:
            self._rows[space] = sum(self._rows[s] for s in of)
        self.program: ir.Program = code.plan.program
        self.fixed: dict[ir.Ref, Tensor] = {
            r: fixed[n.name] for r, n in enumerate(self.program.nodes) if isinstance(n, ir.Input) and n.name in fixed
        }
        self._prelude = self._hoist()
        self._segments: dict[tape.RunKernels, Segment] = {}
        self._kernels = code.kernels
        self._tapes: dict[tuple[ir.Ref | None, ...], tape.Tape] = {}
        self._calls: dict[tape.RunKernels, _ForeignCall] = {}

    def _hoist(self) -> GraphRun | None:
        """Compute what depends on the graph alone. If it depends on integers that JAX traces, the result computes it in
        each call."""
        if self.code.prelude is None:
            return None
        if not self.fixed.keys() >= set(self.code.plan.prelude_inputs):
            assert self.code.once is not None
            return GraphRun(self.code.once, self._rows, {self._input_name(r): t for r, t in self.fixed.items()})
        given = [self.fixed[r] for r in self.code.plan.prelude_inputs]
        with torch.no_grad():
            made = self.code.prelude(list(given))
        self.fixed.update(zip(self.code.plan.hoisted, (t.contiguous() for t in made), strict=False))
        return None

    def _input_name(self, ref: ir.Ref) -> str:
        node = self.program.nodes[ref]
        assert isinstance(node, ir.Input)
        return node.name

    def __call__(self, arrays: Mapping[str, Array], outputs: Sequence[ir.Ref | None] | None = None) -> list[Array]:
        """With `outputs`, only these of the program's outputs."""
        wanted = tuple(self.program.outputs if outputs is None else outputs)
        if wanted not in self._tapes:
            self._tapes[wanted] = self._tape(wanted)
        nodes = self.program.nodes
        made = {r: arrays[n.name] for r, n in enumerate(nodes) if isinstance(n, ir.Input) and n.name in arrays}
        if self._prelude is not None:
            made.update(zip(self.code.plan.hoisted, self._prelude(arrays), strict=False))
        for step in self._tapes[wanted].steps:
            match step:
                case tape.CallNode(ref):
                    made[ref] = evaluate(self.program, ref, partial(self._value, made), self._rows)
                case tape.RunKernels():
                    made.update(self._run_kernels(step, made))
                case tape.Free(refs):
                    for r in refs:
                        made.pop(r, None)
        return [None if r is None else self._value(made, r) for r in wanted]

    def _value(self, made: dict[ir.Ref, Array], ref: ir.Ref) -> Array | None:
        if ref not in made and ref in self.fixed:
            made[ref] = jnp.asarray(self.fixed[ref].numpy())
        return None if isinstance(self.program.nodes[ref], ir.ToUnit) else made[ref]

    # ---------------------------------------------------------------- the tape

    def _tape(self, outputs: Sequence[ir.Ref | None]) -> tape.Tape:
        made = () if self._prelude is None else self.code.plan.hoisted
        traits = RunnerTraits(
            self._kernels.__contains__, lambda ref: (), self._divide, frozenset((*self.fixed, *made)), counts=False,
            transposes=False, in_order=False,
        )  # fmt: skip
        return finished(TapeMaker(self.code.plan, self._kernels, traits, outputs=outputs).make())

    def _divide(self, members: Sequence[int]) -> Iterator[Sequence[int]]:
        """Kernels run together, unless their values are large, or one of them leaves something to convert."""
        together = sum(_bytes(one) for i in members for one in self._shapes(self._kernels[i])) <= MAX_BYTES
        group: list[int] = []
        for i in members:
            group.append(i)
            if not together or self._kernels[i].converted:
                yield group
                group = []
        yield group

    # ---------------------------------------------------------------- foreign calls

    def _run_kernels(self, step: tape.RunKernels, made: dict[ir.Ref, Array]) -> Iterator[tuple[ir.Ref, Array]]:
        if step not in self._calls:
            self._calls[step] = self._foreign_call(step, made)
        call = self._calls[step]
        results = run_kernels(call.table, [self._value(made, r) for r in call.arguments], call.results)
        for r, x in zip(step.writes, results, strict=False):  # the last result is the memory inside
            yield r, x.astype(call.converted[r]) if r in call.converted else x

    def _foreign_call(self, step: tape.RunKernels, made: dict[ir.Ref, Array]) -> _ForeignCall:
        kernels = [self._kernels[m.kernel] for m in step.members]
        shapes = {r: one for kernel in kernels for r, one in zip(kernel.writes, self._shapes(kernel), strict=True)}
        values = [*(self.fixed.get(r) for r in step.reads), *(None for _ in step.writes)]
        names, sizes = [kernel.name for kernel in kernels], [_bytes(shapes[r]) for r in step.writes]
        results = tuple((shapes[r][0], _name(shapes[r][1])) for r in step.writes)
        converted = {k.writes[i]: _name(dtype) for k in kernels for i, dtype in k.converted.items()}
        arguments = [r for r in step.reads if r not in self.fixed]
        indices = list(dict.fromkeys(r for r in step.indices if r not in self.fixed))
        if indices:
            given = [_index_shape(made[r]) for r in indices]
            bind = partial(self._bind, step, kernels, indices)
            served = ServedTable(bind, names, given, values, sizes, self.code.threads)
            return _ForeignCall(served, [*indices, *arguments], results, converted)
        graph = self._bind(step, kernels, (), ())
        table = KernelTable(graph, names, values, sizes, self.code.threads)
        return _ForeignCall(table, arguments, (*results, ((graph.nbytes,), "uint8")), converted)

    def _bind(
        self, step: tape.RunKernels, kernels: Sequence[CppStep], refs: Sequence[ir.Ref], tensors: Sequence[Tensor]
    ) -> OnOneGraph:
        """The kernels of a step on the graph with these tensors for the indices `refs`."""
        known = {**self.fixed, **dict(zip(refs, tensors, strict=True))}
        index = dict(zip(step.maps, (known[r] for r in step.indices), strict=True))
        segment = self._segments.get(step) or self._segment(step, kernels, index)
        try:
            return segment.on_graph([self._rows[s] for s in step.rows], list(index.values()))
        except IndexRangeError as error:
            raise of_map(error, self.program, index) from None

    def _segment(self, step: tape.RunKernels, kernels: Sequence[CppStep], index: Mapping[ir.Ref, Tensor]) -> Segment:
        given = {}
        for i, kernel in enumerate(kernels):
            rows = tuple(self._rows[s] for s in kernel.spaces)
            if (there := kernel.given_on(rows, [index[m] for m in kernel.maps])) is not None:
                given[i] = there
        segment = made_segment(self.program, step, kernels, given)
        assert segment is not None
        if not given:  # and so not of this graph alone
            self._segments[step] = segment
        return segment

    def _shapes(self, kernel: CppStep) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return kernel.shapes(tuple(self._rows[s] for s in kernel.spaces))


def _index_shape(x: Array) -> IndexShape:
    return x.shape[0], getattr(torch, x.dtype.name)


def _bytes(shape: tuple[tuple[int, ...], torch.dtype]) -> int:
    return numel(shape[0]) * shape[1].itemsize


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
