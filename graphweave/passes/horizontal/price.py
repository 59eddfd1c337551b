"""Whether merging pays: it saves a kernel call for each relation, and copies rows that do not lie together."""

from __future__ import annotations

from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics, with_unions
from graphweave.analysis.work import BANDWIDTH
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.passes.horizontal.node_graph import NodeGraph
from graphweave.passes.horizontal.packs import Packs
from graphweave.passes.rewritten import Rewritten

_CALL_SECONDS = 8e-6
"""Time of a kernel, or of a call of PyTorch, on next to no rows."""

_ALWAYS_FROM = 8
"""With this many relations merging always pays: a kernel for each of them would take long to compile."""


def pays(graph: NodeGraph, packs: Packs, done: Rewritten, statistics: Statistics) -> bool:
    """Whether merging pays by the row counts of `statistics`; few relations of very many nodes stay apart."""
    moves = [lanes for lanes in packs.lanes if lanes and isinstance(graph.nodes[lanes[0]], ir.Pull | ir.Push)]
    if any(len(lanes) >= _ALWAYS_FROM for lanes in moves):
        return True
    heavy = (ir.Push, ir.MatMul, ir.Gram)
    calls = sum(len(lanes) - 1 for lanes in packs.lanes if lanes and isinstance(graph.nodes[lanes[0]], heavy))
    copied = _copied(done.program, with_unions(statistics, done.unions)) - _copied(graph.program, statistics)
    return copied / BANDWIDTH <= calls * _CALL_SECONDS


def _copied(program: ir.Program, rows: Statistics) -> int:
    """Bytes that a call reads and writes to concatenate rows."""
    only, copied = Facts(program).flow.graph_only, 0
    for ref, (node, t) in enumerate(zip(program.nodes, program.types, strict=True)):
        if isinstance(node, ir.Join) and isinstance(t, ir.Type) and ref not in only:
            shared = isinstance(first := program.types[node.xs[0]], ir.Type) and first.space == UNIT
            copied += 0 if shared else 2 * rows.rows(t.space) * numel(t.shape) * t.dtype.itemsize
    return copied
