"""Rules one by one: a small program to which each applies and its result, and programs it must leave alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product as pairs

import pytest
import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors
from graphweave.core.types import Space
from graphweave.ir.message.aten import TORCH_DTYPE
from graphweave.ir.message.builder import Builder
from graphweave.ir.message.infer import broadcast_shapes
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Input, Program, Ref, Type
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.moves import NARROWER, TO_NODES, Move, products_of_push
from graphweave.passes.substitute import substitute
from tests.passes import typed_rule_cases
from tests.passes.rewrite_cases import APPLIES, HEAD, REFUSED
from tests.programs.graphs import EdgeList, zoo
from tests.programs.random_programs import draw_inputs
from tests.rewrite_support import RULES, assert_equal, rewritten
from tests.support import by_default

V, W, E = Space("V"), Space("W"), Space("E")


def program_of(body: str) -> Program:
    """HEAD and `body`, whose last node is the output."""
    text = HEAD + body.strip()
    for name, rows in {"M": "s3", "U": "s0 + s1", "D": "s2 + s2"}.items():
        if f"{name}[" in text:
            text = f"space {name} = {rows}" + (text if text.startswith("\n") else f"\n{text}")
    last = text[text.rindex("\n%") + 1 :].partition(":")[0]
    program = parse(f"{text}\nreturn {last}\n")
    verify(program)
    return program


def given_for(
    program: Program, graph: EdgeList, seed: int = 0, at_empty_rows: float | None = None
) -> dict[str, Tensor]:
    """Signed values of size 1, and `at_empty_rows` in rows of W that no edge reaches."""
    generator = torch.Generator().manual_seed(seed)
    nodes = max(graph.num_src, 1)
    rows = {V: nodes, W: graph.num_dst, E: len(graph.src)}
    named = {"src": graph.src, "dst": graph.dst}
    named["graph"] = torch.randint(nodes, (graph.num_dst,), generator=generator)
    named["other"] = torch.randint(max(graph.num_dst, 1), (len(graph.src),), generator=generator)
    found = draw_inputs(program, rows, named, generator)
    for node in program.nodes:
        if at_empty_rows is not None and isinstance(node, Input) and isinstance(node.type, Type):
            t = node.type
            if t.space == W and t.dtype.is_float:
                empty = torch.ones(graph.num_dst, dtype=torch.bool)
                empty[graph.dst] = False
                found[node.name][empty] = at_empty_rows
    return found


def check(program: Program, after: Program, step: int = 1) -> None:
    """Equal values on every graph, or one of every `step`; also where rows without edges hold what would spoil a
    product or a quotient."""
    for number, graph in enumerate(zoo(3)[::step]):
        assert_equal(program, {graph.name: after}, given_for(program, graph, number))
        for there in (0.0, math.inf, math.nan):
            assert_equal(program, {f"{graph.name}, {there} there": after}, given_for(program, graph, number, there))


EXAMPLES = [pytest.param(rule, *case, id=f"{rule}: {case[0]}") for rule, cases in APPLIES.items() for case in cases]
COUNTEREXAMPLES = [
    pytest.param(rule, *case, id=f"{rule}: {case[0]}") for rule, cases in REFUSED.items() for case in cases
]


@pytest.mark.parametrize(("rule", "title", "body"), EXAMPLES)
def test_rule_applies_and_changes_no_value(rule: str, title: str, body: str) -> None:
    program = program_of(body)
    after = rewritten(program, Move((RULES[rule],), (len(program.nodes) - 1,)))
    assert after is not None and after.nodes != program.nodes
    check(program, after)


@pytest.mark.parametrize("rule", APPLIES)
def test_what_comes_of_a_rule(rule: str, golden: Callable[[str, str], None]) -> None:
    parts = []
    for title, body in APPLIES[rule]:
        program = program_of(body)
        ref = len(program.nodes) - 1
        new = RULES[rule].apply(build := Builder.of(program), ref)
        assert new is not None
        parts.append(f"# {title}\n{body_of(build, ref)}# becomes\n{body_of(build, new)}")
    golden(f"rewrite_{rule.replace('-', '_')}.txt", "\n".join(parts))


def body_of(build: Builder, ref: Ref) -> str:
    """The nodes of the program on which `ref` depends."""
    program = substitute(build, len(build.nodes), {}, [ref], (), ()).program
    used = ancestors(program, [ref_out for ref_out in program.outputs if ref_out is not None])
    lines = [line for line in show(program).splitlines() if not line.startswith("space ")]
    return "".join(f"{line}\n" for i, line in enumerate(lines) if i in used or line.startswith("return"))


@pytest.mark.parametrize(("rule", "title", "body"), COUNTEREXAMPLES)
def test_rule_is_refused(rule: str, title: str, body: str) -> None:
    program = program_of(body)
    build = Builder.of(program)
    new = RULES[rule].apply(build, len(program.nodes) - 1)
    assert new is None


def test_every_rule_has_examples_of_both_kinds() -> None:
    assert APPLIES.keys() == REFUSED.keys() == RULES.keys() - typed_rule_cases.APPLIES.keys()


# ---------------------------------------------------------------- shapes

SHAPES = ((), (1,), (4,), (4, 1), (1, 4), (2, 1, 3), (1, 1))
MEETING = [(a, b) for a, b in pairs(SHAPES, SHAPES) if broadcast_shapes([a, b]) is not None]


def show_shape(shape: tuple[int, ...] | None) -> str:
    assert shape is not None
    return str(list(shape))


@pytest.mark.parametrize("op", ["mul", "div"])
@pytest.mark.parametrize(("own", "other"), MEETING)
def test_factors_of_every_shape(own: tuple[int, ...], other: tuple[int, ...], op: str) -> None:
    """One factor is the row's own and one the edges', in either order, with shared data between them."""
    both = broadcast_shapes([own, other])
    for first, second in (("13", "14"), ("14", "13")):
        program = program_of(f"""
