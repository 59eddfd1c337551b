"""Which forward values the backward computes again instead of reading them: a policy by ComputationCost / MemoryCost.

ComputationCost counts scalar operations to compute a value again from its operands, MemoryCost the elements that saving
it would keep (Zhang et al., "Understanding GNN Computational Graph", section 6). The quotient for each kind of node:

    layout, structure, views       0
    pull, pointwise, cast, random, ...   1 (a reduction over features: elements read / elements made)
    push                           rows pushed / rows made, the mean degree
    matrix product                 its inner size; on edges it is computed again nevertheless, tile by tile
    ATen call                      unknown, and a random one cannot be repeated
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import is_structure, shares_memory
from graphweave.core.choices import Recompute
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel

"""Which values the backward computes again.

`auto`: values on edge spaces, matrix products there included, so that nothing of edges x features is saved but what the
forward stores for several walks of its own (`analysis/stored_rows.py`); random masks; and rows on nodes that are wider
than all they are computed from. Other values on nodes are saved, also pushes (a softmax's maximum and sum, the maximum
of an aggregation). `never`: none, as in eager mode: the first values that the backward reads are saved, whatever their
size. `sums`: as `auto`, and sums that only the backward needs are taken there, in a walk of their own. `always`: all,
also on nodes, and pushes at the cost of their mean degree; only inputs, matrix products on nodes and ATen calls are
saved.
"""

POLICIES: tuple[str, ...] = get_args(Recompute)

_ROW_WISE = ir.Pointwise | ir.Cast | ir.Reduce | ir.Pad | ir.Concat | ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice

_MAX_REPEATED_UNIT = 4096
"""Shared data of at most this many elements is computed again rather than saved."""


def recomputed(policy: Recompute, facts: Facts, ref: ir.Ref) -> bool:
    """Whether the backward computes the forward's value `ref` again."""
    program = facts.program
    node, t = program.nodes[ref], program.types[ref]
    if is_structure(node) or shares_memory(node):
        return True
    if policy == "never" or not isinstance(t, ir.Type):
        return False
    if isinstance(node, ir.Push):
        return policy == "always" and facts.cones.is_push(ref)
    if isinstance(node, ir.Random) or _drawn(program, ref):
        return True
    if isinstance(node, ir.MatMul):
        return ref in facts.tiled  # more than O(1) work, but its rows are the edges' and exist in tiles only
    if not isinstance(node, ir.Pointwise | ir.Cast | ir.Reduce | ir.Pad | ir.Concat | ir.Pull):
        return False
    if t.space == UNIT:
        return numel(t.shape) <= _MAX_REPEATED_UNIT
    return (
        policy == "always" or t.space in facts.flow.edge_spaces or isinstance(node, ir.Pull) or facts.cones.widens(ref)
    )


def wide_rows(facts: Facts, forward: Iterable[ir.Ref]) -> frozenset[ir.Ref]:
    """The rows of `forward` that have more bytes than all the rows from which products with shared matrices and
    row-wise work compute them. A backward in chunks of rows computes them again (`lower/row_chains.py`)."""
    program, found = facts.program, set[ir.Ref]()
    made_of: dict[ir.Ref, frozenset[ir.Ref]] = {}  # for each value the rows that would be kept in its place
    for ref in sorted(forward):
        node, t = program.nodes[ref], program.types[ref]
        product = isinstance(node, ir.MatMul | ir.AddMatMul) and node.map is None
        if not (product or isinstance(node, _ROW_WISE)) or not isinstance(t, ir.Type) or t.space == UNIT:
            continue
        rows = [r for r in operands(node) if isinstance(of := program.types[r], ir.Type) and of.space == t.space]
        origins = frozenset[ir.Ref]().union(*(made_of[r] if r in found else (r,) for r in rows))
        made_of[ref] = origins
        if origins and sum(row_bytes(program, r) for r in origins) < row_bytes(program, ref):
            found.add(ref)
    return frozenset(found)


def row_bytes(program: ir.Program, ref: ir.Ref) -> int:
    """Bytes of a row. Shared data counts as 0, as it has only one row."""
    t = program.types[ref]
    return numel(t.shape) * t.dtype.itemsize if isinstance(t, ir.Type) and t.space != UNIT else 0


def repeatable(facts: Facts, ref: ir.Ref) -> bool:
    """Whether a kernel computes rows of the node value `ref` from its operands at about the cost of reading them.

    Elementary functions and reductions cost more than reading their results.
    """
    node = facts.program.nodes[ref]
    if not isinstance(node, ir.Pointwise | ir.Cast | ir.Pad | ir.Concat) or not facts.cones.is_light(ref):
        return False
    return not isinstance(node, ir.Pointwise) or not node.op.facts.dear


def _drawn(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether `ref` is pointwise work on random and constant numbers alone: a mask."""
    node = program.nodes[ref]
    if isinstance(node, ir.Const | ir.Random):
        return True
    return isinstance(node, ir.Pointwise | ir.Cast) and all(_drawn(program, r) for r in operands(node))
