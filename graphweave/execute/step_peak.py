"""The memory that a training step, or an inference, takes at its peak, by the sizes of the first call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from graphweave.analysis.statistics import Statistics
from graphweave.compiler.plan import Plan
from graphweave.compiler.request import Halves
from graphweave.core.types import DType
from graphweave.execute.executable import Executable
from graphweave.execute.step_memory import HeldInput, Sizes, handed_over, memory_of, narrowed_in
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
    notes, once = memory_of(made[0].tape, made[0].plan, glossary, ()), frozenset(made[0].plan.hoisted)
    forward = max(note.during for note in notes)
    kept = sum(_formats(one.plan, statistics) for one in made)
    if halves.split is None:
        return forward + kept
    nodes, outputs = first.facts.program.nodes, first.facts.program.outputs
    results = {r for r in outputs[: halves.split.num_forward] if r is not None and not isinstance(nodes[r], ir.Input)}
    sizes = Sizes(first.facts, glossary, narrowed_in(made[0].tape))
    own = sum(map(sizes.bytes_of, (results | once).difference(first.saved)))
    back = made[1].tape
    tangents = Sizes(made[1].plan.facts, glossary)
    held = [*handed_over(first, made[0].tape, back, glossary)]
    held += [HeldInput(r, tangents.bytes_of(r)) for r in back.inputs[len(first.saved) :]]
    backward = own + max(note.during for note in memory_of(back, made[1].plan, glossary, held))
    return max(forward, backward) + kept


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