%12: W{show_shape(own)} f64 = input own
%13: E{show_shape(own)} f64 = pull %12, %3
%14: E{show_shape(other)} f64 = input other
%15: E{show_shape(both)} f64 = {op} %{first}, %{second}
%16: E{show_shape(both)} f64 = mul %15, %8
%17: W{show_shape(both)} f64 = push.sum %16, %3""")
        after = rewritten(program, Move((RULES["factor"],), (17,)))
        assert after is not None
        check(program, after, 3)


@pytest.mark.parametrize("op", by_default(["add", "sub"], "sub"))
@pytest.mark.parametrize(("own", "other"), MEETING)
def test_sums_of_every_shape(own: tuple[int, ...], other: tuple[int, ...], op: str) -> None:
    """One term is the row's own, one the edges' or shared; the sum is multiplied by a number for each edge."""
    both = broadcast_shapes([own, other])
    for space, (first, second) in pairs(("E", "unit"), (("14", "15"), ("15", "14"))):
        program = program_of(f"""
%12: W{show_shape(own)} f64 = input own
%13: E{show_shape(own)} f64 = pull %12, %3
%14: E{show_shape(own)} f64 = neg %13
%15: {space}{show_shape(other)} f64 = input other
%16: E{show_shape(both)} f64 = {op} %{first}, %{second}
%17: E[] f64 = input number
%18: E{show_shape(both)} f64 = mul %17, %16
%19: W{show_shape(both)} f64 = push.sum %18, %3""")
        move = Move((RULES["distribute"], RULES["feature-sum"], RULES["factor"]), (19,))
        after = rewritten(program, move)
        assert after is not None
        check(program, after, 3)


@pytest.mark.parametrize("keepdim", ["", "keepdim"])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize(("own", "other"), [((2, 1, 3), (2, 1, 3)), ((1, 1, 3), (2, 1, 1)), ((3,), (2, 1, 3))])
def test_feature_sums_of_every_shape(
    own: tuple[int, ...], other: tuple[int, ...], dims: tuple[int, ...], keepdim: str
) -> None:
    kept = tuple(1 if d in dims else n for d, n in enumerate((2, 1, 3)))
    total = kept if keepdim else tuple(n for d, n in enumerate((2, 1, 3)) if d not in dims)
    program = program_of(f"""
%12: W{show_shape(own)} f64 = input own
%13: E{show_shape(own)} f64 = pull %12, %3
%14: E{show_shape(other)} f64 = input other
%15: E[2, 1, 3] f64 = div %14, %13
%16: E{show_shape(total)} f64 = reduce.sum %15 {show_shape(dims)} {keepdim}
%17: E[] f64 = input number
%18: E{show_shape(total)} f64 = mul %17, %16
%19: W{show_shape(total)} f64 = push.sum %18, %3""")
    for rules in (("feature-sum",), ("distribute", "feature-sum", "factor")):
        after = rewritten(program, Move(tuple(RULES[r] for r in rules), (19,)))
        assert after is not None
        check(program, after, 3)


# ---------------------------------------------------------------- found by random programs and by reading, reduced


def test_rules_that_undo_each_other_end() -> None:
    """gram(x * s, g) -> gram(x, g * s) -> gram(x * s, g) -> ... must not go on for ever."""
    program = program_of("""
