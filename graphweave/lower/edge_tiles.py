"""Matrix products over the edges of a row, the loops between them, and the arrays by which they hand on values.

A row's edges come in tiles. In a tile, loops over its edges and products alternate: a loop computes the operands of
products into arrays of the tile; a product reads them and writes an array that the next loop reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphweave.analysis.cones import space_of
from graphweave.analysis.typed import is_typed_product
from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands
from graphweave.lower.blocks import is_expensive


@dataclass(frozen=True, slots=True)
class Stage:
    """A loop over a tile's edges that computes `operands` into arrays and finishes `results`; then the `products`."""

    operands: tuple[ir.Ref, ...]
    results: tuple[ir.Ref, ...]
    products: tuple[ir.Ref, ...]


def stages(
    program: ir.Program,
    members: Iterable[ir.Ref],
    inner: Iterable[ir.Ref],
    kept: frozenset[ir.Ref],
    relative: frozenset[ir.Ref],
) -> tuple[Stage, ...]:
    """Stages that compute `members`; `inner` are the nodes recomputed for them, `kept` those that are loaded.

    Members that need equally many products share a stage, but sums `relative` to a maximum come in the next one.
    """
    members = tuple(members)
    inner = frozenset(inner) - kept
    products = {r for r in (*inner, *members) if isinstance(program.nodes[r], ir.MatMul | ir.Gram)}
    level = {r: 2 * n for r, n in _levels(program, sorted(inner | set(members))).items()}
    read = {r: _read(program, r) for r in products}
    arrays: list[dict[ir.Ref, None]] = [{} for _ in range(max(level.values(), default=0) + 2)]
    for r in sorted(products):
        for x in read[r]:
            if x not in kept and x not in products:
                arrays[level.get(x, 0)][x] = None
    results: list[list[ir.Ref]] = [[] for _ in arrays]
    for r in members:
        if not isinstance(program.nodes[r], ir.Gram) and not is_typed_product(program.nodes[r]):
            results[level[r] + (r in relative)].append(r)
    _add_shared(program, arrays, results, inner)
    ready = {r: max(level.get(x, 0) for x in read[r]) for r in products}
    found = (
        Stage(tuple(arrays[s]), tuple(results[s]), tuple(sorted(r for r in products if ready[r] == s)))
        for s in range(len(arrays))
    )
    return tuple(stage for stage in found if stage.operands or stage.results or stage.products)


def has_products(program: ir.Program, members: Iterable[ir.Ref], inner: Iterable[ir.Ref]) -> bool:
    return any(isinstance(program.nodes[r], ir.MatMul | ir.Gram) for r in (*members, *inner))


def read_by_shared(program: ir.Program, refs: Iterable[ir.Ref]) -> frozenset[ir.Ref]:
    """The values that products with shared weights among `refs` read for each edge."""
    products = (r for r in refs if isinstance(n := program.nodes[r], ir.MatMul | ir.Gram) and n.map is None)
    return frozenset(x for r in products for x in _read(program, r))


def _read(program: ir.Program, ref: ir.Ref) -> tuple[ir.Ref, ...]:
    """The values that a product reads for each edge."""
    node = program.nodes[ref]
    assert isinstance(node, ir.MatMul | ir.Gram)
    return (node.x,) if isinstance(node, ir.MatMul) else (node.x, node.y)


def _levels(program: ir.Program, order: Iterable[ir.Ref]) -> dict[ir.Ref, int]:
    """For each node the number of products on the longest path to it."""
    level: dict[ir.Ref, int] = {}
    for r in order:
        node = program.nodes[r]
        below = () if isinstance(node, ir.Pull) else (node.x,) if isinstance(node, ir.Push) else operands(node)
        level[r] = max((level.get(x, 0) for x in below), default=0) + isinstance(node, ir.MatMul)
    return level


def _add_shared(
    program: ir.Program, arrays: list[dict[ir.Ref, None]], results: list[list[ir.Ref]], inner: frozenset[ir.Ref]
) -> None:
    """Let the first stage keep values that are expensive and needed by several stages."""

    def wanted(s: int, kept: Mapping[ir.Ref, None]) -> set[ir.Ref]:
        found: set[ir.Ref] = set()
        todo = [x for r in (*arrays[s], *results[s]) for x in ((r,) if r in arrays[s] else operands(program.nodes[r]))]
        while todo:
            r = todo.pop()
            if r not in found and r in inner and r not in kept and not isinstance(program.nodes[r], ir.MatMul):
                found.add(r)
                todo.extend(operands(program.nodes[r]))
        return found

    kept: dict[ir.Ref, None] = {}
    for s, own in enumerate(arrays):
        here = wanted(s, kept)
        kept.update(own)
        for r in sorted(here, reverse=True):  # users first: the operands of a kept value are not needed again for it
            dear = is_expensive(program, r) and space_of(program, r) != UNIT
            if dear and any(r in wanted(later, kept) for later in range(s + 1, len(arrays))):
                own[r] = kept[r] = None
