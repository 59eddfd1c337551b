"""pull(reshape(x), m) -> reshape(pull(x, m)), and the same for push.

Legal since a reshape only renames the elements of a row, and pulls and pushes move whole rows. It always pays: after
the pull or push the reshape is an index computation inside a kernel, before it a second tensor of the same data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from graphweave.core.lines import Location
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.passes.factors import below_reshapes
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class SinkReshape:
    name: str = "sink-reshape"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with no pull or push of a reshape; the same object where it has none."""
        if not any(_moves_reshape(program.nodes, node) for node in program.nodes):
            return unchanged(program)
        build = Builder()
        where: dict[ir.Ref, ir.Ref] = {}
        for ref, node in enumerate(program.nodes):
            moved = with_operands(node, where.__getitem__)
            where[ref] = _sunk(build, moved, program.types[ref], program.locs[ref])
        outputs = [None if r is None else where[r] for r in program.outputs]
        return Rewritten(build.program(outputs, program.spaces), where)


def _sunk(build: Builder, node: ir.Node, t: ir.ValueType, loc: Location) -> ir.Ref:
    if not _moves_reshape(build.nodes, node):
        return build.add(node, loc)
    assert isinstance(node, ir.Pull | ir.Push) and isinstance(t, ir.Type)
    moved = build.add(replace(node, x=below_reshapes(build, node.x)), loc)
    return moved if build.types[moved] == t else build.add(ir.Reshape(moved, t.shape), loc)


def _moves_reshape(nodes: Sequence[ir.Node], node: ir.Node) -> bool:
    return isinstance(node, ir.Pull | ir.Push) and isinstance(nodes[node.x], ir.Reshape)
