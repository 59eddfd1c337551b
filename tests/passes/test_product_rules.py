"""Rules for products with shared weights also hold for weights chosen along a map, and for block-diagonal ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphweave.ir.message.builder import Builder
from graphweave.ir.message.nodes import Gram, MatMul, Program, Push, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.verify import verify
from graphweave.passes.moves import Move
from tests.passes.test_typed_rules import R
from tests.programs.graphs import EdgeList, zoo
from tests.programs.random_programs import draw_inputs
from tests.rewrite_support import RULES, E, V, assert_equal, rewritten

HEAD = """
space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: V[] i64 = input vtype
%5: V -> R = map %4 to R
%6: E[] i64 = pull %4, %3
%7: E -> R = map %6 to R
%8: R[2, 4, 3] f64 = input blocks
%9: R[4, 3] f64 = input w
%10: V[4] f64 = input x
%11: E[4] f64 = input e
%12: E[3] f64 = input f
%13: unit[2, 4, 3] f64 = input shared
%14: E[2, 4] f64 = input h
%15: V[2, 4] f64 = input z
%16: E[] f64 = input s
%17: V[3] f64 = input g
"""
"""%5 is the type of each node, %7 the type of the destination of each edge."""

CASES = [
    ("linear-into-push", "typed", """
%18: V[4] f64 = push.sum %11, %3
%19: V[3] f64 = matmul %18, %9, %5"""),
    ("linear-into-push", "blocks, seen through a reshape", """
%18: E[8] f64 = reshape %14 [8]
%19: V[8] f64 = push.sum %18, %3
%20: V[2, 4] f64 = reshape %19 [2, 4]
%21: V[2, 3] f64 = matmul %20, %13"""),
    ("linear-into-push", "a gram of types, first", """
%18: V[4] f64 = push.sum %11, %3
%19: R[4, 3] f64 = gram %18, %17, %5"""),
    ("linear-into-push", "a gram of types, second", """
%18: V[3] f64 = push.sum %12, %3
%19: R[4, 3] f64 = gram %10, %18, %5"""),
    ("linear-out-of-push", "typed by the destination", """
%18: E[3] f64 = matmul %11, %9, %7
%19: V[3] f64 = push.sum %18, %3"""),
    ("linear-out-of-push", "shared blocks", """
%18: E[2, 3] f64 = matmul %14, %13
%19: V[2, 3] f64 = push.sum %18, %3"""),
    ("linear-out-of-push", "a part that is a typed product", """
%18: E[3] f64 = matmul %11, %9, %7
%19: E[3] f64 = sub %12, %18
%20: V[3] f64 = push.sum %19, %3"""),
    ("linear-out-of-push", "a gram of types", """
%18: E[4] f64 = pull %10, %3
%19: R[4, 3] f64 = gram %18, %12, %7"""),
    ("linear-out-of-push", "a gram of types, second, blocks", """
%18: E[2, 4] f64 = pull %15, %3
%19: R[2, 4, 4] f64 = gram %14, %18, %7"""),
    ("linear-out-of-push", "a gram of two pulls, the first end narrower", """
%18: E[3] f64 = pull %17, %3
%19: E[4] f64 = pull %10, %2
%20: unit[3, 4] f64 = gram %18, %19"""),
    ("linear-out-of-push", "a gram of two pulls, the second end narrower", """
%18: E[4] f64 = pull %10, %2
%19: E[3] f64 = pull %17, %3
%20: unit[4, 3] f64 = gram %18, %19"""),
    ("postpone", "typed by the destination", """
%18: E[2, 4] f64 = pull %15, %3
%19: E[2, 3] f64 = matmul %18, %8, %7"""),
    ("postpone", "shared blocks", """
%18: E[2, 4] f64 = pull %15, %2
%19: E[2, 3] f64 = matmul %18, %13"""),
    ("split-linear", "typed blocks beside each other", """
%18: E[2, 1] f64 = input a
%19: E[2, 3] f64 = input b
%20: E[2, 4] f64 = concat dim=1 %18, %19
%21: E[2, 3] f64 = matmul %20, %8, %7"""),
    ("split-linear", "a typed difference", """
%18: E[4] f64 = pull %10, %2
%19: E[4] f64 = sub %18, %11
%20: E[3] f64 = matmul %19, %9, %7"""),
    ("split-linear", "a typed gram of blocks beside each other", """
%18: E[2, 1] f64 = input a
%19: E[2, 4] f64 = concat dim=1 %18, %18, %18, %18
%20: R[2, 4, 4] f64 = gram %14, %19, %7"""),
    ("split-linear", "a slice of a typed product of blocks", """
%18: E[2, 3] f64 = matmul %14, %8, %7
%19: E[2, 2] f64 = slice %18 dim=1 1:3:1"""),
    ("scale-out-of-linear", "typed, not gathered, a sign too", """
