"""The tape IR: its text, its verifier, and the planning of memory, on tapes written by hand and random ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import graphweave
import graphweave.ir.tape
from graphweave.analysis.facts import Facts
from graphweave.compiler.contract import Contract
from graphweave.compiler.plan import Plan, PlanName, make_plan
from graphweave.core.errors import IRError, ParseError
from graphweave.core.options import Options
from graphweave.core.ranks import LinkName
from graphweave.core.settings import override
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Space
from graphweave.execute.calls import NodeCalls
from graphweave.execute.executable import Steps
from graphweave.execute.plan_memory import plan_memory
from graphweave.execute.runner_traits import RunnerTraits
from graphweave.execute.tape_of import TapeMaker, finished, tape_of
from graphweave.ir.message.layouts import Promise
from graphweave.ir.message.nodes import Ref
from graphweave.ir.message.parse import parse as parse_program
from graphweave.ir.tape import nodes as tape
from graphweave.ir.tape.limits import Behind, Least, Most, Reach, RowsOf, StepLimit
from graphweave.ir.tape.nodes import Tape
from graphweave.ir.tape.parse import parse
from graphweave.ir.tape.show import show
from graphweave.ir.tape.verify import verify
from graphweave.ir.tape.walk import frees_of, makes_of
from graphweave.points import knn_graph
from tests.programs.random_programs import random_program
from tests.support import random_graph

V, E = Space("V"), Space("odd space")
LINK = LinkName("part0", "_N")

LIMIT = StepLimit(
    Least(frozenset((RowsOf(V), Reach(90, 91, Most(frozenset((RowsOf(V), RowsOf(E)))))))),
    Behind(90, Most(frozenset())),
    ((10, None), (10, RowsOf(E))),
)
"""A limit that has every kind of limit."""

EVERY_KIND = Tape(
    "odd name",
    (0, 1, 2),
    (
        tape.LookForEdits(1),
        tape.OnceAGraph((5,), (0,), (E,), Tape("inner", (7,), (), (tape.Output(7),), (E,)), (0,), (0,), "part0", True),
        tape.Count(V, tape.Computed(read("s0*2 + s1"), tuple(
            tape.Known(read(s), n) for s, n in (("s0", tape.DimOf(0, 1)), ("s1", tape.NumberOf(2)))
        ))),
        tape.CallNode(6, (V, E), (0, None), counted=True),
        tape.Narrow(6),
        tape.Count(Space("W"), tape.DistinctOf(6)),
        tape.Count(Space("X"), tape.Fixed(3)),
        tape.RunKernel(3, (V,), (1,), (0,), (8,)),
        tape.Check(3, (V,), (0, 1), (8,)),
        tape.RunKernels(
            (V, E), (90, 91), (1,), (0,), (9,),
            (tape.Member(4, (0, 11), (10,), LIMIT), tape.Member(5, (10,), (9,), StepLimit(None, None, ()))),
            (tape.Transpose(11, 0),), (tape.Inside(11, UNIT, 64, 0), tape.Inside(10, V, 16, 1)), (tape.Room(9, LINK),),
        ),
        tape.InChunks(
            V, 64, (0, 8), (8,), (V,), (40,), (41,),
            Tape("V_chunk", (0, 8), (tape.CallNode(40, (), (8, 0)), tape.CallNode(41, (V,), (40,))),
                 (tape.Output(40), tape.Output(41)), (V,)),
        ),
        tape.Begin(20, 9, in_place=True),
        tape.FirstPart(6, (V,), (1,), (0, 20), (21,), (tape.Late(20, 90, V, LINK),), (tape.Room(21, LINK),)),
        tape.Wait(20),
        tape.SecondPart(6),
        tape.FirstPart(7, (V,), (), (0,), (22,), back=LINK),
        tape.Begin(23, 22),
        tape.SecondPart(7),
        tape.Wait(23),
        tape.OwnMemory(30, 23, Promise((1, 0), own=True)),
        tape.Taken((5,)),
        tape.Saved(()),
        tape.Settle(0, 30, Promise(None, own=False, fresh=True, loose=True)),
        tape.Settle(1, 21, Promise((), own=True)),
    ),
    (tape.Output(30), tape.Output(21), tape.Output(5, lent=True), tape.Output(None)),
    (E,),
    (4,),
)  # fmt: skip


def example() -> Tape:
    page = Path(graphweave.ir.tape.__file__).with_name("GRAMMAR.md").read_text()
    return parse(page.split("```")[1].removeprefix("text"))


@pytest.mark.parametrize("made", [EVERY_KIND, plan_memory(EVERY_KIND), Tape("nothing", (), (), ())])
def test_text_reads_back_to_an_equal_tape(made: Tape) -> None:
    verify(made)
    assert parse(show(made)) == made
    assert {type(step) for step in plan_memory(EVERY_KIND).steps} == set(tape.Step.__args__)  # type: ignore[attr-defined]


def test_the_grammar_page_shows_a_tape() -> None:
    verify(example())
    assert show(parse(show(example()))) == show(example())
    assert plan_memory(example()) == example()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "expected 'tape'"),
        ("tape a() { return [] } x", "expected the end of the text, got 'x'"),
        ("tape a() { watch 3 return [] }", "expected an operand such as %3"),
        ("tape a() { count V = size s0 with [] return [] }", "expected a quoted string"),
        ("tape a() { settle 0 = %1 order [] return [] }", "expected 'in'"),
        ("tape a() { settle 0 = %1 in order [0 1] return [] }", "expected ','"),
        ("tape a() { begin %1 from %2 back return [] }", "got 'back return"),
    ],
)
def test_what_is_no_tape_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ParseError, match=complaint.replace("[", r"\[")):
        parse(text)


# ---------------------------------------------------------------- the verifier

RUN = tape.RunKernels(
    (V,), (), (), (0,), (3,), (tape.Member(0, (0,), (1,)), tape.Member(1, (1,), (2,)), tape.Member(2, (2,), (3,))),
    (), (tape.Inside(1, V, 8, 0), tape.Inside(2, V, 8, 1)),
)  # fmt: skip
COUNT = tape.Count(V, tape.DimOf(0, 0))
FIRST = tape.FirstPart(0, (V,), (), (0,), (2,))


@pytest.mark.parametrize(
    ("steps", "outputs", "complaint"),
    [
        ([tape.CallNode(1, (), (2,))], [1], r"step 0 \(%1 = call \[\]\(%2\)\): expected %2 to be made before"),
        ([tape.CallNode(1, (V,), (0,))], [1], "expected the rows of V to be counted before"),
        ([COUNT, COUNT], [], "step 1 .*expected one count of the rows of V"),
        ([tape.Count(V, tape.DimOf(7, 0))], [], "expected %7 to be made before"),
        ([tape.CallNode(0, (), ())], [0], "expected one step that makes %0"),
        ([tape.Free((0,)), tape.CallNode(1, (), (0,))], [1], r"expected %0 to be alive \(got it is freed by .*step 0"),
        ([tape.Free((0,)), tape.Free((0,))], [], "expected %0 to be alive"),
        ([tape.Free((0,))], [0], "expected no constant and no output to be freed"),
        ([tape.Free((9,))], [], "expected no constant and no output to be freed"),
        ([], [5], "the return: expected %5 to be made before"),
        ([tape.Begin(1, 0)], [], "the return: expected a wait for %1"),
        ([tape.Begin(1, 0), tape.Begin(1, 0)], [], "expected %1 to begin once"),
        ([tape.Begin(1, 0), tape.CallNode(2, (), (1,))], [2], r"expected %1 to be there \(got no wait after"),
        ([tape.Wait(1)], [1], "expected %1 to have begun"),
        ([COUNT, FIRST], [], "expected the second part of kernel 0"),
        ([tape.SecondPart(0)], [], "expected the first part of kernel 0 before"),
        ([COUNT, FIRST, tape.CallNode(3, (), (2,)), tape.SecondPart(0)], [3], "expected all rows of %2"),
        ([COUNT, FIRST, tape.Free((2,)), tape.SecondPart(0)], [], "expected all rows of %2"),
        ([COUNT, FIRST, tape.Free((0,)), tape.SecondPart(0)], [], "expected %0 to be alive"),
        (
            [COUNT, replace(FIRST, reads=(0, 7), late=(tape.Late(7, 8, V, LINK),)), tape.SecondPart(0)], [],
            "expected %7 to be read, and to have begun",
        ),
        ([tape.Settle(1, 0, Promise(None))], [0], "expected one of 1 results, settled once"),
        ([tape.OnceAGraph((1,), (), (), Tape("in", (0,), (), ()))], [1], "expected 1 values, 0 row counts and up to 0"),
        ([tape.OnceAGraph((), (), (), Tape("in", (), (tape.Free((3,)),), ()))], [], "tape in, step 0"),
        ([RUN], [3], "expected the rows of V"),
        ([COUNT, replace(RUN, members=RUN.members[::-1])], [3], "expected %2 to be made before run 2"),
        ([COUNT, replace(RUN, inside=RUN.inside[:1])], [3], r"expected a place for each of %1, %2, %3 \(got %1, %3\)"),
        ([COUNT, replace(RUN, transposes=(tape.Transpose(5, 6),))], [3], "expected %6, which is transposed, among"),
        (
            [COUNT, replace(RUN, members=(*RUN.members[:2], tape.Member(2, (2,), (3,), LIMIT)))], [3],
            "expected maps and rows that tell the limit of run 2",
        ),
        ([COUNT, replace(RUN, frees=(9,))], [3], "expected only values that it reads to be freed"),
        ([COUNT, replace(RUN, rooms=(tape.Room(1, LINK),))], [3], "expected room only behind a value that it writes"),
        (
            [COUNT, replace(RUN, inside=(tape.Inside(1, V, 8, 0), tape.Inside(2, V, 8, 0)))], [3],
            r"expected values that are alive at once in different slots \(got %1 and %2 in slot 0",
        ),
        (
            [COUNT, replace(RUN, inside=(tape.Inside(1, E, 8, 0), tape.Inside(2, V, 8, 1)))], [3],
            "expected the rows of odd space, in which %1 lies",
        ),
    ],
)  # fmt: skip
def test_the_verifier_names_the_step(steps: list[tape.Step], outputs: list[Ref], complaint: str) -> None:
    with pytest.raises(IRError, match=complaint):
        verify(Tape("t", (0,), tuple(steps), tuple(map(tape.Output, outputs)), (), (9,)))


def test_what_is_an_input_is_no_constant() -> None:
    with pytest.raises(IRError, match="expected inputs and constants that differ"):
        verify(Tape("t", (0,), (), (), (), (0,)))


# ---------------------------------------------------------------- memory


def planned(*steps: tape.Step, inputs: tuple[Ref, ...] = (0,), outputs: tuple[Ref, ...] = ()) -> tuple[tape.Step, ...]:
    made = plan_memory(Tape("t", inputs, steps, tuple(map(tape.Output, outputs))))
    verify(made)
    return made.steps


def test_values_are_freed_after_their_last_use() -> None:
    first, second = tape.CallNode(2, (), (0,)), tape.CallNode(3, (), (2, 0))
    assert planned(first, second, inputs=(0, 1), outputs=(3,)) == (
        tape.Free((1,)), first, second, tape.Free((0, 2)),
    )  # fmt: skip
    assert planned(first, second, outputs=(0,)) == (first, second, tape.Free((2, 3)))


def test_kernels_in_one_native_call_free_what_only_they_read() -> None:
    """The indices of a call must be there until it is over, so they are freed after it."""
    run = replace(RUN, indices=(7,), reads=(0, 6, 7))
    count = tape.Count(V, tape.Fixed(3))
    steps = planned(count, run, inputs=(0, 6, 7), outputs=(3,))
    assert steps[0] == count and steps[2:] == (tape.Free((7,)),)
    assert isinstance(steps[1], tape.RunKernels) and steps[1].frees == (0, 6)


def test_a_kernel_in_two_parts_keeps_its_values_until_the_second() -> None:
    count, back = tape.Count(V, tape.Fixed(3)), replace(FIRST, back=LINK)
    steps = planned(count, back, tape.Begin(5, 2), tape.SecondPart(0), tape.Wait(5), outputs=(5,))
    assert steps[4:] == (tape.Free((0, 2)), tape.Wait(5))


def test_values_inside_share_a_slot_once_the_first_is_dead() -> None:
    """A chain 0 -> 1 -> 2 -> 3 -> 4 of kernels: %1 and %3 share a slot. %2, which kernel 2 reads, is alive while it
    writes %3."""
    run = tape.RunKernels(
        (V,), (), (), (0,), (5,), tuple(tape.Member(i, (i,), (i + 1,)) for i in range(5)), (),
        tuple(tape.Inside(i, V, i * 8, i) for i in range(1, 5)),
    )  # fmt: skip
    made = planned(tape.Count(V, tape.Fixed(3)), run, outputs=(0, 5))[-1]
    assert isinstance(made, tape.RunKernels)
    assert {one.value: one.slot for one in made.inside} == {1: 0, 2: 1, 3: 0, 4: 1}
    other = replace(run, rows=(V, E), inside=(*run.inside[:2], tape.Inside(3, E, 24, 2), *run.inside[3:]))
    counts = tape.Count(V, tape.Fixed(3)), tape.Count(E, tape.Fixed(9))
    made = planned(*counts, other, outputs=(0, 5))[-1]
    assert isinstance(made, tape.RunKernels)
    assert {one.value: one.slot for one in made.inside} == {1: 0, 2: 1, 3: 2, 4: 1}, "of other spaces, none share"


def test_the_slot_nearest_in_size_is_taken() -> None:
    run = tape.RunKernels(
        (V,), (), (), (0,), (4,),
        (
            tape.Member(0, (0,), (1, 2)), tape.Member(1, (1, 2), (9,)),
            tape.Member(2, (9,), (3,)), tape.Member(3, (3,), (4,)),
        ),
        (), tuple(tape.Inside(r, V, size, r) for r, size in ((1, 400), (2, 16), (9, 4), (3, 64))),
    )  # fmt: skip
    made = planned(tape.Count(V, tape.Fixed(3)), run, outputs=(0, 4))[-1]
    assert isinstance(made, tape.RunKernels)
    slots = {one.value: one.slot for one in made.inside}
    assert slots[3] == slots[2] != slots[1]


# ---------------------------------------------------------------- random tapes


@st.composite
def tapes(draw: st.DrawFn) -> Tape:
    """Tapes of calls, kernels, native calls, exchanges and kernels in two parts, whose values are read anywhere."""
    inputs, constants = tuple(range(draw(st.integers(0, 3)))), (100,)
    there, steps, next_ref = [*inputs, *constants], [tape.Count(V, tape.Fixed(3))], 3

    def some(least: int = 0) -> tuple[Ref, ...]:
        return tuple(draw(st.lists(st.sampled_from(there), min_size=least, max_size=3, unique=True)))

    def new() -> Ref:
        nonlocal next_ref
        next_ref += 1
        return next_ref

    for at in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["call", "kernel", "kernels", "kernels", "exchange", "parts", "own"]))
        if kind == "call":
            steps.append(tape.CallNode(new(), (V,), (*some(), None), draw(st.booleans())))
        elif kind == "kernel":
            steps.append(tape.RunKernel(at, (V,), some(), some(), (new(), new())))
        elif kind == "kernels":
            run = draw(native_calls(some(1), new, at))
            steps.append(replace(run, indices=some()))
        elif kind == "exchange":
            steps += [tape.Begin(ref := new(), some(1)[0]), tape.Wait(ref)]
        elif kind == "parts":
            moving, (source,) = new(), some(1)[:1]
            late = (tape.Late(moving, 200, V, LINK),)
            first = tape.FirstPart(at, (V,), some(), (*some(), moving), (new(),), late)
            steps += [tape.Begin(moving, source), first, tape.Wait(moving), tape.SecondPart(at)]
            there.append(moving)
        else:
            steps.append(tape.OwnMemory(new(), some(1)[0], Promise(draw(st.none() | st.just((0, 1))))))
        there += [r for step in steps[-4:] for r in made_by(step) if r not in there]
    outputs = tuple(tape.Output(r, draw(st.booleans())) for r in some())
    return Tape("random", inputs, tuple(steps), outputs, (), constants)


def made_by(step: tape.Step) -> tuple[Ref, ...]:
    match step:
        case tape.CallNode(value) | tape.Wait(value) | tape.OwnMemory(value):
            return (value,)
        case tape.RunKernel(writes=writes) | tape.RunKernels(writes=writes) | tape.FirstPart(writes=writes):
            return writes
        case _:
            return ()


@st.composite
def native_calls(draw: st.DrawFn, reads: tuple[Ref, ...], new: object, at: int) -> tape.RunKernels:
    known, members = list(reads), []
    turned = tape.Transpose(new(), reads[0]) if draw(st.booleans()) else None  # type: ignore[operator]
    known += [] if turned is None else [turned.value]
    for i in range(draw(st.integers(1, 5))):
        given = tuple(draw(st.lists(st.sampled_from(known), max_size=3, unique=True)))
        members.append(tape.Member(at * 10 + i, given, tuple(new() for _ in range(draw(st.integers(1, 2))))))  # type: ignore[operator]
        known += members[-1].writes
    written = [r for m in members for r in m.writes]
    writes = tuple(draw(st.lists(st.sampled_from(written), min_size=1, unique=True)))
    hidden = [*([] if turned is None else [turned.value]), *(r for r in written if r not in writes)]
    inside = (
        tape.Inside(r, draw(st.sampled_from([V, UNIT])), draw(st.integers(1, 9)), slot) for slot, r in enumerate(hidden)
    )
    turns = () if turned is None else (turned,)
    return tape.RunKernels((V,), (), (), reads, writes, tuple(members), turns, tuple(inside))


@given(tapes())
def test_text_of_random_tapes_reads_back(made: Tape) -> None:
    verify(made)
    assert parse(show(made)) == made
    assert parse(show(plan_memory(made))) == plan_memory(made)


@given(tapes())
def test_planned_memory_holds_what_is_alive(made: Tape) -> None:
    """Each value is freed once, unless it is a result, at the step after which nobody reads it. Nothing is overwritten
    in a slot that a kernel still reads."""
    after = plan_memory(made)
    verify(after)
    assert plan_memory(after) == after
    freed = Counter(r for step in after.steps for r in frees_of(step))
    results = {out.value for out in made.outputs}
    assert freed == Counter({*made.inputs, *(r for step in made.steps for r in made_by(step))} - results)
    for before, step in zip(
        (s for s in made.steps if isinstance(s, tape.RunKernels)),
        (s for s in after.steps if isinstance(s, tape.RunKernels)),
        strict=True,
    ):
        assert {(i.value, i.space, i.nbytes) for i in before.inside} == {
            (i.value, i.space, i.nbytes) for i in step.inside
        }
        slots, held = {one.value: one.slot for one in step.inside}, dict[int, Ref]()
        held.update((slots[t.value], t.value) for t in step.transposes)
        for member in step.members:
            fresh = {slots[r]: r for r in member.writes if r in slots}
            assert len(fresh) == sum(r in slots for r in member.writes)
            assert fresh.keys().isdisjoint(slots[r] for r in member.reads if r in slots)
            assert all(held[slots[r]] == r for r in member.reads if r in slots)
            held |= fresh


# ---------------------------------------------------------------- of plans


def plan_of(number: int) -> tuple[Plan, Steps]:
    plan = make_plan(PlanName("test"), Facts(random_program(number, DType.f32)), Options(), {})
    return plan, Steps.of(plan)


@pytest.mark.parametrize("number", range(12))
def test_tapes_of_random_programs(number: int) -> None:
    """They are verified where they are made. Nothing is compiled."""
    plan, steps = plan_of(number)
    made = tape_of(plan, steps.kernels, NodeCalls(plan), prelude=steps.prelude)
    assert parse(show(made)) == made and plan_memory(made) == made
    assert tuple(out.value for out in made.outputs) == plan.program.outputs
    runs = [m.kernel for step in made.steps if isinstance(step, tape.RunKernels) for m in step.members]
    alone = [step.kernel for step in made.steps if isinstance(step, tape.RunKernel)]
    assert len({*runs, *alone}) == len(runs) + len(alone) and {*runs, *alone} <= steps.kernels.keys()
    checked = tape_of(plan, steps.kernels, NodeCalls(plan), Contract(verify=True), prelude=steps.prelude)
    kinds = [type(step) for step in checked.steps if not isinstance(step, tape.Free | tape.CallNode | tape.Count)]
    assert tape.RunKernels not in kinds
    assert kinds.count(tape.RunKernel) == kinds.count(tape.Check) == len(steps.kernels)


@pytest.mark.parametrize("number", range(12))
def test_a_runner_may_have_an_order_of_its_own(number: int) -> None:
    """Then nodes are computed where they are read, nothing is counted, and kernels are divided as the runner says."""
    plan, steps = plan_of(number)
    traits = RunnerTraits(
        lambda i: True, lambda ref: (), lambda members: ([i] for i in members), counts=False, transposes=False,
        in_order=False,
    )  # fmt: skip
    made = finished(TapeMaker(plan, steps.kernels, traits).make())
    assert parse(show(made)) == made
    assert not any(isinstance(step, tape.Count) for step in made.steps)
    native = [step for step in made.steps if isinstance(step, tape.RunKernels)]
    assert all(len(step.members) == 1 and not step.transposes for step in native)


COUNTED_LATE = [
    """
