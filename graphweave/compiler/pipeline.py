"""The rewrites that every program goes through, in order, verified between passes."""

from __future__ import annotations

from graphweave.ir.message.nodes import Program, Ref
from graphweave.ir.message.verify import verify
from graphweave.passes.sink_reshape import Rewritten, SinkReshape

PIPELINE = (SinkReshape(),)


def optimise(program: Program) -> Rewritten:
    """`program` after every pass, and where each of its nodes went."""
    verify(program)
    where: dict[Ref, Ref] = {r: r for r in range(len(program.nodes))}
    for rewrite in PIPELINE:
        step = rewrite(program)
        verify(step.program)
        where = {old: step.where[new] for old, new in where.items()}
        program = step.program
    return Rewritten(program, where)