%12: W[1] f64 = input s
%13: W[4] f64 = div %11, %12
%14: unit[4, 4] f64 = gram %13, %5""")
    for rules in (NARROWER, TO_NODES + NARROWER):
        after = rewritten(program, Move(rules, (14,)))
        assert after is not None
        check(program, after)


@pytest.mark.parametrize("op", ["mul", "add"])
def test_operands_used_twice_take_no_time(op: str) -> None:
    """In x * x * ... the work must not double with each step, neither in products nor in rows without edges."""
    steps = "\n".join(f"%{i}: W[4] f64 = {op} %{i - 1}, %{i - 1}" for i in range(12, 52))
    on_edges = "\n".join(f"%{i}: E[4] f64 = {op} %{i - 1}, %{i - 1}" for i in range(54, 94))
    program = program_of(f"""
{steps}
%52: E[4] f64 = pull %51, %3
%53: E[4] f64 = mul %52, %6
{on_edges}
%94: W[4] f64 = push.sum %93, %3""")
    after = rewritten(program, Move((RULES["distribute"], RULES["feature-sum"], RULES["factor"]), (94,)))
    assert after is None  # factors beyond the limit of a product count as one


def test_long_chains_of_small_steps() -> None:
    """The depth of what is lifted out of a push is limited: a chain of 800 would exceed Python's stack."""
    chain = "\n".join(f"%{i}: E[4] f64 = sin %{i - 1}" for i in range(13, 812))
    program = program_of(f"""
%12: E[4] f64 = sin %10
{chain}
%812: W[4] f64 = push.sum %811, %3""")
    build = Builder.of(program)
    assert all(rule.apply(build, 812) is None for rule in RULES.values())


@pytest.mark.parametrize(("dtype", "epsilon"), [("f16", "1e-16"), ("f32", "1e-46"), ("f32", "1e-40"), ("f64", "0.0")])
def test_a_denominator_that_rounds_to_zero_is_guarded(dtype: str, epsilon: str) -> None:
    """1e-16 is 0 in half precision, so that rows without edges would become 0 / 0."""
    program = parse(f"""
space W = s0
space E = s1
%0: E[] i64 = input dst
%1: E -> W = map %0 to W
%2: E[] {dtype} = input x
%3: W[] {dtype} = push.sum %2, %1
%4: unit[] {dtype} = const {epsilon}
%5: W[] {dtype} = add %3, %4
%6: E[] {dtype} = pull %5, %1
%7: E[] {dtype} = div %2, %6
%8: W[] {dtype} = push.sum %7, %1
return %8
""")
    after = rewritten(program, Move((RULES["factor"],), (8,)))
    assert after is not None
    t = program.types[2]
    assert isinstance(t, Type)
    x = torch.tensor([1.0, 2.0, 1.0], dtype=TORCH_DTYPE[t.dtype])
    (out,) = interp(after, {"dst": torch.tensor([0, 2, 2]), "x": x}, {W: 4})
    assert out.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_constant_that_is_no_number_is_guarded() -> None:
    program = program_of("""
%12: unit[] f64 = const nan
%13: W[4] f64 = maximum %11, %12
%14: E[4] f64 = pull %13, %3
%15: E[4] f64 = mul %14, %6
%16: W[4] f64 = push.sum %15, %3""")
    after = rewritten(program, Move((RULES["factor"],), (16,)))
    assert after is not None
    check(program, after)


def residual_layers(count: int) -> Program:
    """A push, `count` layers of which each adds a value to its own multiple, and a product of the sum with a matrix."""
    lines = [
        "space V = s0", "space E = s1", "%0: E[4] f64 = input x", "%1: E[] i64 = input dst", "%2: E -> V = map %1 to V",
        "%3: V[4] f64 = push.sum %0, %2", "%4: unit[4, 3] f64 = input w", "%5: V[4] f64 = input y",
    ]  # fmt: skip
    at = 3
    for made in range(6, 6 + 2 * count, 2):
        lines += [f"%{made}: V[4] f64 = mul %{at}, %5", f"%{made + 1}: V[4] f64 = add %{at}, %{made}"]
        at = made + 1
    lines += [f"%{at + 1}: V[3] f64 = matmul %{at}, %4", f"return %{at + 1}"]
    return parse("\n".join(lines))


def test_the_pushes_behind_a_product_are_found_in_one_walk() -> None:
    """Each layer doubles the number of ways from the product to the push: 2^64 in all."""
    program = residual_layers(64)
    (move,) = products_of_push(Facts(program), frozenset())
    assert move.sites == (len(program.nodes) - 1,)
