"""Random joint programs are split into forward and backward: results are those of the whole, and little is saved."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors, extract, is_integral
from graphweave.compiler.compile import compile, optimise
from graphweave.compiler.request import Request
from graphweave.core.choices import Choices
from graphweave.core.errors import IRError
from graphweave.core.sizes import Symbol
from graphweave.core.types import UNIT, DType, Space
from graphweave.execute.build import build
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import (
    AnyType,
    Aten,
    Broadcast,
    Const,
    Gram,
    Input,
    MapOf,
    MatMul,
    Permute,
    Program,
    Push,
    Ref,
    Reshape,
    Slice,
    ToUnit,
    Type,
)
from graphweave.ir.message.parse import parse
from graphweave.ir.message.verify import verify
from graphweave.passes.partition import split
from graphweave.passes.pass_facts import PassFacts
from graphweave.passes.recompute import Recompute
from tests.program_support import AS_IT_IS, ZOO, names_at, same
from tests.programs.compare import assert_all_close
from tests.programs.graphs import MAX_ROWS, EdgeList
from tests.programs.random_programs import inputs, random_program


@dataclass(frozen=True)
class Joint:
    """`tangents` are inputs that arrive after the first `num_forward` outputs are given."""

    program: Program
    num_forward: int
    tangents: tuple[Ref, ...]

    def facts(self, recompute: Recompute = "auto") -> PassFacts:
        tangents = names_at(self.program, *self.tangents)
        return PassFacts(tangents=tangents, choices=Choices(recompute=recompute))


def joint(number: int, dtype: DType = DType.f32) -> Joint:
    """The first of the programs `number`, `number` + 1000, ... that is suitable."""
    found = None
    while found is None:
        found = _joint(number, dtype)
        number += 1000
    return found


def _joint(number: int, dtype: DType) -> Joint | None:
    """A random program, its sizes given as numbers, a third of its float inputs tangents; None where it has too few.

    Forward outputs are values without tangents behind them; of the backward's outputs some need nothing of it.
    """
    choose = random.Random(number)
    program = optimise(with_sizes(random_program(number, dtype))).program
    floats = [r for r, t in enumerate(program.types) if isinstance(t, Type) and t.dtype.is_float]
    given = [r for r in floats if isinstance(program.nodes[r], Input)]
    tangents = sorted(choose.sample(given, max(1, len(given) // 3)))
    late = set(tangents)
    for ref, node in enumerate(program.nodes):
        if not late.isdisjoint(operands(node)):
            late.add(ref)
    early = [r for r in floats if r not in late and r not in given]
    after = [r for r in floats if r in late]
    if not early or set(after) <= set(tangents):
        return None
    forward = choose.sample(early, min(len(early), 2))
    backward = [after[-1], choose.choice(after), None, choose.choice(early)]
    outputs = (*forward, *backward)
    return Joint(
        Program(program.nodes, program.types, program.locs, outputs, program.spaces), len(forward), tuple(tangents)
    )


def with_sizes(program: Program) -> Program:
    """`program` with its row counts as inputs too, as captured programs have them."""
    b = Builder()
    for _, size in program.spaces:
        assert isinstance(size, Symbol)
        b.add(Input(f"{size.name}_rows", AnyType(size=size)))
    where: dict[Ref, Ref] = {}
    for ref, (node, loc) in enumerate(zip(program.nodes, program.locs, strict=True)):
        where[ref] = b.add(with_operands(node, where.__getitem__), loc)
    return b.program([None if r is None else where[r] for r in program.outputs], program.spaces)


@pytest.mark.parametrize("part", range(4))
def test_edges_save_only_what_cannot_be_recomputed(part: int) -> None:
    for number in range(part, 300, 4):
        j = joint(number)
        flow = Facts(j.program).flow
        edges, free = flow.edge_spaces, flow.graph_only
        for ref in split(j.program, j.num_forward, j.facts()).saved:
            node, t = j.program.nodes[ref], j.program.types[ref]
            heavy = isinstance(node, MatMul | Gram | Push)
            random_or_unknown = isinstance(node, Aten)
            fine = isinstance(node, Input) or heavy or random_or_unknown or is_integral(j.program, ref) or ref in free
            assert not isinstance(t, Type) or t.space not in edges or fine, f"program {number} saves %{ref}: {node}"


def test_saved_values_and_tangents_are_all_the_backward_takes() -> None:
    for number in range(300):
        j = joint(number)
        verify(j.program)
        cut = split(j.program, j.num_forward, j.facts())
        verify(cut.forward.program)
        verify(cut.backward.program)
        assert len(set(cut.saved)) == len(cut.saved)
        assert cut.tangents == j.tangents and set(cut.saved).isdisjoint(j.tangents)
        taken = [n for n in cut.backward.program.nodes if isinstance(n, Input)]
        assert len(taken) == len(cut.saved) + len(cut.tangents)
        primals = [n for n in cut.forward.program.nodes if isinstance(n, Input)]
        late = {j.program.nodes[r] for r in j.tangents}
        assert late.isdisjoint(primals)


@pytest.mark.parametrize("number", range(60))
def test_never_saves_what_the_backward_reads_first_and_always_only_what_is_dear(number: int) -> None:
    j = joint(number)
    never, always = (set(split(j.program, j.num_forward, j.facts(p)).saved) for p in EXTREMES)
    late = depends(j.program, j.tangents)
    free = Facts(j.program).flow.graph_only
    read = {r for n in late for r in operands(j.program.nodes[n]) if r not in late}
    layout = Reshape | Permute | Broadcast | Slice | Const | MapOf | ToUnit
    early = ancestors(j.program, [r for r in j.program.outputs[: j.num_forward] if r is not None])
    wanted = read & ancestors(j.program, [r for r in j.program.outputs[j.num_forward :] if r is not None])
    for ref in wanted & early:
        assert ref in never or isinstance(j.program.nodes[ref], layout), f"never does not save %{ref}"
    for ref in always:
        dear = isinstance(j.program.nodes[ref], Input | MatMul | Gram | Aten)
        t = j.program.types[ref]
        large = isinstance(t, Type) and (t.space == UNIT or is_integral(j.program, ref))
        assert dear or large or ref in free, f"always saves %{ref}: {j.program.nodes[ref]}"


EXTREMES: tuple[Recompute, ...] = ("never", "always")


def depends(program: Program, roots: tuple[Ref, ...]) -> set[Ref]:
    """Every node that depends on one of `roots`."""
    found = set(roots)
    for ref, node in enumerate(program.nodes):
        if not found.isdisjoint(operands(node)):
            found.add(ref)
    return found


def check(number: int, recompute: Recompute = "auto") -> None:
    """Compares the forward and backward executables with the interpreter on the joint program."""
    j = joint(number, DType.f64 if number % 2 else DType.f32)
    forward, backward = build(compile(Request(j.program, j.facts(recompute), j.num_forward, road=AS_IT_IS)))
    assert not forward.plan.refused and not backward.plan.refused
    for graph in ZOO:
        given = with_row_counts(j.program, inputs(j.program, graph, 1), graph)
        taken = [n.name for r, n in enumerate(j.program.nodes) if isinstance(n, Input) and r not in j.tangents]
        first = forward([given[name] for name in taken])
        outputs, saved = first[: j.num_forward], first[j.num_forward :]
        late = [given[j.program.nodes[r].name] for r in j.tangents]
        got = backward([*saved, *late])
        try:
            assert_all_close([*outputs, *got], interp(j.program, given), reduction_length=MAX_ROWS, floor=1.0)
        except AssertionError as wrong:
            raise AssertionError(f"{graph.name}: {wrong}") from None
        same(backward([*saved, *late]), got, f"{graph.name}: a second backward and the first")


def with_row_counts(program: Program, given: dict[str, Tensor], graph: EdgeList) -> dict[str, Tensor | int]:
    rows = {Symbol("s0"): graph.num_src, Symbol("s1"): graph.num_dst, Symbol("s2"): len(graph.src)}
    if Space("W") not in dict(program.spaces):
        rows[Symbol("s0")] = max(graph.num_src, graph.num_dst)
    return {**given, **{f"{size.name}_rows": rows[size] for _, size in program.spaces if size in rows}}


@pytest.mark.parametrize("number", range(12))
def test_two_halves_make_the_whole(number: int) -> None:
    check(number)


@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("number", range(6))
def test_two_halves_make_the_whole_under_every_policy(number: int, recompute: Recompute) -> None:
    check(number, recompute)


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["never", "always"])
@pytest.mark.parametrize("number", range(6, 60))
def test_more_halves_make_the_whole_under_every_policy(number: int, recompute: Recompute) -> None:
    check(number, recompute)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(12, 120))
def test_more_halves_make_the_whole(number: int) -> None:
    check(number)


NEGATED = """
space V = s0
%0: V[2] f64 = input x
%1: V[2] f64 = neg %0
%2: V[2] f64 = exp %1
%3: V[2] f64 = add %1, %2
return %3
"""


def test_what_is_extracted_from_an_extract_has_names_of_its_own() -> None:
    once = extract(parse(NEGATED), [0, 2], [3]).program  # %1 of it is the input saved_2
    twice = extract(once, [1, 2], [3]).program
    assert [n.name for n in twice.nodes if isinstance(n, Input)] == ["saved_2", "saved_2_"]


NEEDS_A_TANGENT = """
space V = s0
%0: V[2] f64 = input x
%1: V[2] f64 = input tangents_1
%2: V[2] f64 = mul %0, %1
return %2, %1
"""


def test_a_forward_that_needs_a_tangent_is_refused() -> None:
    joint = parse(NEEDS_A_TANGENT)
    with pytest.raises(IRError, match="the forward needs the gradients %1 of its own outputs"):
        split(joint, 1, PassFacts(tangents=frozenset({"tangents_1"})))
