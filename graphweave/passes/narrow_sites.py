"""Which products can sum over fewer features (`rules/narrow_sums.py`), in groups that pay together.

In training, a product of a sum over neighbours, (A x) W, comes with two others: the gradient of its weights,
gram(g, A x), and of its rows, A' (g W'). The first needs the wide sum A x, which the forward has anyway; the last is a
wide sum itself. Only when all three change are the edges rid of wide rows, and A' g then serves both gradients. If x is
narrower than x W, forward and backward exchange their roles.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from graphweave.analysis.facts import Facts
from graphweave.analysis.typed import below
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.passes.row_operator import RowOperator, linear_operands, row_operator

Key: TypeAlias = tuple[str, ir.Ref, ir.Ref]
"""The properties that products of one group share: a sum, or weights or rows that meet rows moved along a map."""


def narrow_sites(facts: Facts) -> list[tuple[ir.Ref, ...]]:
    """Nodes at which the rule is to be tried, those that belong together in one tuple."""
    groups, group_of = dict[int, tuple[set[Key], list[ir.Ref]]](), dict[Key, int]()
    for number, (site, keys) in enumerate(_sites(facts)):
        same = [groups.pop(i) for i in sorted({group_of[key] for key in keys if key in group_of})]
        groups[number] = keys.union(*(k for k, _ in same)), [*(r for _, sites in same for r in sites), site]
        group_of.update(dict.fromkeys(groups[number][0], number))
    return [tuple(dict.fromkeys(sites)) for _, sites in groups.values()]


def _sites(facts: Facts) -> Iterator[tuple[ir.Ref, set[Key]]]:
    program = facts.program
    for ref, node in enumerate(program.nodes):
        match node:
            case ir.MatMul(x, w, None) if _width(program, ref) < _width(program, x):
                if (op := row_operator(program, x)) is not None:
                    yield ref, _sums(program, op) | _moved("weights", _weights(program, w), program, op)
            case ir.MatMul(x, w, None) if _width(program, ref) > _width(program, x):
                for site, op in _operators_on(facts, ref, w):
                    weights = _moved("weights", _weights(program, w), program, op)
                    yield site, weights | _moved("rows", below(program, x), program, op)
            case ir.Gram(x, y, None):
                for wide, narrow in ((x, y), (y, x)):
                    fits = _width(program, narrow) < _width(program, wide)
                    if fits and (op := row_operator(program, wide)) is not None:
                        yield ref, _sums(program, op) | _moved("rows", below(program, narrow), program, op)


def _operators_on(facts: Facts, product: ir.Ref, w: ir.Ref) -> Iterator[tuple[ir.Ref, RowOperator]]:
    """Every node that is an operator on products with the weights `w`, `product` among them."""
    program, seen, todo = facts.program, {product}, [product]
    while todo:
        for user in facts.flow.users[todo.pop()]:
            if user in seen or not linear_operands(program, user):
                continue
            seen.add(user)
            op = row_operator(program, user)
            products = () if op is None else [program.nodes[r] for r in op.bases]
            if all(isinstance(n, ir.MatMul) and n.map is None and n.w == w for n in products):
                todo.append(user)
                if op is not None and not isinstance(program.nodes[user], ir.Pull | ir.Reshape):
                    yield user, op


def _sums(program: ir.Program, op: RowOperator) -> set[Key]:
    return {("sum", r, r) for r in op.steps if isinstance(program.nodes[r], ir.Push)}


def _moved(kind: str, ref: ir.Ref, program: ir.Program, op: RowOperator) -> set[Key]:
    nodes = (program.nodes[r] for r in op.steps)
    return {(kind, ref, node.map) for node in nodes if isinstance(node, ir.Push | ir.Pull)}


def _weights(program: ir.Program, ref: ir.Ref) -> ir.Ref:
    """The weights of which `ref` is a transpose or another shape."""
    while isinstance(node := program.nodes[ref], ir.Permute | ir.Reshape):
        ref = node.x
    return ref


def _width(program: ir.Program, ref: ir.Ref) -> int:
    t = program.types[ref]
    assert isinstance(t, ir.Type)
    return numel(t.shape)
