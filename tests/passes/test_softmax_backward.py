"""The backward of an edge softmax loses its second gather by general rules, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from graphweave.analysis.statistics import Statistics
from graphweave.core.types import Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Program, Pull, Push, Ref, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.passes.moves import Move
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rewrite import Rewrite, apply
from graphweave.passes.rules import factor, feature_sum
from graphweave.passes.rules.rule import Rule
from graphweave.passes.substitute import substitute
from tests.programs.graphs import EdgeList, zoo

SOFTMAX = """
space V = s0
space E = s1
%0: E[] i64 = input src
%1: E[] i64 = input dst
%2: E -> V = map %0 to V
%3: E -> V = map %1 to V
%4: E[2] f64 = input weight
%5: V[2, 3] f64 = input z
%6: V[2, 3] f64 = input grad
%7: V[2] f64 = push.sum %4, %3
%8: unit[] f64 = const 1e-16
%9: V[2] f64 = add %7, %8
%10: E[2] f64 = pull %9, %3
%11: E[2] f64 = div %4, %10
%12: E[2, 1] f64 = reshape %11 [2, 1]
%13: E[2, 3] f64 = pull %5, %2
%14: E[2, 3] f64 = mul %12, %13
%15: V[2, 3] f64 = push.sum %14, %3
%16: E[2, 3] f64 = pull %6, %3
%17: E[2, 3] f64 = mul %16, %13
%18: E[2] f64 = reduce.sum %17 [1]
%19: E[2] f64 = mul %11, %18
%20: V[2] f64 = push.sum %19, %3
return %15, %20
"""
"""out = push(a z), and the sum of a <grad, z> over a row's edges, where a = weight / sum of weights is the softmax."""


def stages(program: Program) -> list[tuple[str, Program]]:
    """`program` after each of three single rewrites; equal terms are merged automatically."""
    out = [("before", program)]
    for rule, output in ((feature_sum.RULE, 1), (factor.RULE, None), (factor.RULE, 0)):
        program = out[-1][1]
        ref = program.outputs[output] if output is not None else _last_push(program)
        assert ref is not None
        out.append((rule.name, once(program, rule, ref)))
    return out


def once(program: Program, rule: Rule, ref: Ref) -> Program:
    build = Builder.of(program)
    new = rule.apply(build, ref)
    assert new is not None
    return substitute(build, len(program.nodes), {ref: new}, program.outputs, (), program.spaces).program


def _last_push(program: Program) -> Ref:
    return max(r for r, n in enumerate(program.nodes) if isinstance(n, Push))


def test_rule_by_rule(golden: Callable[[str, str], None]) -> None:
    text = "\n".join(f"-- {name}\n{show(program)}" for name, program in stages(parse(SOFTMAX)))
    golden("softmax_backward.txt", text)


def test_the_second_gather_is_gone() -> None:
    def wide(program: Program) -> list[Ref]:
        sums = [r for r, n in enumerate(program.nodes) if isinstance(n, Push)]
        return [r for r in sums if isinstance(t := program.types[r], Type) and t.shape == (2, 3)]

    after = stages(parse(SOFTMAX))[-1][1]
    assert len(wide(after)) == 1
    behind = [n for n in after.nodes if isinstance(n, Pull)]
    assert len(behind) == 1, "z is the only value that is gathered"


@pytest.mark.parametrize("graph", zoo(3), ids=lambda g: g.name)
def test_every_stage_computes_the_same(graph: EdgeList) -> None:
    rows = max(graph.num_src, graph.num_dst)
    generator = torch.Generator().manual_seed(0)
    given = {"src": graph.src, "dst": graph.dst, "weight": torch.rand(len(graph.src), 2, generator=generator).double()}
    for name in ("z", "grad"):
        given[name] = torch.randn(rows, 2, 3, generator=generator).double()
    sizes = {Space("V"): rows, Space("E"): len(graph.src)}
    programs = [program for _, program in stages(parse(SOFTMAX))]
    want = interp(programs[0], given, sizes)
    for program in programs[1:]:
        for got, value in zip(interp(program, given, sizes), want, strict=True):
            torch.testing.assert_close(got, value, rtol=1e-12, atol=1e-12)


def test_the_choice_by_cost_finds_them() -> None:
    large = Statistics(((Space("E"), 1_000_000), (Space("V"), 100_000)))
    done = Rewrite()(parse(SOFTMAX), PassFacts(statistics=large, tangents=frozenset({"grad"})))
    assert {"feature-sum", "factor"} <= {rule for step in done.steps if step.taken for rule in step.rules}
    assert [type(n) for n in done.program.nodes].count(Pull) == 1


def test_what_would_lose_is_refused_with_its_cost() -> None:
    few_edges = Statistics(((Space("E"), 100), (Space("V"), 100_000)))
    done = Rewrite()(parse(SOFTMAX), PassFacts(statistics=few_edges, tangents=frozenset({"grad"})))
    assert not any("factor" in step.rules for step in done.steps if step.taken)
    refused = [step for step in done.steps if not step.taken]
    assert refused and all(step.seconds < 0 or step.after == step.before for step in refused)


def test_nothing_else_is_touched_by_moves_of_other_rules() -> None:
    program = parse(SOFTMAX)
    build = Builder.of(program)
    replaced, fired = apply(build, Move((feature_sum.RULE,), tuple(range(len(program.nodes)))))
    assert fired == ("feature-sum",) and set(replaced) == {20}
