"""Rules of typed products, alone and together: their results, what they leave alone, and that values stay equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as combinations

import pytest
import torch
from torch import Tensor

from graphweave.analysis.statistics import Statistics
from graphweave.core.choices import Choices
from graphweave.core.types import Space
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import numel
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Gram, Pointwise, Program, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.moves import Move
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.rewrite import Rewrite
from graphweave.passes.rules.compact import compact
from graphweave.passes.rules.rule import Rule
from tests.passes.test_rewrites import body_of
from tests.passes.typed_rule_cases import APPLIES, HEAD, NO_MATTER
from tests.passes.typed_rule_refusals import REFUSED
from tests.programs.graphs import EdgeList, zoo
from tests.programs.random_programs import draw_inputs
from tests.rewrite_support import RULES, assert_equal, assert_same, every_site, rewritten, with_scale

V, R, E = Space("V"), Space("R"), Space("E")
_SOURCE, _TYPE = 2, 3  # the maps of HEAD


def program_of(body: str) -> Program:
    """HEAD and `body`, whose last node is the output."""
    text = HEAD + body.strip()
    last = text[text.rindex("\n%") + 1 :].partition(":")[0]
    program = parse(f"{text}\nreturn {last}\n")
    verify(program)
    return program


def rule_of(name: str) -> Rule:
    return compact(_SOURCE, _TYPE) if name == "compact" else RULES[name]


def given_for(program: Program, graph: EdgeList, seed: int = 0) -> dict[str, Tensor]:
    """Signed values of size 1; one to four types, of which the last has no edges unless it is the only one."""
    generator = torch.Generator().manual_seed(seed)
    nodes, types = max(graph.num_src, graph.num_dst), 1 + seed % 4
    rows = {V: nodes, R: types, E: len(graph.src)}
    etype = torch.randint(max(types - 1, 1), (len(graph.src),), generator=generator)
    index = {"src": graph.src, "dst": graph.dst, "etype": etype, "far": graph.dst, "arange_0_3": torch.arange(3)}
    index |= {name: torch.randint(3, (len(graph.src),), generator=generator) for name in ("kind", "other_kind")}
    return draw_inputs(program, rows, index, generator)


def check(program: Program, after: Program) -> None:
    for number, graph in enumerate(zoo(3)):
        assert_equal(program, {graph.name: after}, given_for(program, graph, number))


def cases(of: dict[str, list[tuple[str, str]]]) -> list[object]:
    return [pytest.param(rule, body, id=f"{rule}: {title}") for rule, found in of.items() for title, body in found]


@pytest.mark.parametrize(("rule", "body"), cases(APPLIES))
def test_rule_applies_and_changes_no_value(rule: str, body: str) -> None:
    program = program_of(body)
    after = rewritten(program, Move((rule_of(rule),), (len(program.nodes) - 1,)))
    assert after is not None and after.nodes != program.nodes
    check(program, after)


@pytest.mark.parametrize("rule", APPLIES)
def test_what_comes_of_a_rule(rule: str, golden: Callable[[str, str], None]) -> None:
    parts = []
    for title, body in APPLIES[rule]:
        program = program_of(body)
        ref = len(program.nodes) - 1
        new = rule_of(rule).apply(build := Builder.of(program), ref)
        assert new is not None
        parts.append(f"# {title}\n{body_of(build, ref)}# becomes\n{body_of(build, new)}")
    golden(f"rewrite_{rule.replace('-', '_')}.txt", "\n".join(parts))


@pytest.mark.parametrize(("rule", "body"), cases(REFUSED))
def test_rule_is_refused(rule: str, body: str) -> None:
    program = program_of(body)
    build = Builder.of(program)
    assert rule_of(rule).apply(build, len(program.nodes) - 1) is None


def test_every_rule_of_typed_products_has_examples_of_both_kinds() -> None:
    typed = {
        name for name in RULES if name.startswith(("typed", "reorder", "column", "factored", "scale-out-of-gathered"))
    }
    assert APPLIES.keys() == REFUSED.keys() == {*typed, "compact"}


BODIES = [body for found in (*APPLIES.values(), *REFUSED.values()) for _, body in found] + list(NO_MATTER.values())


@pytest.mark.parametrize("part", range(8))
def test_every_rule_at_every_site(part: int) -> None:
    for body in BODIES[part::8]:
        program = program_of(body)
        both, found = every_site(program)
        for number, graph in enumerate(zoo(3)[part % 2 :: 2]):
            given = given_for(program, graph, number + part)
            _, scale = with_scale(program, given)
            values = interp(both, given)
            for i, (rule, ref, _) in enumerate(found):
                got, want = values[2 * i + 1], values[2 * i]
                assert_same([got], [want], scale, f"{rule} at %{ref}, {graph.name}, {body}")


DECISIONS = list(combinations((None, True, False), repeat=2))


@pytest.mark.parametrize("decided", range(len(DECISIONS)))
def test_ways_to_start(decided: int) -> None:
    check_ways_to_start(decided, range(decided, len(BODIES), len(DECISIONS)))


@pytest.mark.slow
@pytest.mark.parametrize("decided", range(len(DECISIONS)))
def test_all_ways_to_start(decided: int) -> None:
    check_ways_to_start(decided, range(len(BODIES)))


def rewritten_on(program: Program, statistics: Statistics, pairs: int, choices: Choices) -> Program:
    """The program on a graph with so many unique pairs."""
    facts = PassFacts(statistics=statistics, measure=lambda *_: pairs, choices=choices)
    return Rewrite()(program, facts).program


def check_ways_to_start(decided: int, numbers: Sequence[int]) -> None:
    """Whatever is decided, and for whatever graph, all values stay equal."""
    changed = 0
    for number in numbers:
        body, program = BODIES[number], program_of(BODIES[number])
        edges, pairs = (1_000_000, (900_000, 20_000)[number % 2]) if number % 3 else (100, 90)
        statistics = Statistics(((V, 10_000), (R, 40), (E, edges)), default=1_000)
        compacts, reorders = DECISIONS[decided]
        after = rewritten_on(program, statistics, pairs, Choices(compact=compacts, reorder=reorders))
        verify(after)
        changed += after is not program
        for seed, graph in enumerate(zoo(3)[number % 4 :: 4]):
            assert_equal(program, {f"{graph.name}, {body}": after}, given_for(program, graph, seed + number))
    assert changed > len(numbers) // 8


def test_gradients_of_matrices_that_are_sums_are_compacted() -> None:
    """A relational attention's weights make messages and scores of both ends, and are read at each edge. What edges add
    to their gradient is a sum of outer products: no part of it needs more than a row for each pair."""
    program = program_of("""
