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
from graphweave.ir.message.builder import Builder, with_operands
from graphweave.ir.message.nodes import AddMatMul, MatMul, Pointwise, Program, Ref, Type
from graphweave.passes.pass_facts import NO_FACTS, PassFacts
from graphweave.passes.rewritten import Rewritten, unchanged


@dataclass(frozen=True, slots=True)
class Accumulate:
    name: str = "accumulate"

    def __call__(self, program: Program, facts: PassFacts = NO_FACTS) -> Rewritten:
        """`program` with sums of products accumulated; the same object where there are none."""
        sums = _sums(program, facts.of(program).flow)
        if not sums:
            return unchanged(program)
        build = Builder()
        where: dict[Ref, Ref] = {}
        for ref, node in enumerate(program.nodes):
            if ref in sums:
                where[ref] = _accumulated(build, program, sums[ref], where, program.locs[ref])
            else:
                where[ref] = build.add(with_operands(node, where.__getitem__), program.locs[ref])
        outputs = [None if r is None else where[r] for r in program.outputs]
        return Rewritten(build.program(outputs, program.spaces), where)


def _sums(program: Program, flow: Flow) -> dict[Ref, list[tuple[int, Ref]]]:
    """The signed terms of each sum on nodes that has two different products or more, one of them with a plus."""
    used = flow.users
    kept = {r for r in program.outputs if r is not None}
    edges = flow.edge_spaces
    found: dict[Ref, list[tuple[int, Ref]]] = {}
    inside: set[Ref] = set()
    for ref in reversed(range(len(program.nodes))):
        node, t = program.nodes[ref], program.types[ref]
        if ref in inside or not isinstance(node, Pointwise) or not isinstance(t, Type) or t.dtype not in KERNEL_DTYPES:
            continue
        if not t.dtype.is_float or t.space == UNIT or t.space in edges or len(node.op.facts.signs) != 2:
            continue
        terms: list[tuple[int, Ref]] = []
        todo = [(1, ref)]
        while todo:
            sign, r = todo.pop()
            n = program.nodes[r]
            alone = r == ref or (len(used[r]) == 1 and r not in kept)
            if alone and isinstance(n, Pointwise) and len(n.op.facts.signs) == 2 and program.types[r] == t:
                inside.add(r)
                todo += [(sign * own, arg) for own, arg in zip(n.op.facts.signs, n.args, strict=True)][::-1]
            else:
                terms.append((sign, r))
        products = [(s, r) for s, r in terms if _own_product(program, r, used, kept)]
        if len({r for _, r in products}) > 1 and any(s > 0 for s, _ in products):
            found[ref] = terms
    return found


def _own_product(program: Program, ref: Ref, used: Sequence[Sequence[Ref]], kept: set[Ref]) -> bool:
    return _shared(program, ref) and len(used[ref]) == 1 and ref not in kept


def _shared(program: Program, ref: Ref) -> bool:
    """Whether this is a product with shared weights; only such a one can add to an existing tensor (`AddMatMul`)."""
    node = program.nodes[ref]
    return isinstance(node, MatMul) and node.map is None


def _accumulated(
    build: Builder, program: Program, terms: list[tuple[int, Ref]], where: dict[Ref, Ref], loc: Location
) -> Ref:
    products = [(s, r) for s, r in terms if _shared(program, r)]
    others = [(s, r) for s, r in terms if not _shared(program, r)]
    first = next(i for i, (s, _) in enumerate(products) if s > 0)
    total = where[products[first][1]]
    for i, (sign, r) in enumerate(products):
        node = program.nodes[r]
        if i != first and isinstance(node, MatMul):  # the first one may occur again
            w = where[node.w] if sign > 0 else build.add(Pointwise(Op.neg, (where[node.w],)), loc)
            total = build.add(AddMatMul(total, where[node.x], w), loc)
    for sign, r in others:
        total = build.add(Pointwise(Op.add if sign > 0 else Op.sub, (total, where[r])), loc)
    return total
