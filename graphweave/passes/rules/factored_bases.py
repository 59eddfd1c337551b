"""typed(x, c B, t) -> sum_b pull(c, t)[b] (x B_b): matrices that are combinations of few bases are never formed.

R-GCN's basis decomposition, W_r = sum_b c[r, b] B_b (Schlichtkrull et al., "Modeling Relational Data with Graph
Convolutional Networks", 2018, section 2.2). Legal always. It pays where bases are few and relations many, each with few
rows: the products with the bases then move to nodes (`postpone`), and no relation's matrix is stored and read.
"""

from __future__ import annotations

from graphweave.core.types import Fold, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder
from graphweave.passes.factors import below_reshapes, value_type
from graphweave.passes.rules.rule import Rule


def factored_bases(build: Builder, ref: ir.Ref) -> ir.Ref | None:
    """typed(x, c B, t) -> sum_b pull(c, t)[b] (x B_b)"""
    node, loc = build.nodes[ref], build.locs[ref]
    if not isinstance(node, ir.MatMul) or node.map is None or not isinstance(build.nodes[node.map], ir.MapOf):
        return None
    transposed, w = False, node.w
    if isinstance(permuted := build.nodes[w], ir.Permute) and permuted.perm == (1, 0):
        transposed, w = True, permuted.x
    made = build.nodes[below_reshapes(build, w)]
    if not isinstance(made, ir.MatMul) or made.map is not None or len(value_type(build, node.x).shape) != 1:
        return None
    if len(value_type(build, made.x).shape) != 1 or value_type(build, w).shape == value_type(build, made.w).shape:
        return None
    k, j = value_type(build, w).shape
    (bases,) = value_type(build, made.x).shape
    apart = build.add(ir.Reshape(made.w, (bases, k, j)), loc)
    adjacent = build.add(ir.Permute(apart, (2, 0, 1) if transposed else (1, 0, 2)), loc)  # [in, bases, out]
    rows, out = (j, k) if transposed else (k, j)
    product = build.add(ir.MatMul(node.x, build.add(ir.Reshape(adjacent, (rows, bases * out)), loc)), loc)
    by = build.add(ir.Reshape(build.add(ir.Pull(made.x, node.map), loc), (bases, 1)), loc)
    scaled = build.add(ir.Pointwise(Op.mul, (build.add(ir.Reshape(product, (bases, out)), loc), by)), loc)
    return build.add(ir.Reduce(scaled, Fold.sum, (0,), False), loc)


RULE = Rule("factored-bases", "typed(x, c B, t)", "sum_b pull(c, t)[b] (x B_b)", factored_bases)
