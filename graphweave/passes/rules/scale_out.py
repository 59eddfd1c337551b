"""(x * s) W -> (x W) * s for s of one number a row, and gram(x * s, y) -> gram(x, y * s), whatever the map.

Legal always. It pays as a mean (a sum divided by a count) then is no obstacle to rules that move a product through a
push. And a typed product of pulled rows then gathers them itself, and the scaled rows need not be stored for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphweave.core.lines import Location
from graphweave.core.types import Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.passes.factors import below_reshapes, negated, shaped, value_type
from graphweave.passes.rules.rule import Rule


@dataclass(frozen=True, slots=True)
class Scaled:
    """`sign` times `rows`, times or divided by each of `numbers` (each is one number a row), the innermost first."""

    rows: ir.Ref
    numbers: tuple[tuple[Op, ir.Ref], ...] = ()
    sign: int = 1


def scale_out(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """(x * s) W -> (x W) * s, and quotients; gram(x * s, y) -> gram(x, y * s)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if isinstance(node, ir.MatMul) and (found := scaled(build, node.x)) is not None:
        return times(build, build.add(replace(node, x=found.rows), loc), found, loc)
    if isinstance(node, ir.Gram) and (found := scaled(build, node.x)) is not None:
        return build.add(replace(node, x=found.rows, y=times(build, node.y, found, loc)), loc)
    if isinstance(node, ir.Gram) and (found := scaled(build, node.y)) is not None:
        return build.add(replace(node, x=times(build, node.x, found, loc), y=found.rows), loc)
    return None


def for_gathering(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """(pull(x, m) * s) W[t] -> (pull(x, m) W[t]) * s"""
    node = build.nodes[ref]
    if not isinstance(node, ir.MatMul) or node.map is None:
        return None
    pull = build.nodes[below_reshapes(build, peeled(build, node.x).rows)]
    return scale_out(build, ref) if isinstance(pull, ir.Pull) and isinstance(build.nodes[pull.map], ir.MapOf) else None


def scaled(build: Builder, ref: ir.Ref) -> Scaled | None:
    """`ref` taken apart into rows, numbers and sign; None if it has neither numbers nor a minus."""
    found = peeled(build, ref)
    if not found.numbers and found.sign > 0:
        return None
    return replace(found, rows=shaped(build, found.rows, value_type(build, ref).shape, build.locs[ref]))


def peeled(build: Builder, ref: ir.Ref) -> Scaled:
    """`ref` taken apart into rows, numbers and sign; the rows may have another shape than `ref`."""
    numbers: list[tuple[Op, ir.Ref]] = []
    sign, rows = 1, ref
    while True:
        match build.nodes[rows]:
            case ir.Reshape(x):
                rows = x
            case ir.Pointwise(Op.neg, (x,)):
                rows, sign = x, -sign
            case ir.Pointwise(Op.mul | Op.div as op, (x, s)):
                if op is Op.mul and not _is_number(build, s):
                    x, s = s, x
                if not _is_number(build, s) or value_type(build, x) != value_type(build, rows):
                    break
                numbers.append((op, s))
                rows = x
            case _:
                break
    return Scaled(rows, tuple(reversed(numbers)), sign)


def _is_number(build: Builder, ref: ir.Ref) -> bool:
    return numel(value_type(build, ref).shape) == 1


def times(build: Builder, ref: ir.Ref, found: Scaled, loc: Location) -> ir.Ref:
    """`ref` times the numbers and the sign of `found`."""
    rank, out = len(value_type(build, ref).shape), ref
    for op, s in found.numbers:
        by = s if len(value_type(build, s).shape) <= rank else shaped(build, s, (), loc)
        out = build.add(ir.Pointwise(op, (out, by)), loc)
    return negated(build, out, found.sign, loc)


RULE = Rule("scale-out-of-linear", "(x * s) W, gram(x * s, g)", "(x W) * s, gram(x, g * s)", scale_out)
GATHERED = Rule("scale-out-of-gathered", "(pull(x, m) * s) W[t]", "(pull(x, m) W[t]) * s", for_gathering)
