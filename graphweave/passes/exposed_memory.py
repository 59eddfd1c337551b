"""Values of a program that lie in memory which a user may overwrite between the forward and the backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import may_view
from graphweave.ir.message.builder import operands, spaces_in
from graphweave.ir.message.nodes import Program, Ref


@dataclass(frozen=True, slots=True)
class Exposed:
    """Tensors that a user may overwrite, as positions of inputs and of the forward's results.

    `written` are the inputs to which the graph itself writes; they are not among `inputs`.
    """

    inputs: frozenset[int]
    written: frozenset[int]
    outputs: frozenset[int]


def exposed_values(found: Exposed, program: Program, inputs: Sequence[Ref]) -> frozenset[Ref]:
    """The values of `program`, whose inputs are `inputs`, that lie in exposed memory.

    Features of edges are left out unless the graph writes to them, since compiled programs must not copy them. If a
    user has overwritten them, PyTorch refuses the backward.
    """
    edges = Facts(program).flow.edge_spaces
    given = {r for i in found.inputs if edges.isdisjoint(spaces_in(program.types[r := inputs[i]]))}
    given |= {inputs[i] for i in found.written}
    results = (end for i in found.outputs if (end := program.outputs[i]) is not None)
    roots = {_base(program, r) for r in (*given, *results)}
    return frozenset(r for r in range(len(program.nodes)) if _base(program, r) in roots)


def _base(program: Program, ref: Ref) -> Ref:
    """The value of which `ref` is a view; `ref` itself if it is no view."""
    node = program.nodes[ref]
    while may_view(node) and (viewed := operands(node)):  # a conjugate of a Python number is a view of nothing
        ref = viewed[0]
        node = program.nodes[ref]
    return ref
