"""x W + y V + b -> addmatmul(x W, y, V) + b: a sum of products is accumulated in one tensor.

Legal for sums and differences whose parts nobody else reads. It always pays: each further product adds to the tensor of
the first one, instead of writing a tensor of its own that has to be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphweave.analysis.cones import KERNEL_DTYPES
from graphweave.analysis.flow import Flow
from graphweave.core.lines import Location
from graphweave.core.types import UNIT, Op
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class Accumulate:
    name: str = "accumulate"

    def __call__(self, program: ir.Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with sums of products accumulated; the same object where there are none."""
        sums = _sums(program, facts.of(program).flow)
        if not sums:
            return unchanged(program)
        build = Builder()
        where: dict[ir.Ref, ir.Ref] = {}
        for ref, node in enumerate(program.nodes):
            if ref in sums:
                where[ref] = _accumulated(build, program, sums[ref], where, program.locs[ref])
            else:
                where[ref] = build.add(with_operands(node, where.__getitem__), program.locs[ref])
        outputs = [None if r is None else where[r] for r in program.outputs]
        return Rewritten(build.program(outputs, program.spaces), where)


def _sums(program: ir.Program, flow: Flow) -> dict[ir.Ref, list[tuple[int, ir.Ref]]]:
    """The signed terms of each sum on nodes that has two different products or more, one of them with a plus."""
    used = flow.users
    kept = {r for r in program.outputs if r is not None}
    edges = flow.edge_spaces
    found: dict[ir.Ref, list[tuple[int, ir.Ref]]] = {}
    inside: set[ir.Ref] = set()
    for ref in reversed(range(len(program.nodes))):
        node, t = program.nodes[ref], program.types[ref]
        if (
            ref in inside
            or not isinstance(node, ir.Pointwise)
            or not isinstance(t, ir.Type)
            or t.dtype not in KERNEL_DTYPES
        ):
            continue
        if not t.dtype.is_float or t.space == UNIT or t.space in edges or len(node.op.facts.signs) != 2:
            continue
        terms: list[tuple[int, ir.Ref]] = []
        todo = [(1, ref)]
        while todo:
            sign, r = todo.pop()
            n = program.nodes[r]
            alone = r == ref or (len(used[r]) == 1 and r not in kept)
            if alone and isinstance(n, ir.Pointwise) and len(n.op.facts.signs) == 2 and program.types[r] == t:
                inside.add(r)
                todo += [(sign * own, arg) for own, arg in zip(n.op.facts.signs, n.args, strict=True)][::-1]
            else:
                terms.append((sign, r))
        products = [(s, r) for s, r in terms if _own_product(program, r, used, kept)]
        if len({r for _, r in products}) > 1 and any(s > 0 for s, _ in products):
            found[ref] = terms
    return found


def _own_product(program: ir.Program, ref: ir.Ref, used: Sequence[Sequence[ir.Ref]], kept: set[ir.Ref]) -> bool:
    return _shared(program, ref) and len(used[ref]) == 1 and ref not in kept


def _shared(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether this is a product with shared weights; only such a one can add to an existing tensor (`AddMatMul`)."""
    node = program.nodes[ref]
    return isinstance(node, ir.MatMul) and node.map is None


def _accumulated(
    build: Builder, program: ir.Program, terms: list[tuple[int, ir.Ref]], where: dict[ir.Ref, ir.Ref], loc: Location
) -> ir.Ref:
    products = [(s, r) for s, r in terms if _shared(program, r)]
    others = [(s, r) for s, r in terms if not _shared(program, r)]
    first = next(i for i, (s, _) in enumerate(products) if s > 0)
    total = where[products[first][1]]
    for i, (sign, r) in enumerate(products):
        node = program.nodes[r]
        if i != first and isinstance(node, ir.MatMul):  # the first one may occur again
            w = where[node.w] if sign > 0 else build.add(ir.Pointwise(Op.neg, (where[node.w],)), loc)
            total = build.add(ir.AddMatMul(total, where[node.x], w), loc)
    for sign, r in others:
        total = build.add(ir.Pointwise(Op.add if sign > 0 else Op.sub, (total, where[r])), loc)
    return total
