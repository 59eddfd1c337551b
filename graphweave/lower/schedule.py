"""Decides which nodes run in which kernel.

A region is one kernel: rows of one space, any number of passes over the edges of at most one map, and products of its
rows with matrices that all rows share. Nodes join the region of their operands whenever no value has to travel between
rows inside it then; PyTorch runs all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.analysis.cones import Needs, map_type
from graphweave.analysis.facts import Facts
from graphweave.analysis.statistics import Statistics
from graphweave.analysis.typed import call_operands, pushed_product
from graphweave.core.options import Options
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.ir.message.infer import numel
from graphweave.lower.dependencies import StepNodes
from graphweave.lower.grouping import Group, Groups, group
from graphweave.lower.mark_calls import stored_operands
from graphweave.lower.memory_order import least_memory
from graphweave.lower.overlap import overlapped
from graphweave.lower.row_chains import RowChain, row_chains

TALL = 16_384
"""A product by itself is worth a kernel if it has at least this many rows."""

_WIDE_ELEMENTS = 16
"""A row-wise node by itself is worth a kernel if its rows have at least this many elements."""


_FEW_SHARED = 4
"""So many values of shared data by themselves are worth a kernel: to call it takes as long as these calls of
PyTorch."""


@dataclass(frozen=True, slots=True)
class Region:
    """`members` are computed row by row over `rows`; pushes among them walk the edges of `map`, totals all rows.

    A member on the edges of `map` (an SDDMM) is computed for each edge at the row to which `map` sends the edge.
    Matrix products over edges belong to the cones of members, or are members themselves. `products` are the members
    that multiply rows (`analysis/row_products.py`). `outputs` are the members that are needed outside.
    """

    rows: Space
    map: ir.Ref | None
    members: tuple[ir.Ref, ...]
    outputs: tuple[ir.Ref, ...]
    products: frozenset[ir.Ref] = frozenset()


@dataclass(frozen=True, slots=True)
class TorchCall:
    """One node that PyTorch runs."""

    ref: ir.Ref


@dataclass(frozen=True, slots=True)
class StepOrder:
    """Steps in an order that respects every dependency; `stored` are the nodes that exist as tensors. If the order is
    one `by_memory`, no call comes before a kernel that precedes it. The steps of each of `chains` run for chunks of
    rows."""

    steps: tuple[Region | TorchCall, ...]
    stored: frozenset[ir.Ref]
    by_memory: bool = False
    chains: tuple[RowChain, ...] = ()


def schedule(
    facts: Facts,
    given: Iterable[ir.Ref] = (),
    options: Options | None = None,
    statistics: Statistics | None = None,
    passing: frozenset[ir.Ref] = frozenset(),
) -> StepOrder:
    """Regions and calls that compute a program's outputs; `given` values exist already (hoisted ones), and the inputs
    in `passing` are freed after their last use.

    A product that shares its region with nothing else is a kernel or a call by its row count in `statistics`; without
    statistics it is a kernel.
    """
    program, given, options = facts.program, frozenset(given), options or Options()
    products = facts.row_products if options.row_products else frozenset()
    demanded = demand(facts, given, products, options)
    groups = group(facts, demanded, given, products, options)
    between = _between_kernels(groups)
    wanted = {r for r in program.outputs if r is not None} | groups.crossing
    unread = {r for g in groups.order for r in g.members if r not in wanted and _is_edge_value(facts, r)}
    steps: list[Region | TorchCall] = []
    for g in groups.order:
        fused = _fused_push(program, g.members[0]) if g.rows is None else None
        if fused is not None:
            steps.append(fused)
        elif g.rows is None or (
            not options.standalone and _not_worth_a_kernel(program, g, groups.needs, products, statistics, between)
        ):
            steps.extend(TorchCall(r) for r in sorted(g.members))
        else:
            members = tuple(sorted(r for r in g.members if r not in unread))
            outputs = tuple(r for r in members if r in wanted)
            steps.append(Region(g.rows, g.map, members, outputs, products.intersection(members)))
    made = [(step, _made(step)) for step in steps]
    stored = (demanded | given) - unread
    by_memory = least_memory(program, made, statistics, passing)
    ordered = by_memory or overlapped(program, made)
    if not options.chunks:
        return StepOrder(tuple(ordered), stored, by_memory is not None)
    order, chains = row_chains(program, [_made(step) for step in ordered], stored)
    return StepOrder(tuple(ordered[i] for i in order), stored, by_memory is not None, chains)


def _made(step: Region | TorchCall) -> StepNodes:
    return StepNodes(step.members, step.outputs) if isinstance(step, Region) else StepNodes((step.ref,), (step.ref,))


def _is_edge_value(facts: Facts, ref: ir.Ref) -> bool:
    """Whether a kernel computes `ref` for each edge, and folds it into no row."""
    return facts.cones.walks_along(ref) is not None and not facts.cones.is_push(ref)


def _fused_push(program: ir.Program, ref: ir.Ref) -> Region | None:
    """The region of the fused push `ref`, which holds only the push and its product; None if `ref` is not one."""
    node, pushed = program.nodes[ref], pushed_product(program, ref)
    if pushed is None or not isinstance(node, ir.Push):
        return None
    return Region(map_type(program, node.map).cod, node.map, (pushed.ref, ref), (ref,))


def demand(
    facts: Facts, given: frozenset[ir.Ref], products: frozenset[ir.Ref] = frozenset(), options: Options | None = None
) -> frozenset[ir.Ref]:
    """The nodes that must be evaluated at their own row; all others are recomputed inside their users.

    `products` are the products of rows that regions compute.
    """
    program, cones, options = facts.program, facts.cones, options or Options()
    stored = given | facts.stored_rows if options.fuse else given
    found: set[ir.Ref] = set()
    todo = [r for r in program.outputs if r is not None]
    while todo:
        ref = todo.pop()
        node = program.nodes[ref]
        if ref in found or ref in given or isinstance(node, ir.Input | ir.Const | ir.MapOf | ir.ToUnit):
            if isinstance(node, ir.MapOf):
                todo.append(node.index)
            continue
        found.add(ref)
        if ref not in products and not cones.is_light(ref):
            todo.extend(call_operands(program, ref))
            continue
        if isinstance(node, ir.Reshape):
            todo.extend(operands(node))
            continue
        if ref not in products and cones.is_shared(ref):
            todo.extend(cones.beneath_views(ref, given))
            continue
        n = cones.needs(ref, stored, through=cones.on_edges(ref))
        todo.extend(r for r, _ in n.pulls)
        todo.extend(m for _, m in n.pulls)
        todo.extend((*n.same, *n.shared, *stored_operands(program, ref, options)))
        if not options.fuse:
            todo.extend(operands(node))
        if isinstance(node, ir.Push | ir.Gram) and node.map is not None:
            todo.append(node.map)
    return frozenset(found)


def _between_kernels(groups: Groups) -> frozenset[ir.Ref]:
    """The members of groups of shared data that read what one kernel writes, and that another kernel reads.

    A call of PyTorch there would cut one native call of kernels in two (`execute/cpp_stretch.py`).
    """
    kernels = [g for g in groups.order if g.rows is not None]
    written = {r for g in kernels for r in g.members}
    reads = [{r for m in g.members for r in (*groups.needs[m].same, *groups.needs[m].shared)} for g in kernels]
    found: set[ir.Ref] = set()
    for i, g in enumerate(kernels):
        own, others = set(g.members), reads[:i] + reads[i + 1 :]
        if g.rows == UNIT and reads[i] & written - own and any(not own.isdisjoint(theirs) for theirs in others):
            found |= own
    return frozenset(found)


def _not_worth_a_kernel(
    program: ir.Program,
    group: Group,
    leaves: Mapping[ir.Ref, Needs],
    products: frozenset[ir.Ref],
    statistics: Statistics | None,
    between: frozenset[ir.Ref],
) -> bool:
    """Whether PyTorch runs the group's nodes at least as well.

    It does if the group is a single row-wise node, unless that writes wide rows: a kernel writes them into memory of
    the arena, while PyTorch takes fresh pages, which cost more than the work itself. A declared operator's body is run
    by a kernel, since PyTorch's call may be Python. The vendor's library computes products of fewer rows than `TALL` if
    nothing else is done with their rows. It runs a few values of shared data, unless they are members of `between`.
    """
    if group.rows == UNIT and len(group.members) < _FEW_SHARED:
        return not between.issuperset(group.members)
    recomputed = {r for m in group.members for r in leaves[m].inner if not isinstance(program.nodes[r], ir.Reshape)}
    if products.issuperset(group.members):
        assert group.rows is not None
        return not recomputed and statistics is not None and statistics.rows(group.rows) < TALL
    if group.map is not None or len(group.members) > 1:
        return False
    ref = group.members[0]
    node, t = program.nodes[ref], program.types[ref]
    if isinstance(node, ir.Random) or (isinstance(t, ir.Type) and numel(t.shape) >= _WIDE_ELEMENTS):
        return False
    if isinstance(node, ir.Pointwise) and node.op.facts.cpp.function:
        return False
    return not recomputed and (isinstance(node, ir.Pull) or not leaves[ref].pulls)
