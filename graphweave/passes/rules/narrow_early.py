"""half(pull(x, m)) -> pull(half(x), m), half([a ; b]) -> [half(a) ; half(b)].

Legal always: the same numbers are rounded, each once. It pays as nodes are fewer than edges and a gathered row has half
the bytes. Rounding also no longer hides that a product's rows are a concatenation or a pull from other rules
(`split_linear.py`). Casts to wider types stay where they are, so that kernels read the narrow values.
"""

from __future__ import annotations

from graphweave.core.lines import Location
from graphweave.core.types import HALF, DType
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import value_type
from graphweave.passes.rules.rule import Rule


def narrow_early(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """half(pull(x, m)) -> pull(half(x), m), half([a ; b]) -> [half(a) ; half(b)]"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.Cast) or node.dtype not in HALF or not value_type(build, node.x).dtype.is_float:
        return None
    new = _narrowed(build, node.x, node.dtype, loc)
    return None if new == ref else new


def _narrowed(build: Builder, x: ir.Ref, dtype: DType, loc: Location) -> ir.Ref:
    match build.nodes[x]:
        case ir.Pull(y, m):
            return build.add(ir.Pull(_narrowed(build, y, dtype, loc), m), loc)
        case ir.Concat(ys, dim):
            return build.add(ir.Concat(tuple(_narrowed(build, y, dtype, loc) for y in ys), dim), loc)
    return build.add(ir.Cast(x, dtype), loc)


RULE = Rule("narrow-early", "half(pull(x, m)), half([a ; b])", "pull(half(x), m), [half(a) ; half(b)]", narrow_early)