%2: E[] f32 = const 1.0
%3: E -> unit = tounit E
%4: unit[] f32 = push.sum %2, %3
%5: V[3] f32 = sin %0
""",
    """
%2: V[3] f32 = sin %0
%3: E[] f32 = const 1.0
%4: E[3] f32 = mul %3, %1
%5: E[3] f32 = sin %4
""",
    """
%2: E[] f32 = const 1.0
%3: E[3] f32 = mul %2, %1
%4: E[3] f32 = sin %3
%5: V[3] f32 = sin %0
""",
]
"""Programs that need the rows of E before they have computed the sine of %0, which tells how many there are."""


@pytest.mark.parametrize("middle", COUNTED_LATE, ids=["by a prelude", "by a kernel after it", "by a kernel before it"])
def test_a_kernel_runs_before_rows_are_counted_by_its_result(middle: str) -> None:
    """Its result is made once, by the kernel, though the schedule knows nothing of what counts rows."""
    head = "space V = s0\nspace E = u0\n%0: V[3] f32 = input x\n%1: unit[3] f32 = input w"
    lines = [line for line in middle.splitlines() if line]
    sine = next(line.split(":")[0] for line in lines if line.endswith("sin %0"))
    last = next(line.split(":")[0] for line in reversed(lines) if not line.endswith("sin %0"))
    tail = f"""%6: any "i64[2, u0]" = call aten.nonzero_static.default({sine})
