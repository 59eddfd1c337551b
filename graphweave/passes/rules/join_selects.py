"""where(c, a, 0) + k where(c, 0, b) -> where(c, a, k b).

Legal for finite constants k, up to the sign of a zero: one of the two terms is 0 everywhere. It never loses. Gradients
of `jnp.where` are such sums, as each branch has its own; joined, those of leaky ReLU and its kind have a common factor
(`common.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from graphweave.core.lines import Location
from graphweave.core.types import Op
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Const, Pointwise, Ref
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule

_MAX_FACTORS = 4
"""A selection is looked for below at most this many products with constants."""


def join_selects(build: Builder, ref: Ref) -> Ref | None:
    """where(c, a, 0) + k where(c, 0, b) -> where(c, a, k b)"""
    node, t = build.nodes[ref], build.types[ref]
    if not isinstance(node, Pointwise) or node.op is not Op.add or not value_type(build, ref).dtype.is_float:
        return None
    found = [_selected(build, x, _MAX_FACTORS) for x in node.args if build.types[x] == t]
    terms = {s.first: s for s in found if s is not None}
    if len(terms) < 2 or terms[True].condition != terms[False].condition:
        return None
    loc = build.locs[ref]
    branches = [_times(build, terms[first], loc) for first in (True, False)]
    return build.add(Pointwise(Op.where, (terms[True].condition, *branches)), loc)


@dataclass(frozen=True, slots=True)
class _Selected:
    """where(condition, value, 0), or where(condition, 0, value) unless `first`, times numbers."""

    condition: Ref
    value: Ref
    first: bool
    numbers: tuple[Ref, ...] = ()


def _selected(build: Builder, ref: Ref, most: int) -> _Selected | None:
    """`ref` as a selection times at most `most` finite constants."""
    match build.nodes[ref]:
        case Pointwise(Op.where, (condition, yes, no)) if _is_zero(build, no) != _is_zero(build, yes):
            first = _is_zero(build, no)
            return _Selected(condition, yes if first else no, first)
        case Pointwise(Op.mul, (x, k)) if most and (_is_finite(build, k) or _is_finite(build, x)):
            x, k = (x, k) if _is_finite(build, k) else (k, x)
            found = _selected(build, x, most - 1)
            return found and replace(found, numbers=(*found.numbers, k))
        case _:
            return None


def _times(build: Builder, term: _Selected, loc: Location) -> Ref:
    out = term.value
    for k in term.numbers:
        out = build.add(Pointwise(Op.mul, (out, k)), loc)
    return out


def _is_zero(build: Builder, ref: Ref) -> bool:
    node = build.nodes[ref]
    return isinstance(node, Const) and node.value == 0


def _is_finite(build: Builder, ref: Ref) -> bool:
    node = build.nodes[ref]
    return isinstance(node, Const) and math.isfinite(node.value)


RULE = Rule("join-selects", "where(c, a, 0) + k where(c, 0, b)", "where(c, a, k b)", join_selects)
