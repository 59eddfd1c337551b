"""The rewrites that every program goes through, in order, verified between passes."""

from __future__ import annotations

from graphweave.ir.message.nodes import Program
from graphweave.ir.message.verify import verify
from graphweave.passes.rewritten import Rewritten, unchanged
from graphweave.passes.sink_reshape import SinkReshape

PIPELINE = (SinkReshape(),)


def optimise(program: Program) -> Rewritten:
    """`program` after every pass, and where each of its nodes went."""
    verify(program)
    where = unchanged(program).where
    for rewrite in PIPELINE:
        step = rewrite(program)
        verify(step.program)
        where = {old: step.where[new] for old, new in where.items()}
        program = step.program
    return Rewritten(program, where)
