"""Cost of a kernel of a plan: the bytes and operations of one run, for the sizes of the first call."""

from __future__ import annotations

from graphweave.analysis.cones import map_type
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.plan import KernelPlan
from graphweave.core.kernel_cost import KernelCost
from graphweave.ir.loop.traffic import traffic_of
from graphweave.ir.message.nodes import Program
from graphweave.lower.fused_push import CSRS, NUM_BLOCKS, NUM_GROUPS, NUM_PAIRS
from graphweave.lower.region import Lowered


def kernel_cost(program: Program, kernel: KernelPlan, statistics: Statistics) -> KernelCost:
    """The cost of a kernel of `program` on a graph of this size."""
    sizes, positions = _sizes(program, kernel.lowered, statistics)
    traffic = traffic_of(kernel.lowered.kernel, sizes, positions)
    return KernelCost(kernel.lowered.kernel.name, traffic.compulsory, traffic.gather, traffic.flops)


def _sizes(program: Program, lowered: Lowered, statistics: Statistics) -> tuple[dict[str, int], dict[str, int]]:
    """By name, the kernel's sizes and the number of positions (edges) of each of its CSRs."""
    kernel, rows = lowered.kernel, [statistics.rows(space) for space in lowered.spaces]
    sizes = dict(zip(kernel.sizes[len(kernel.sizes) - len(rows) :], rows, strict=True))
    if lowered.map is None:
        return sizes, {csr.name: sizes[csr.positions] for csr in kernel.csrs if csr.positions is not None}
    along = map_type(program, lowered.map)
    edges = statistics.rows(along.dom)
    if lowered.types is None:
        return sizes, dict.fromkeys((csr.name for csr in kernel.csrs), edges)
    targets, types = statistics.rows(along.cod), statistics.rows(map_type(program, lowered.types).cod)
    pairs = min(edges, targets * types)
    # Blocks of rows, and the pairs that have edges, depend on the graph: one block, and as many pairs as there can be.
    sizes |= {NUM_BLOCKS: 1, NUM_GROUPS: min(pairs, types), NUM_PAIRS: pairs}
    return sizes, dict(zip(CSRS, (targets, sizes[NUM_GROUPS], pairs, edges), strict=True))