%18: E[1] f64 = reshape %16 [1]
%19: E[4] f64 = mul %11, %18
%20: E[4] f64 = neg %19
%21: E[3] f64 = matmul %20, %9, %7"""),
    ("scale-out-of-linear", "a typed gram of blocks", """
%18: E[8] f64 = reshape %14 [8]
%19: E[1] f64 = reshape %16 [1]
%20: E[8] f64 = div %18, %19
%21: E[2, 4] f64 = reshape %20 [2, 4]
%22: R[2, 4, 4] f64 = gram %14, %21, %7"""),
]  # fmt: skip

REFUSED = [
    ("linear-out-of-push", "typed by something else than the destination", """
%18: E[] i64 = input etype
%19: E -> R = map %18 to R
%20: E[3] f64 = matmul %11, %9, %19
%21: V[3] f64 = push.sum %20, %3"""),
    ("linear-out-of-push", "a gram of types, pulled from the sources", """
%18: E[4] f64 = pull %10, %2
%19: R[4, 3] f64 = gram %18, %12, %7"""),
    ("postpone", "typed by the other end", """
%18: E[4] f64 = pull %10, %2
%19: E[3] f64 = matmul %18, %9, %7"""),
    ("split-linear", "blocks below each other", """
%18: E[1, 4] f64 = input a
%19: E[2, 4] f64 = concat dim=0 %18, %18
%20: E[2, 3] f64 = matmul %19, %8, %7"""),
    ("split-linear", "a slice of blocks", """
%18: E[2, 3] f64 = matmul %14, %8, %7
%19: E[1, 3] f64 = slice %18 dim=0 1:2:1"""),
]  # fmt: skip


def program_of(body: str) -> Program:
    text = HEAD + body.strip()
    last = text[text.rindex("\n%") + 1 :].partition(":")[0]
    program = parse(f"{text}\nreturn {last}\n")
    verify(program)
    return program


def given_for(program: Program, graph: EdgeList, seed: int) -> dict[str, Tensor]:
    """One to four types of nodes, of which the last has no nodes unless it is the only one."""
    generator = torch.Generator().manual_seed(seed)
    nodes, types = max(graph.num_src, graph.num_dst), 1 + seed % 4
    vtype = torch.randint(max(types - 1, 1), (nodes,), generator=generator)
    index = {"src": graph.src, "dst": graph.dst, "vtype": vtype}
    return draw_inputs(program, {V: nodes, R: types, E: len(graph.src)}, index, generator)


@pytest.mark.parametrize(("rule", "body"), [pytest.param(r, b, id=f"{r}: {t}") for r, t, b in CASES])
def test_rule_applies_whatever_the_map(rule: str, body: str) -> None:
    program = program_of(body)
    after = rewritten(program, Move((RULES[rule],), (len(program.nodes) - 1,)))
    assert after is not None
    for number, graph in enumerate(zoo(3)):
        assert_equal(program, {graph.name: after}, given_for(program, graph, number))


@pytest.mark.parametrize(("rule", "body"), [pytest.param(r, b, id=f"{r}: {t}") for r, t, b in REFUSED])
def test_rule_is_refused(rule: str, body: str) -> None:
    program = program_of(body)
    assert RULES[rule].apply(Builder.of(program), len(program.nodes) - 1) is None


def test_a_typed_product_leaves_the_edges_with_its_map() -> None:
    """push(x W[t . m], m) -> push(x, m) W[t]: the product is then on nodes, by the nodes' own types."""
    body = next(b for r, t, b in CASES if (r, t) == ("linear-out-of-push", "typed by the destination"))
    program = program_of(body)
    after = rewritten(program, Move((RULES["linear-out-of-push"],), (len(program.nodes) - 1,)))
    assert after is not None
    (product,) = (n for n in after.nodes if isinstance(n, MatMul | Gram))
    assert isinstance(after.nodes[product.x], Push) and product.map == next(
        r for r, t in enumerate(after.types) if str(t) == str(program.types[5])
    )


@pytest.mark.parametrize("side", ["first", "second"])
def test_of_two_pulled_ends_the_narrower_is_pushed(side: str) -> None:
    """GraphSAGE's weights over wide features: 4 numbers were gathered for each edge, where 3 do."""
    name = f"a gram of two pulls, the {side} end narrower"
    program = program_of(next(b for _, t, b in CASES if t == name))
    after = rewritten(program, Move((RULES["linear-out-of-push"],), (len(program.nodes) - 1,)))
    assert after is not None
    pushed = {t.shape for n, t in zip(after.nodes, after.types, strict=True) if isinstance(n, Push) and type(t) is Type}
    assert (3,) in pushed and (4,) not in pushed
