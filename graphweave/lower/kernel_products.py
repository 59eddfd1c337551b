"""Which products the kernels of a target multiply, and what these must find in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from graphweave.analysis.cones import type_of
from graphweave.analysis.typed import below, blocks_of, gathered, is_walked
from graphweave.ir.message.infer import numel
from graphweave.ir.message.nodes import Gram, MatMul, Program, Ref
from graphweave.lower.options import Options


def with_calls(program: Program, options: Options) -> Program:
    """`program`, whose products that no kernel of the target multiplies are marked as the vendor's library's.

    It is asked before a program is cut in two, since what a call multiplies is stored. Products with one matrix for all
    rows on nodes are in no need of a mark: the schedule compares kernels and calls of them.
    """
    nodes = list(program.nodes)
    for ref, node in enumerate(nodes):
        if isinstance(node, MatMul | Gram) and not _has_kernel(program, ref, options):
            nodes[ref] = replace(node, called=True)
    return program if tuple(nodes) == program.nodes else replace(program, nodes=tuple(nodes))


def _has_kernel(program: Program, ref: Ref, options: Options) -> bool:
    """Whether a kernel may multiply, or nobody would ask it to."""
    if options.typed_width is None or not is_walked(program, ref):
        return True
    node = program.nodes[ref]
    return max(type_of(program, node.w if isinstance(node, MatMul) else ref).shape[-2:]) <= options.typed_width


def apart(program: Program, options: Options) -> frozenset[Ref]:
    """Grams by type that are too wide to be summed beside other work: the kernel of each does nothing else."""
    if options.typed_gram is None:
        return frozenset()
    grams = (ref for ref, node in enumerate(program.nodes) if isinstance(node, Gram) and is_walked(program, ref))
    return frozenset(ref for ref in grams if _room(program, ref) > options.typed_gram)


def _room(program: Program, ref: Ref) -> int:
    """Elements of a gram in registers: sides are powers of two there, and a small block takes as much as one of 512."""
    i, j = (1 << (n - 1).bit_length() for n in type_of(program, ref).shape[-2:])
    return blocks_of(program, ref) * max(i * j, 512)


def stored_operands(program: Program, ref: Ref, options: Options) -> Iterator[Ref]:
    """Rows that the product by type `ref` reads from memory, because the kernel cannot hold those of its tiles."""
    node = program.nodes[ref]
    if options.typed_operand is None or not is_walked(program, ref):
        return
    assert isinstance(node, MatMul | Gram)
    for x in (node.x,) if isinstance(node, MatMul) else (node.x, node.y):
        wide = numel(type_of(program, x).shape) > options.typed_operand or blocks_of(program, ref) > 1
        if wide and gathered(program, x).map in (None, node.map):
            yield below(program, x)
