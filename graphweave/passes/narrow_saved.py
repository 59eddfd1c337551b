"""Rows that are saved for the backward in bfloat16: half the memory, for gradients of about three digits.

The forward computes with, and returns, what it always does; only the copy that waits for the backward is rounded, to 8
bits of precision (a relative error of 2^-9 a number at most). Training with rounded copies of activations converges as
with exact ones: Liu et al., "EXACT: Scalable Graph Neural Networks Training via Extreme Activation Compression" (2022).

Kept exact are narrow rows (the sums and maxima of a softmax, degrees), values that the backward compares for equality
(it finds by that which message was the maximum), and those that it makes an integer of (an index must stay in range).
"""

from __future__ import annotations

from collections.abc import Iterable

from graphweave.analysis.flow import Extract, ancestors
from graphweave.core.types import UNIT, DType, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import numel

NARROW = DType.bf16

_LEAST = 8
"""Rows of fewer numbers than this stay exact: they hold little, and a softmax divides by them."""


def narrowed_values(joint: ir.Program, backward: Extract, saved: Iterable[ir.Ref]) -> frozenset[ir.Ref]:
    """Those of the values `saved`, by their positions in `joint`, that the program `backward` may read rounded."""
    exact = ancestors(backward.program, _exact_reads(backward.program))
    return frozenset(
        r
        for r in saved
        if isinstance(t := joint.types[r], ir.Type)
        and t.dtype is DType.f32
        and t.space != UNIT
        and numel(t.shape) >= _LEAST
        and not isinstance(joint.nodes[r], ir.Input)
        and backward.where.get(r) not in exact
    )


def _exact_reads(program: ir.Program) -> Iterable[ir.Ref]:
    """The floating-point values of which an integer is made, or that are compared for equality."""
    for ref, node in enumerate(program.nodes):
        compared = isinstance(node, ir.Pointwise) and node.op in (Op.eq, Op.ne)
        t = program.types[ref]
        whole = isinstance(t, ir.Type) and not t.dtype.is_float and t.dtype is not DType.bool
        if compared or (whole and isinstance(node, ir.Cast | ir.Pointwise)):
            yield from (r for r in operands(node) if _is_float(program, r))


def _is_float(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) and t.dtype.is_float


def widened(backward: Extract, narrowed: frozenset[ir.Ref]) -> Extract:
    """The program `backward` with the inputs for `narrowed` in bfloat16, which it converts back."""
    program, build = backward.program, Builder()
    read = {at for r, at in backward.where.items() if r in narrowed}
    where: dict[ir.Ref, ir.Ref] = {}
    inputs: dict[ir.Ref, ir.Ref] = {}
    for ref, node in enumerate(program.nodes):
        if ref in read:
            t = program.types[ref]
            assert isinstance(node, ir.Input) and isinstance(t, ir.Type)
            inputs[ref] = build.add(ir.Input(node.name, ir.Type(t.space, t.shape, NARROW)), program.locs[ref])
            where[ref] = build.add(ir.Cast(inputs[ref], t.dtype), program.locs[ref])
        else:
            where[ref] = build.add(with_operands(node, where.__getitem__), program.locs[ref])
    outputs = [None if r is None else where[r] for r in program.outputs]
    moved = {r: inputs.get(at, where[at]) for r, at in backward.where.items()}
    return Extract(build.program(outputs, program.spaces), moved)
