"""A product that no kernel of the target computes -> a call of the vendor's library. Also which operands are stored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from graphweave.analysis.cones import type_of
from graphweave.analysis.typed import below, blocks_of, gathered, is_walked
from graphweave.core.options import Options
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class MarkCalls:
    """This is done before the partition, since operands and results of calls are stored. Products with one matrix for
    all rows on nodes need no mark: the schedule decides between a kernel and a call."""

    name: str = "mark-calls"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with the products that no kernel of the target computes marked as calls of the vendor's library;
        the same object where there are none."""
        nodes = list(program.nodes)
        for ref, node in enumerate(nodes):
            if isinstance(node, ir.MatMul | ir.Gram) and not _has_kernel(program, ref, facts.options):
                nodes[ref] = replace(node, called=True)
        if tuple(nodes) == program.nodes:
            return unchanged(program)
        return replace(unchanged(program), program=replace(program, nodes=tuple(nodes)))


def _has_kernel(program: ir.Program, ref: ir.Ref, options: Options) -> bool:
    """Whether a kernel may compute the product `ref`; true for products that are not typed."""
    if options.typed_width is None or not is_walked(program, ref):
        return True
    node = program.nodes[ref]
    return max(type_of(program, node.w if isinstance(node, ir.MatMul) else ref).shape[-2:]) <= options.typed_width


def apart(program: ir.Program, options: Options) -> frozenset[ir.Ref]:
    """Typed grams that are too wide to be summed together with other work: the kernel of each does nothing else."""
    if options.typed_gram is None:
        return frozenset()
    grams = (ref for ref, node in enumerate(program.nodes) if isinstance(node, ir.Gram) and is_walked(program, ref))
    return frozenset(ref for ref in grams if _room(program, ref) > options.typed_gram)


def _room(program: ir.Program, ref: ir.Ref) -> int:
    """Elements of a gram in registers. Sides are rounded up to powers of two; a block takes at least 512 elements."""
    i, j = (1 << (n - 1).bit_length() for n in type_of(program, ref).shape[-2:])
    return blocks_of(program, ref) * max(i * j, 512)


def stored_operands(program: ir.Program, ref: ir.Ref, options: Options) -> Iterator[ir.Ref]:
    """Operands whose rows the typed product `ref` reads from memory, as its kernel cannot hold the rows of a tile."""
    node = program.nodes[ref]
    if options.typed_operand is None or not is_walked(program, ref):
        return
    assert isinstance(node, ir.MatMul | ir.Gram)
    for x in (node.x,) if isinstance(node, ir.MatMul) else (node.x, node.y):
        wide = numel(type_of(program, x).shape) > options.typed_operand or blocks_of(program, ref) > 1
        if wide and gathered(program, x).map in (None, node.map):
            yield below(program, x)