%7: V[3] f32 = cos {sine}
%8: any "Sym(u0)" = call aten.sym_size.int(%6, 1)
return {last}, %6, %7, %8
"""
    plan = make_plan(PlanName("test"), Facts(parse_program("\n".join((head, *lines, tail)))), Options(), {})
    steps = Steps.of(plan)
    made = tape_of(plan, steps.kernels, NodeCalls(plan), prelude=steps.prelude)  # verified
    at = {r: i for i, step in enumerate(made.steps) for r in makes_of(step)}
    counted = next(i for i, step in enumerate(made.steps) if isinstance(step, tape.Count) and step.space == Space("E"))
    assert isinstance(made.steps[at[int(sine[1:])]], tape.RunKernels)
    assert at[int(sine[1:])] < at[6] < counted < at[int(last[1:])]


# ---------------------------------------------------------------- of compiled functions


def test_tapes_of_a_compiled_function_are_dumped(tmp_path: Path) -> None:
    def layer(x: torch.Tensor, edge_index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        src, dst = edge_index
        degree = torch.zeros(x.shape[0]).index_add(0, dst, torch.ones(src.shape[0])).clamp(min=1)
        h = torch.relu(torch.zeros_like(x).index_add(0, dst, x[src]) / degree[:, None])
        return torch.sort(h @ w).values

    x, w = torch.randn(9, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    with override(dump=tmp_path):
        graphweave.compile(layer)(x, random_graph(9, 9, 30), w).sum().backward()
    forward, backward = (parse(f.read_text()) for f in sorted(tmp_path.glob("*.tape.txt")))
    for made in (forward, backward):
        verify(made)
        assert plan_memory(made) == made
    kinds = {type(step) for step in forward.steps}
    assert any(isinstance(step, tape.OnceAGraph) and step.looks for step in forward.steps)
    assert kinds >= {tape.OnceAGraph, tape.Count, tape.RunKernels, tape.CallNode, tape.Free}
    assert any(isinstance(step, tape.CallNode) and step.counted for step in forward.steps)


def test_a_tape_says_which_rows_its_kernels_compute(tmp_path: Path) -> None:
    def loss(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.relu(torch.zeros_like(x).index_add(0, dst, x[src]) + x)
        return (x[: y.shape[0]] - y).square().sum()

    with override(dump=tmp_path):
        graphweave.compile(loss)(torch.randn(9, 4, requires_grad=True), *random_graph(9, 9, 30), torch.randn(3, 4))
    made = parse(next(tmp_path.glob("*.tape.txt")).read_text())
    limits = [m.limit for step in made.steps if isinstance(step, tape.RunKernels) for m in step.members]
    assert any(limit is not None and limit.maps for limit in limits)


@pytest.mark.parametrize("door", [graphweave.compile, torch.compile])
def test_neighbours_of_picked_points_are_compiled(door: Callable[..., Any]) -> None:
    """Their number follows from points that a kernel picks, and a norm counts them before it is their turn."""
    norms = torch.nn.ModuleList(torch.nn.BatchNorm1d(5, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def near_picked(points: Tensor, batch: Tensor) -> Tensor:
        picked = torch.unique(batch * 2)
        points, batch = points[picked], batch[picked]
        h = norms[0](points @ weight).relu()
        src, dst = knn_graph(points, 2, batch)
        messages = norms[1]((points[src] - points[dst]) @ weight) * h[src]
        return torch.zeros_like(h).index_add(0, dst, messages)

    compiled = door(near_picked, **({} if door is graphweave.compile else {"backend": "graphweave"}))
    arguments = torch.randn(40, 3, dtype=torch.float64), torch.arange(40) // 2
    results = [f(*arguments) for f in (compiled, near_picked)]
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*(torch.autograd.grad(out.square().sum(), weight)[0] for out in results))
