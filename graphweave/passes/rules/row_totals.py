"""push(pull(b, m) * x, E -> unit) -> push(b * push(x, m), V -> unit).

Legal for sums: a total over all edges is one over rows of what each row's edges sum to. Rows without edges add nothing:
where `b` may not be finite there, they are set to 0. It pays where `x` is narrower than `b`, or where push(x, m) is
needed anyway: gradients of attention vectors are of this form.
"""

from __future__ import annotations

from graphweave.core.types import Fold
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import below_reshapes, product, value_type
from graphweave.passes.rules.factor import factor
from graphweave.passes.rules.rule import Rule


def row_totals(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """push(pull(b, m) * x, E -> unit) -> push(b * push(x, m), V -> unit)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.Push) or not node.is_plain_sum or not isinstance(build.nodes[node.map], ir.ToUnit):
        return None
    for f in product(build, node.x).factors:
        pull = build.nodes[below_reshapes(build, f.ref)]
        if not isinstance(pull, ir.Pull) or not isinstance(build.nodes[pull.map], ir.MapOf):
            continue
        rows = factor(build, build.add(ir.Push(node.x, pull.map, Fold.sum), loc))
        if rows is not None:
            unit = build.add(ir.ToUnit(value_type(build, rows).space), loc)
            return build.add(ir.Push(rows, unit, Fold.sum), loc)
    return None


RULE = Rule("row-totals", "push(pull(b, m) * x, E -> unit)", "push(b * push(x, m), V -> unit)", row_totals)
