"""Message IR over random programs: the text is faithful, the verifier content, the interpreter finite."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweave.core.types import DType, Fold, Space
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import Arg, Aten, Atom, Input, MapOf, Operand, Program, Push, Type, ValueType
from graphweave.ir.message.parse import any_type, parse, read_location
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from tests.programs.compare import assert_all_close
from tests.programs.graphs import MAX_ROWS, EdgeList, zoo
from tests.programs.random_programs import inputs, random_program
from tests.programs.strategies import graphs, programs

NUMBERS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
LEAVES = NUMBERS | st.text() | st.builds(Operand, st.integers(0, 9)) | st.builds(Atom, st.text())
ARGS: st.SearchStrategy[Arg] = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4).map(tuple))


@given(programs())
@settings(max_examples=60)
def test_programs_verify_and_read_back(program: Program) -> None:
    verify(program)
    assert parse(show(program)) == program


@given(st.text(), st.lists(ARGS).map(tuple), st.dictionaries(st.text(), ARGS), st.text(), st.text(), st.integers(0))
@settings(max_examples=150)
def test_any_call_reads_back(
    target: str, args: tuple[Arg, ...], kwargs: dict[str, Arg], described: str, loc: str, serial: int
) -> None:
    t = any_type(described)
    program = Program(
        (Aten(target, args, tuple(kwargs.items()), t, serial),), (t,), (read_location(loc),), (0, None), ()
    )
    back = parse(show(program))
    assert back == program
    assert show(back) == show(program)


@given(programs(), graphs(), st.integers(0, 99))
@settings(max_examples=60)
def test_programs_give_finite_numbers(program: Program, graph: EdgeList, seed: int) -> None:
    for ref, value in zip(program.outputs, interp(program, inputs(program, graph, seed)), strict=True):
        assert value is None if ref is None else value.isfinite().all()


@given(st.integers(0, 10**6), graphs(1))
@settings(max_examples=40)
def test_precisions_agree(number: int, graph: EdgeList) -> None:
    """float32 results are rounded float64 results: no random program amplifies rounding beyond the tolerance."""
    narrow, wide = random_program(number), random_program(number, DType.f64)
    exact = inputs(narrow, graph)
    doubles = {k: v.double() if v.is_floating_point() else v for k, v in exact.items()}
    expected = [None if v is None else v.float() for v in interp(wide, doubles)]
    assert_all_close(interp(narrow, exact), expected, reduction_length=MAX_ROWS, floor=1.0)


def on_edges(t: ValueType) -> bool:
    return isinstance(t, Type) and t.space == Space("E")


@given(programs(), graphs(2))
@settings(max_examples=40)
def test_edge_order_does_not_matter(program: Program, graph: EdgeList) -> None:
    """Permuting the edges permutes what lies on edges and leaves the rest as it is."""
    order = torch.randperm(len(graph.src), generator=torch.Generator().manual_seed(0))
    given_here = inputs(program, graph)
    edge_inputs = {n.name for n in program.nodes if isinstance(n, Input) and on_edges(n.type)}
    moved = {name: x[order] if name in edge_inputs else x for name, x in given_here.items()}
    before, after = interp(program, given_here), interp(program, moved)
    for i, ref in enumerate(program.outputs):
        if ref is not None and on_edges(program.types[ref]):
            before[i] = before[i][order]
    assert_all_close(after, before, reduction_length=MAX_ROWS, floor=1.0)


@given(programs())
@settings(max_examples=40)
def test_rebuilding_a_program_changes_nothing(program: Program) -> None:
    """The builder finds no node twice in what it built, and operands survive renaming."""
    b = Builder()
    refs = [b.add(with_operands(n, lambda r: r), loc) for n, loc in zip(program.nodes, program.locs, strict=True)]
    assert refs == list(range(len(program.nodes)))
    assert b.program(program.outputs, program.spaces) == program
    shifted = with_operands(program.nodes[-1], lambda r: r + 1000)
    assert operands(shifted) == tuple(r + 1000 for r in operands(program.nodes[-1]))


def test_random_programs_say_all_there_is() -> None:
    """A few hundred random programs contain every node, every fold, both index widths, one and two node spaces."""
    seen: set[str] = set()
    for number in range(300):
        program = random_program(number)
        assert random_program(number) == program
        seen |= {type(n).__name__ for n in program.nodes}
        seen |= {n.fold.value for n in program.nodes if isinstance(n, Push)}
        seen |= {f"wrap {n.wrap}" for n in program.nodes if isinstance(n, MapOf)}
        seen |= {f"out on {getattr(program.types[r], 'space', '')}" for r in program.outputs if r is not None}
        seen.add(f"{len(program.spaces)} spaces")
    wanted = {
        "Input", "Const", "MapOf", "ToUnit", "Pull", "Push", "Pointwise", "Cast", "Reduce", "Reshape", "Broadcast",
        "Permute", "Slice", "Pad", "Concat", "MatMul", "Gram", *(f.value for f in Fold),
        "wrap True", "wrap False",
        "out on V", "out on W", "out on E", "out on unit", "2 spaces", "3 spaces",
    }  # fmt: skip
    assert seen == wanted


def test_the_zoo_is_as_awkward_as_it_says() -> None:
    members = {g.name: g for g in zoo(3)}
    for g in members.values():
        assert len(g.src) == len(g.dst) <= MAX_ROWS and max(g.num_src, g.num_dst) <= MAX_ROWS
        assert not len(g.src) or (int(g.src.max()) < g.num_src and int(g.dst.max()) < g.num_dst)
    assert int((members["hub_dst"].dst == 5).sum()) >= 24
    assert len(members["isolated"].dst.unique()) < members["isolated"].num_dst
    assert torch.equal(members["sorted_by_dst"].dst, members["unsorted"].dst.sort().values)
    assert not torch.equal(members["unsorted"].dst, members["unsorted"].dst.sort().values)
    assert any(not g.square for g in members.values())
