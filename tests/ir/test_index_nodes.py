"""Nodes whose values are computed once per graph: pairs, indices of unions, row counts of segments, and checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.core.errors import IndexRangeError, IRError, ParseError
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Space
from graphweave.execute.calls import call_step
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.infer import infer
from graphweave.ir.message.interp import interp
from graphweave.ir.message.nodes import (
    After,
    AnyType,
    AssertIndex,
    Chosen,
    Distinct,
    DistinctKey,
    DistinctRow,
    DistinctType,
    EachItem,
    EqualRuns,
    Gram,
    Input,
    Inverse,
    JoinIndices,
    Kept,
    LaidOut,
    MapOf,
    MapType,
    MatMul,
    Node,
    NumbersOfSegments,
    Order,
    Own,
    Places,
    Program,
    Pull,
    Push,
    Ref,
    Reordered,
    Rounds,
    RowsOfSegments,
    Type,
    ValueType,
)
from graphweave.ir.message.parse import any_type, parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.passes.moves import pairs_in
from graphweave.passes.rules.compact import compact
from tests.programs.graphs import zoo

V, W, E, F, P, U = (Space(name) for name in ("V", "W", "E", "F", "P", "U"))
index, wide = Type(E, (), DType.i64), Type(E, (3,), DType.f32)
of = DistinctType(E, P)

# ---------------------------------------------------------------- text, types, operands

WELL_TYPED: list[tuple[Node, tuple[ValueType, ...], ValueType]] = [
    (Distinct((0, 1), P), (index, Type(E, (), DType.i32)), of),
    (DistinctRow(0), (of,), index),
    (DistinctKey(0, 0), (of,), Type(P, (), DType.i64)),
    (DistinctKey(0, 1), (of,), Type(P, (), DType.i64)),
    (JoinIndices((0, 1), (V, W), (1, 0), (False, False), U), (index, Type(F, (), DType.i32)), Type(U, (), DType.i64)),
    (JoinIndices((0, 0), (UNIT,), (0, 0), (False, True), U), (index,), Type(U, (), DType.i64)),
    (RowsOfSegments((V, UNIT, W), (2, 2, 0), U), (), Type(U, (), DType.i64)),
    (NumbersOfSegments((V, UNIT, W), (1, 0, 7), U), (), Type(U, (), DType.i64)),
    (EqualRuns(V, E), (), Type(E, (), DType.i64)),
    (Rounds(V, E), (), Type(E, (), DType.i64)),
    (EachItem(0, U, P), (MapType(E, V),), Type(P, (), DType.i64)),
    (Places(0, 1, V, "degree"), (index, Type(E, (), DType.i32)), Type(V, (), DType.i64)),
    (Inverse(0, U), (Type(V, (), DType.i64),), Type(U, (), DType.i64)),
    (Reordered(0, 1), (Type(V, (3,), DType.f32), Type(U, (), DType.i64)), Type(U, (3,), DType.f32)),
    (Order((0, 1, 0), (True, False, False)), (index, Type(E, (), DType.f32)), index),
    (Chosen(0, P), (Type(E, (), DType.bool),), Type(P, (), DType.i64)),
    (After(0, (1, 2)), (wide, index, of), wide),
    (After(0, ()), (wide,), wide),
    (AssertIndex(0, 5), (Type(E, (3, 1), DType.i64),), any_type("none")),
    (LaidOut(0, (1, 0)), (wide,), wide),
    (LaidOut(0, (2, 0, 1), True), (any_type("f32[2, s0, 4]"),), any_type("f32[2, s0, 4]")),
    (Own(0, ()), (Type(UNIT, (), DType.f32),), Type(UNIT, (), DType.f32)),
    (Kept(0), (wide,), wide),
]


@pytest.mark.parametrize(("node", "given", "t"), WELL_TYPED)
def test_each_node_has_a_type_and_text_that_reads_back(node: Node, given: tuple[ValueType, ...], t: ValueType) -> None:
    assert infer(node, given) == t
    count = len(given)
    first = [Input(f"in{i}", g) if isinstance(g, Type | AnyType) else Distinct((0, 0), P) for i, g in enumerate(given)]
    spaces = tuple((s, None) for s in (V, W, E, F, P, U))
    program = Program((*first, node), (*given, t), (*(NOWHERE,) * count, Location("m.py", 1, "x")), (), spaces)
    assert parse(show(program)) == program
    assert set(operands(node)) == set(range(count))
    assert operands(with_operands(node, lambda r: r + 7)) == tuple(r + 7 for r in operands(node))


MERGED = """\
space V = s0
space W = s1
space E = s2
space F = s3
space U = s2 + s3
space N = s0 + s1
space P = ""
%0: V[4] f32 = input x
%1: E[] i64 = input src
%2: F[] i64 = input rows
%3: U[] i64 = joinindices %1, %2 of=[V, W] at=[0, 1] wraps=[false, true] space=U  # net.py:3 x[src]
%4: U[] i64 = numbersofsegments of=[E, F] numbers=[0, 1] space=U
%5: N[] i64 = rowsofsegments of=[W, V] at=[1, 0] space=N
%6: distinct U -> P = distinct %4, %3 P
%7: U[] i64 = distinctrow %6
%8: P[] i64 = distinctkey %6 0
%9: V[4] f32 = after %0, %7, %8
%10: any "none" = assertindex %1 7
return %5, %7, %8, %9
"""


def test_text_of_the_nodes() -> None:
    program = parse(MERGED)
    verify(program)
    assert show(program) == MERGED


@pytest.mark.parametrize("name", ["pairs", "pairs V", "any", "P_05e7c55a_d05572ce"])
def test_a_space_may_have_any_name(name: str) -> None:
    space = Space(name)
    types: tuple[ValueType, ...] = (
        Type(space, (), DType.i64),
        MapType(space, V),
        MapType(V, space),
        DistinctType(space, P),
    )
    nodes: tuple[Node, ...] = (
        Input(name, Type(space, (), DType.i64)),
        MapOf(0, V),
        MapOf(0, space),
        Distinct((0, 0), P),
    )
    program = Program(nodes, types, (NOWHERE,) * 4, (0,), ((space, read("s0")), (V, read("s1")), (P, None)))
    assert parse(show(program)) == program


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("distinct %0, P", "expected an operand"),
        ("distinct %0, %0", "expected ',' or a name"),
        ("assertindex %0 x", "expected an integer"),
        ("after", "expected an operand such as %3, got 'the end of the line'"),
    ],
)
def test_parse_says_what_a_node_lacks(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        parse(f"%0: E[] i64 = {text}\nreturn")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("node", "given", "complaint"),
    [
        (Distinct((0, 1), P), (index, Type(F, (), DType.i64)), "indices of the same rows"),
        (Distinct((0, 1), P), (index, wide), "one number a row"),
        (Distinct((), P), (), "indices of the same rows"),
        (Distinct((0,), P), (Type(UNIT, (), DType.i64),), "indices of the same rows"),
        (Places(0, 1, V, "degree"), (index, Type(F, (), DType.i64)), "indices of the same edges"),
        (Places(0, 1, V, "hilbert"), (index, index), "an order of rows"),  # type: ignore[arg-type]
        (Inverse(0, E), (index,), "a permutation"),
        (Reordered(0, 1), (Type(UNIT, (3,), DType.f32), index), "their places among rows of another space"),
        (Reordered(0, 1), (Type(V, (3,), DType.f32), wide), "one number a row"),
        (Inverse(0, U), (Type(V, (), DType.i32),), "a permutation"),
        (Distinct((0, 0), E), (index,), "indices of the same rows"),
        (Distinct((0, 0), UNIT), (index,), "indices of the same rows"),
        (Distinct((0, 1), P), (index, any_type("i64[2, s0]")), "must be a value"),
        (DistinctKey(0, 0), (index,), "must be distinct rows"),
        (DistinctKey(0, 0), (any_type("distinct P"),), "must be distinct rows"),
        (DistinctKey(1, 0), (index,), "is not an earlier node"),
        (MapOf(0, P), (of,), "must be a value"),
        (JoinIndices((0, 0), (V,), (0,), (False, False), U), (index,), "a segment and a sign for each"),
        (JoinIndices((0,), (V,), (0,), (), U), (index,), "a segment and a sign for each"),
        (JoinIndices((0,), (V,), (1,), (False,), U), (index,), "segments among 1"),
        (JoinIndices((0,), (V,), (-1,), (False,), U), (index,), "segments among 1"),
        (JoinIndices((), (V,), (), (), U), (), "segments among 1"),
        (JoinIndices((0,), (V,), (0,), (False,), UNIT), (index,), "a space for their rows"),
        (JoinIndices((0,), (V,), (0,), (False,), U), (Type(UNIT, (), DType.i64),), "indices of rows"),
        (JoinIndices((0,), (V,), (0,), (False,), U), (wide,), "one number a row"),
        (RowsOfSegments((V,), (0, 1), U), (), "segments among 1"),
        (RowsOfSegments((V,), (), U), (), "segments among 1"),
        (NumbersOfSegments((V, W), (3,), U), (), "a number for each segment"),
        (NumbersOfSegments((), (), U), (), "segments among 0"),
        (EqualRuns(UNIT, E), (), "two spaces of rows"),
        (EqualRuns(V, UNIT), (), "two spaces of rows"),
        (Rounds(UNIT, E), (), "two spaces of rows"),
        (EachItem(0, U, UNIT), (MapType(E, V),), "a map, and two spaces"),
        (EachItem(0, U, P), (MapType(E, UNIT),), "a map, and two spaces"),
        (EachItem(0, U, P), (index,), "must be a map"),
        (Order((), ()), (), "keys of the same rows"),
        (Order((0,), (True, False)), (index,), "a direction for each"),
        (Order((0, 1), (True, False)), (index, Type(F, (), DType.i64)), "keys of the same rows"),
        (Order((0,), (True,)), (wide,), "one number a row"),
        (Order((0,), (True,)), (Type(UNIT, (), DType.f32),), "keys of the same rows"),
        (Chosen(0, P), (index,), "a bool for each row"),
        (Chosen(0, E), (Type(E, (), DType.bool),), "another space"),
        (Chosen(0, P), (Type(E, (2,), DType.bool),), "a bool for each row"),
        (After(0, (3,)), (wide,), "is not an earlier node"),
        (After(0, ()), (of,), "must be a value"),
        (AssertIndex(0, 3), (wide,), "expected integers"),
        (LaidOut(0, (0,)), (of,), "must be a tensor"),
        (Own(0, (0,)), (MapType(E, V),), "must be a tensor"),
        (Kept(0), (of,), "must be a tensor"),
    ],
)  # fmt: skip
def test_wrong_operands_are_refused(node: Node, given: tuple[ValueType, ...], complaint: str) -> None:
    with pytest.raises(IRError, match=complaint):
        infer(node, given)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("of=[V, W]", "of=[V, X]", "space X is not declared"),
        ("of=[E, F]", "of=[E, X]", "space X is not declared"),
        ("of=[W, V]", "of=[W, X]", "space X is not declared"),
        ("distinct U -> P", "distinct E -> P", "must be DistinctType"),
        ("after %0, %7, %8", "after %0, %7, %10", "must come earlier"),
        ("%8: P[] i64 = distinctkey %6 0", "%8: distinct U -> P = distinct %3, %4 P", "rows of another"),
        ("distinctkey %6 0", "distinctkey %6 2", "one of 2 keys"),
    ],
)  # fmt: skip
def test_verify_refuses(old: str, new: str, complaint: str) -> None:
    assert MERGED.count(old) == 1
    with pytest.raises(IRError, match=complaint):
        verify(parse(MERGED.replace(old, new)))


# ---------------------------------------------------------------- names have no meaning


@pytest.mark.parametrize("name", ["P_0a0b0c0d_01020304", "P_", "pairs P"])
def test_edges_of_any_name_have_pairs(name: str) -> None:
    """Edges whose name looks like that of pairs are compacted like any others; real pairs are not compacted again."""
    program = _typed_product(Space(name))
    ((m, t),) = pairs_in(program)
    build = Builder.of(program)
    found = compact(m, t).apply(build, len(program.nodes) - 1)
    assert found is not None and any(isinstance(n, Distinct) for n in build.nodes)
    again = build.program(
        [found], [*program.spaces, *((p.space, None) for p in build.types if isinstance(p, DistinctType))]
    )
    verify(again)
    assert pairs_in(again) == ((m, t),)  # the first product gets pairs; the product that is already on pairs gets none


def _typed_product(edges: Space) -> Program:
    b = Builder()
    x, w = b.add(Input("x", Type(V, (4,), DType.f32))), b.add(Input("w", Type(W, (4, 3), DType.f32)))
    src, kind = (b.add(MapOf(b.add(Input(n, Type(edges, (), DType.i64))), s)) for n, s in (("src", V), ("kind", W)))
    return b.program(
        [b.add(MatMul(b.add(Pull(x, src)), w, kind))], [(V, read("s0")), (W, read("s1")), (edges, read("s2"))]
    )


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("case", zoo(), ids=lambda case: case.name)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_distinct_rows_are_those_of_each_row(case: object, dtype: torch.dtype) -> None:
    src, dst = (torch.as_tensor(x).to(dtype) for x in (case.src, case.dst))  # type: ignore[attr-defined]
    b = Builder()
    kind = DType.i64 if dtype is torch.int64 else DType.i32
    given = [b.add(Input(name, Type(E, (), kind))) for name in ("src", "dst")]
    pairs = b.add(Distinct(tuple(given[::-1]), P))
    parts = [b.add(node) for node in (DistinctRow(pairs), DistinctKey(pairs, 1), DistinctKey(pairs, 0))]
    along = b.add(MapOf(parts[0], P))
    counted = b.add(Push(b.add(Input("x", Type(E, (2,), DType.f64))), along, Fold.sum))
    program = b.program([*parts, counted], [(E, read("s0")), (P, None)])
    verify(program)
    x = torch.randn(len(src), 2, dtype=torch.float64)
    rows, a, second, sums = interp(program, {"src": src, "dst": dst, "x": x})
    want = sorted({(int(v), int(u)) for u, v in zip(src, dst, strict=True)})
    assert list(zip(second.tolist(), a.tolist(), strict=True)) == want
    assert torch.equal(a[rows], src.long()) and torch.equal(second[rows], dst.long())
    expected = torch.zeros(len(want), 2, dtype=torch.float64).index_add(0, rows, x)
    torch.testing.assert_close(sums, expected)


def _joined(first: Tensor, second: Tensor, wraps: tuple[bool, bool] = (False, False)) -> Program:
    b = Builder()
    ids = [b.add(Input(n, Type(s, (), DType.i64))) for n, s in (("first", E), ("second", F))]
    joined = b.add(
        JoinIndices((*ids, ids[0]), (V, UNIT, W), (2, 0, 2), (*wraps, wraps[0]), U), Location("net.py", 9, "x[second]")
    )
    return b.program(
        [joined], [(V, read("s0")), (W, read("s1")), (E, read("s2")), (F, read("s3")), (U, read("s2 + s3 + s2"))]
    )


@pytest.mark.parametrize("counts", [(4, 3), (0, 3), (4, 0), (0, 0), (1, 1)])
def test_joined_indices_count_rows_of_their_union(counts: tuple[int, int]) -> None:
    """The union of rows of V, one row of shared data, and rows of W; some indices have no rows."""
    first, second = torch.randint(5, (counts[0],)), torch.randint(7, (counts[1],))
    program = _joined(first, second)
    verify(program)
    (got,) = interp(program, {"first": first, "second": second}, {V: 7, W: 5})
    assert torch.equal(got, torch.cat([first + 8, second, first + 8]))
    program = _joined(first, second, (True, False))
    (got,) = interp(program, {"first": first - 5, "second": second}, {V: 7, W: 5})
    assert torch.equal(got, torch.cat([first + 8, second, first + 8]))


@pytest.mark.parametrize(
    ("first", "second", "wraps", "said"),
    [
        ([0, 5], [1], (False, False), "relation 0 of 3: index 5 at position 1 is out of range for 5 rows"),
        ([0, 4], [7], (False, False), "relation 1 of 3: index 7 at position 0 is out of range for 7 rows"),
        ([0, -1], [1], (False, False), "relation 0 of 3: index -1 at position 1"),
        ([0, -6], [1], (True, False), "relation 0 of 3: index -6 at position 1 .* expected -5 <= index < 5"),
    ],
)
def test_an_index_is_checked_in_its_own_segment(
    first: list[int], second: list[int], wraps: tuple[bool, bool], said: str
) -> None:
    given = torch.tensor(first), torch.tensor(second)
    program = _joined(*given, wraps)
    with pytest.raises(IndexRangeError, match=said):
        interp(program, dict(zip(("first", "second"), given, strict=True)), {V: 7, W: 5})
    step = call_step(program, 2)
    with pytest.raises(IndexRangeError, match=rf"{said}.*It is used at net.py:9"):
        step.run(*({V: 7, W: 5}[s] for s in step.spaces), *given)


def test_rows_and_numbers_of_segments() -> None:
    b = Builder()
    rows, one = b.add(RowsOfSegments((V, UNIT, W), (2, 1, 2), U)), b.add(RowsOfSegments((V, W), (1,), W))
    numbers = b.add(NumbersOfSegments((V, UNIT, W), (3, 0, 3), F))
    program = b.program([rows, one, numbers], [(V, None), (W, None), (U, None), (F, None)])
    verify(program)
    for v, w in ((2, 3), (0, 3), (2, 0), (0, 0)):
        got = interp(program, {}, {V: v, W: w})
        of_w = list(range(v + 1, v + 1 + w))
        assert [t.tolist() for t in got] == [[*of_w, v, *of_w], list(range(v, v + w)), [3] * v + [0] + [3] * w]
        assert all(t.dtype is torch.int64 for t in got)


def test_rows_of_equal_runs() -> None:
    b = Builder()
    program = b.program([b.add(EqualRuns(V, E))], [(V, None), (E, None)])
    verify(program)
    for runs, length in ((2, 3), (3, 1), (1, 2), (2, 0), (0, 0)):
        (got,) = interp(program, {}, {V: runs, E: runs * length})
        assert got.tolist() == [r for r in range(runs) for _ in range(length)]
        assert got.dtype is torch.int64


def test_rows_of_one_item_for_all_items() -> None:
    b = Builder()
    m = b.add(MapOf(b.add(Input("y", index)), V, True))
    program = b.program([b.add(EachItem(m, U, P)), b.add(Rounds(V, U))], [(V, None), (E, None), (U, None), (P, None)])
    verify(program)
    for items, rows in ((2, 3), (1, 2), (0, 3), (3, 1)):
        at = torch.tensor([-1, 0, rows - 1, 0])
        got, turns = interp(program, {"y": at}, {V: rows, U: items * rows, P: 4 * items})
        assert got.tolist() == [i * rows + int(k) % rows for i in range(items) for k in at]
        assert turns.tolist() == [r for _ in range(items) for r in range(rows)]
        assert got.dtype is turns.dtype is torch.int64


@pytest.mark.parametrize(("numbers", "bad"), [([[0], [6]], None), ([], None), ([0, 7], 7), ([-1], -1)])
def test_an_assertion_has_no_value_and_refuses_what_is_out_of_range(numbers: list[int], bad: int | None) -> None:
    value = torch.tensor(numbers, dtype=torch.int64)
    b = Builder()
    x = b.add(Input("y", Type(E, tuple(value.shape[1:]), DType.i64)))
    check = b.add(AssertIndex(x, 7), Location("loss.py", 4, "nll(y)"))
    assert check == b.add(AssertIndex(x, 7), Location("loss.py", 5, "nll(y)")) and check != b.add(AssertIndex(x, 8))
    program = b.program([check], [(E, read("s0"))])
    verify(program)
    if bad is None:
        assert interp(program, {"y": value}) == [None]
        return
    with pytest.raises(IndexRangeError, match=f"index {bad} at position .* is out of range for 7 columns"):
        interp(program, {"y": value})
    with pytest.raises(IndexRangeError, match=r"It is used at loss\.py:4"):
        call_step(program, check).run(value)


def test_waiting_changes_no_value() -> None:
    b = Builder()
    x, y = b.add(Input("x", Type(E, (2,), DType.f32))), b.add(Input("y", Type(V, (), DType.f32)))
    program = b.program([b.add(After(x, (y,)))], [(E, read("s0")), (V, read("s1"))])
    given = torch.randn(3, 2)
    assert interp(program, {"x": given, "y": torch.ones(0)})[0] is given


def test_memory_changes_no_number() -> None:
    x = torch.randn(4, 3)
    b = Builder()
    ref = b.add(Input("x", Type(E, (3,), DType.f32)))
    program = b.program([b.add(n) for n in (LaidOut(ref, (1, 0)), Own(ref, (0, 1)), Kept(ref))], [(E, read("s0"))])
    turned, own, kept = interp(program, {"x": x})
    assert turned.stride() == (1, 4) and own is x and kept.data_ptr() != x.data_ptr()
    for value in (turned, own, kept):
        assert torch.equal(value, x)
    (whole,) = interp(b.program([b.add(LaidOut(ref, (0, 1), True))], [(E, read("s0"))]), {"x": x[1:]})
    assert whole.storage_offset() == 0 and torch.equal(whole, x[1:])


# ---------------------------------------------------------------- work done once for each graph


def test_what_is_made_of_the_graph_alone_is_made_once() -> None:
    """This also holds where only features tell how many rows a segment has, because row counts are not data."""
    b = Builder()
    x = b.add(Input("x", Type(V, (4,), DType.f32)))
    ids = [b.add(Input(n, Type(s, (), DType.i64))) for n, s in (("first", E), ("second", F))]
    joined = b.add(JoinIndices((ids[0], ids[1]), (V,), (0, 0), (False, False), U))
    numbers = b.add(NumbersOfSegments((E, F), (0, 1), U))
    pairs = b.add(Distinct((joined, numbers), P))
    rows, a = b.add(DistinctRow(pairs)), b.add(DistinctKey(pairs, 0))
    check = b.add(AssertIndex(ids[0], 9))
    pulled = b.add(Pull(b.add(Pull(x, b.add(MapOf(a, V)))), b.add(MapOf(rows, P))))
    out = b.add(Gram(pulled, pulled))
    program = b.program([out], [(V, read("s0")), (E, read("s1")), (F, read("s2")), (U, read("s1 + s2")), (P, None)])
    verify(program)
    facts = Facts(program)
    assert facts.flow.graph_only >= {joined, numbers, pairs, rows, a, check}
    assert facts.hoist.values == (rows, a) and facts.hoist.checks == (check,)


@pytest.mark.parametrize("edit", [lambda n: replace(n, space=W), lambda n: replace(n, keys=n.keys[::-1]), lambda n: n])
def test_equal_pairs_are_one_node(edit: Callable[[Distinct], Distinct]) -> None:
    b = Builder()
    x: list[Ref] = [b.add(Input(name, index)) for name in ("src", "dst")]
    node = Distinct((x[0], x[1]), P)
    same = edit(node) == node
    assert (b.add(node) == b.add(edit(node))) is same and (hash(edit(node)) == hash(node)) is same
