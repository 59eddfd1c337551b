"""Whether a plan is worth having: what its kernels do that PyTorch's own calls would not."""

from __future__ import annotations

from graphweave.compiler.plan import Plan
from graphweave.execute.range_errors import has_index
from graphweave.ir.message import nodes as ir
from graphweave.lower.schedule import Region

_PRODUCTS = ir.MatMul | ir.AddMatMul | ir.Gram
_COMPUTES = ir.Pointwise | ir.Cast | ir.Reduce | ir.Random | ir.Pull | ir.Push | _PRODUCTS


class NothingGained(Exception):
    """No half of a request gains by being compiled."""


def gains(plan: Plan) -> bool:
    """Whether something is computed once a graph, a kernel walks edges, multiplies (which it does only where that beats
    the vendor's library) or does several operations at once, or a call of PyTorch has an index, of which errors then
    tell more."""
    program = plan.program
    nodes = program.nodes
    called = {step.ref for step in plan.schedule.steps if not isinstance(step, Region)}
    regions = [k.region for k in plan.kernels.values()]
    walks = any(region.map is not None for region in regions)
    multiplies = any(isinstance(nodes[r], _PRODUCTS) for region in regions for r in region.members)
    if plan.prelude is not None or walks or multiplies or any(has_index(program, ref) for ref in called):
        return True
    computed = sum(isinstance(n, _COMPUTES) and r not in called for r, n in enumerate(nodes))
    return bool(plan.kernels) and computed > len(plan.kernels)
