"""Which values of rows without edges are known to be finite, so that a product with a sum over no edges is 0."""

from __future__ import annotations

import math

from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, operands
from graphweave.passes.factors import Factor
from graphweave.passes.rules.factor import at_empty_rows, is_harmless

_MAX_NODES = 128
"""At most this many nodes are looked at for one answer; beyond them nothing is known."""


def finite_without_edges(build: Builder, ref: ir.Ref, m: ir.Ref) -> bool:
    """Whether `ref` is finite in rows to which `m` sends no edge, if all inputs are finite and nothing overflows."""
    return _known(build, ref, m, {})


def keeps_zero(build: Builder, s: ir.Ref, m: ir.Ref, *, divides: bool = False) -> bool:
    """Whether 0 times `s`, or 0 divided by it, is known to be 0 in rows to which `m` sends no edge."""
    return _divides(build, s, m, {}) if divides else _known(build, s, m, {})


def _known(build: Builder, ref: ir.Ref, m: ir.Ref, done: dict[ir.Ref, bool]) -> bool:
    if ref not in done:
        done[ref] = False  # the answer for nodes beyond the limit
        done[ref] = len(done) <= _MAX_NODES and _finite(build, ref, m, done)
    return done[ref]


def _finite(build: Builder, ref: ir.Ref, m: ir.Ref, done: dict[ir.Ref, bool]) -> bool:
    node, t = build.nodes[ref], build.types[ref]
    if isinstance(node, ir.Input) or not isinstance(t, ir.Type) or t.space == UNIT:
        return True
    value = at_empty_rows(build, ref, m)
    if value is not None:
        return math.isfinite(value)
    if isinstance(node, ir.Opaque):
        return False
    match node:
        case ir.Pointwise(Op.div, (a, b)):
            return _known(build, a, m, done) and _divides(build, b, m, done)
        case ir.Pointwise(op) if not op.facts.finite:
            return False
        case ir.Push(empty=empty) if not math.isfinite(empty):
            return False
        case _:
            return all(_known(build, r, m, done) for r in operands(node))


def _divides(build: Builder, by: ir.Ref, m: ir.Ref, done: dict[ir.Ref, bool]) -> bool:
    """Whether a finite number divided by `by` is known to be finite in rows to which `m` sends no edge."""
    known = is_harmless(build, Factor(by, (), inverse=True), m)
    return known or (_at_least_one(build, by) and _known(build, by, m, done))


def _at_least_one(build: Builder, ref: ir.Ref) -> bool:
    """Whether `ref` is max(x, c) with a constant c >= 1, as a count is by which a mean divides."""
    node = build.nodes[ref]
    match node:
        case ir.Reshape(x) | ir.Broadcast(x):
            return _at_least_one(build, x)
        case ir.Pointwise(Op.maximum, args):
            return any(isinstance(n := build.nodes[r], ir.Const) and n.value >= 1 for r in args)
        case _:
            return False
