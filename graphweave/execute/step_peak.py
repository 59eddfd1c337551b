"""The memory that a training step, or an inference, takes at its peak, by the sizes of the first call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphweave.analysis.statistics import Statistics
from graphweave.compiler.glossary import Glossary
from graphweave.compiler.plan import Plan
from graphweave.compiler.request import Halves
from graphweave.core.types import DType
from graphweave.execute.executable import Executable
from graphweave.execute.step_memory import memory_of
from graphweave.ir.message import nodes as ir
from graphweave.lower.parameters import Column, Flat, Perm

_INDEX = DType.i32.itemsize
"""Bytes of a number of a format: indices have 32 bits, but on graphs of more than two billion edges."""


def step_peak(halves: Halves, made: Sequence[Executable], statistics: Statistics) -> int:
    """Bytes of the tensors of one step, besides its arguments and parameters, at its peak, and of the graph's formats.

    `made` are the executables of the halves, and `statistics` the row counts. A step holds what the forward saves, its
    results with a gradient for each, gradients of arguments, and what either half makes on its way. Values whose size
    data decides are taken to be as large as `statistics` says.
    """
    glossary, first = replace(halves.glossary, statistics=statistics), halves.parts[0]
    forward = max(note.during for note in memory_of(made[0].tape, made[0].plan, glossary, ()))
    kept = sum(_formats(one.plan, statistics) for one in made)
    if halves.split is None:
        return forward + kept
    nodes, outputs = first.facts.program.nodes, first.facts.program.outputs
    saved = [i for i, r in enumerate(first.saved) if not isinstance(nodes[r], ir.Input)]
    results = {r for r in outputs[: halves.split.num_forward] if r is not None and not isinstance(nodes[r], ir.Input)}
    own = sum(_bytes(first.facts.program, r, glossary) for r in results.difference(first.saved))
    back = made[1].tape
    tangents = range(len(first.saved), len(back.inputs))
    held = [back.inputs[i] for i in (*saved, *tangents)]
    backward = own + max(note.during for note in memory_of(back, made[1].plan, glossary, held))
    return max(forward, backward) + kept


def _bytes(program: ir.Program, ref: ir.Ref, glossary: Glossary) -> int:
    t = program.types[ref]
    return glossary.bytes_of(t) if isinstance(t, ir.Type) else 0


def _formats(plan: Plan, statistics: Statistics) -> int:
    """Bytes of what kernels read of the graph: a number for each edge and column, and where each row's edges begin."""
    rows = statistics.rows
    total = 0
    for binding in dict.fromkeys(_bindings(plan)):
        along = plan.program.types[binding.map]
        assert isinstance(along, ir.MapType)
        total += _INDEX * rows(along.dom)
    for m in {b.map for b in _bindings(plan) if not isinstance(b, Flat)}:
        along = plan.program.types[m]
        assert isinstance(along, ir.MapType)
        total += _INDEX * rows(along.cod)
    return total


def _bindings(plan: Plan) -> Iterator[Column | Perm | Flat]:
    for kernel in plan.kernels.values():
        for binding in kernel.lowered.bindings:
            if isinstance(binding, Column | Perm | Flat):
                yield binding
