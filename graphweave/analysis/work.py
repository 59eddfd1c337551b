"""The work of computing one row of a value, and the rates at which a machine does that."""

from __future__ import annotations

from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel

BANDWIDTH = 20e9
"""Bytes per second that a kernel moves when it streams or gathers rows."""

VECTOR_RATE = 40e9
"""Operations per second of fused loops over features."""

PRODUCT_RATE = 200e9
"""Flops per second of matrix products."""

LANES = 8
"""Lanes of a vector instruction, which costs the same for fewer elements."""


def row_bytes(program: ir.Program, ref: ir.Ref) -> int:
    """Bytes of one row of a value; 0 for what has no rows."""
    t = program.types[ref]
    return numel(t.shape) * t.dtype.itemsize if isinstance(t, ir.Type) else 0


def vector_operations(program: ir.Program, ref: ir.Ref) -> float:
    """Operations of the loops over features that compute a row of `ref` from its operands."""
    node, t = program.nodes[ref], program.types[ref]
    assert isinstance(t, ir.Type)
    match node:
        case ir.Pointwise(op, _):
            return max(numel(t.shape), LANES) * op.facts.cost
        case ir.Reduce(x):
            source = program.types[x]
            assert isinstance(source, ir.Type)
            return 2 * max(numel(source.shape), LANES)
        case ir.Cast() | ir.Concat() | ir.Pad():
            return max(numel(t.shape), LANES)
        case _:
            return 0


def product_flops(program: ir.Program, ref: ir.Ref) -> float:
    """Flops of the matrix product that computes a row of `ref`; 0 for other nodes."""
    node = program.nodes[ref]
    if not isinstance(node, ir.MatMul):
        return 0
    w = program.types[node.w]
    assert isinstance(w, ir.Type)
    return 2 * numel(w.shape)