%16: V[9] f64 = input z
%17: E[9] f64 = pull %16, %2
%18: E[9] f64 = pull %16, %15
%19: E[8] f64 = matmul %17, %7, %3
%20: R[1, 8] f64 = input b
%21: E[1, 8] f64 = pull %20, %3
%22: E[1] f64 = input s
%23: E[8] f64 = mul %19, %22
%24: E[1, 8] f64 = reshape %23 [1, 8]
%25: E[9, 1] f64 = reshape %17 [9, 1]
%26: E[9, 1] f64 = reshape %18 [9, 1]
%27: E[9, 8] f64 = mul %25, %24
%28: E[1, 1] f64 = reshape %22 [1, 1]
%29: E[1, 8] f64 = mul %21, %28
%30: E[9, 8] f64 = mul %25, %29
%31: E[9, 8] f64 = mul %26, %29
%32: E[9, 8] f64 = add %27, %30
%33: E[9, 8] f64 = add %32, %31
%34: R[9, 8] f64 = push.sum %33, %3""")
    statistics = Statistics(((V, 1_000), (R, 40), (E, 1_000_000)))
    for pairs in (5_000, 1_000_000):
        after = rewritten_on(program, statistics, pairs, Choices())
        computed = (t for n, t in zip(after.nodes, after.types, strict=True) if isinstance(n, Pointwise))
        wide = [t for t in computed if isinstance(t, Type) and t.space == E and numel(t.shape) > 1]
        assert bool(wide) is (pairs > 5_000)
        assert sum(isinstance(n, Gram) for n in after.nodes) == (0 if wide else 3)
        for seed, graph in enumerate(zoo(3)):
            assert_equal(program, {f"{graph.name}, {pairs}": after}, given_for(program, graph, seed))


def test_decisions_are_kept() -> None:
    """The decision about compact is kept, however little it gains; so is that about reorder."""
    program = program_of("""
%16: E[3] f64 = mul %9, %10
%17: E[1] f64 = reduce.sum %16 [0] keepdim
%18: E[3] f64 = mul %17, %9
%19: V[3] f64 = push.sum %18, %15""")
    statistics = Statistics(((V, 1_000), (R, 40), (E, 1_000_000)))
    for pairs, compacts, reorders in combinations((5_000, 1_000_000), (True, False), (True, False)):
        text = show(rewritten_on(program, statistics, pairs, Choices(compact=compacts, reorder=reorders)))
        assert ("= distinct " in text) is compacts
        assert ("R[4, 1]" in text) is reorders
    few, many = (
        show(Rewrite()(program, PassFacts(statistics=statistics, measure=lambda *_, n=n: n)).program)
        for n in (5_000, 1_000_000)
    )
    assert "= distinct " in few and "= distinct " not in many


PAIRS = """
space V = s0
space R = s1
space E = s2
%0: E[] i64 = input src
%1: E[] i64 = input etype
%2: V[] i64 = input ntype
%3: E -> V = map %0 to V
%4: E -> R = map %1 to R
%5: V -> R = map %2 to R
%6: V[9] f64 = input x
%7: R[9, 8] f64 = input w
%8: V[8] f64 = matmul %6, %7, %5
%9: E[8] f64 = pull %8, %3
%10: E[9] f64 = pull %6, %3
%11: E[9, 1] f64 = reshape %10 [9, 1]
%12: E[9, 8] f64 = mul %11, %9
%13: R[9, 8] f64 = push.sum %12, %4
return %13
"""


def test_outer_products_are_grams_though_others_than_the_edges_have_the_typed_products() -> None:
    """Compaction moves the products of edges to pairs of rows and types; the weights' gradient stays with the edges."""
    program = parse(PAIRS)
    new = RULES["typed-linear"].apply(build := Builder.of(program), 13)
    assert new is not None and isinstance(build.nodes[new], Gram)
    without = parse(PAIRS.replace("%8: V[8] f64 = matmul %6, %7, %5", "%8: V[8] f64 = slice %6 dim=0 0:8:1"))
    assert RULES["typed-linear"].apply(Builder.of(without), 13) is None
