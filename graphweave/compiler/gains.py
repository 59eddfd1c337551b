"""Whether a plan is worth having: what its kernels do that PyTorch's own calls would not."""

from __future__ import annotations

from graphweave.compiler.plan import Plan
from graphweave.ir.message import nodes as ir

_COMPUTES = ir.Pointwise | ir.Cast | ir.Reduce | ir.Random | ir.MatMul | ir.AddMatMul | ir.Gram | ir.Pull | ir.Push


class NothingGained(Exception):
    """No half of a request gains by being compiled."""


def gains(plan: Plan) -> bool:
    """Whether something is computed once a graph, or a kernel walks edges or does several operations at once."""
    if plan.prelude is not None:
        return True
    nodes = plan.program.nodes
    return any(
        k.region.map is not None or sum(isinstance(nodes[r], _COMPUTES) for r in k.region.members) > 1
        for k in plan.kernels.values()
    )
