"""Whether a plan is worth having: what its kernels do that PyTorch's own calls would not."""

from __future__ import annotations

from graphweave.compiler.plan import Plan
from graphweave.execute.range_errors import has_index
from graphweave.ir.message import nodes as ir
from graphweave.lower.schedule import Region

_COMPUTES = ir.Pointwise | ir.Cast | ir.Reduce | ir.Random | ir.MatMul | ir.AddMatMul | ir.Gram | ir.Pull | ir.Push


class NothingGained(Exception):
    """No half of a request gains by being compiled."""


def gains(plan: Plan) -> bool:
    """Whether something is computed once a graph, a kernel walks edges or does several operations at once, or a call of
    PyTorch has an index, of which errors then tell more."""
    program = plan.program
    called = {step.ref for step in plan.schedule.steps if not isinstance(step, Region)}
    walks = any(k.region.map is not None for k in plan.kernels.values())
    if plan.prelude is not None or walks or any(has_index(program, ref) for ref in called):
        return True
    computed = sum(isinstance(n, _COMPUTES) and r not in called for r, n in enumerate(program.nodes))
    return bool(plan.kernels) and computed > len(plan.kernels)
