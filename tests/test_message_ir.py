"""Message IR by example: text, verifier, builder, and the interpreter against dense matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx

import graphweave.ir.message
from graphweave.core.errors import DataError, IndexRangeError, IRError, ParseError
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.aten import materialise, resolve, target_name, to_arg
from graphweave.ir.message.builder import Builder, operands
from graphweave.ir.message.infer import infer
from graphweave.ir.message.interp import apply, interp
from graphweave.ir.message.nodes import (
    AnyType,
    Arg,
    Aten,
    Atom,
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    MapOf,
    MapType,
    MatMul,
    Node,
    Operand,
    Pad,
    Permute,
    Pointwise,
    Program,
    Pull,
    Push,
    Reduce,
    Reshape,
    Slice,
    ToUnit,
    Type,
    ValueType,
)
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from graphweave.testing.compare import assert_close
from graphweave.testing.graphs import Edges, zoo
from graphweave.testing.programs import inputs

V, W, E = Space("V"), Space("W"), Space("E")
SPACES = ((V, "s0"), (W, "s1"), (E, "s2"))
ZOO = zoo(0)
f32, f64, i64, i32, boolean = DType.f32, DType.f64, DType.i64, DType.i32, DType.bool


def one_node(node: Node, *given: Type | AnyType, spaces: tuple[tuple[Space, str], ...] = SPACES) -> Program:
    """Inputs %0.. of the given types, then `node`."""
    types: list[ValueType] = list(given)
    inputs = tuple(Input(f"in{i}", t) for i, t in enumerate(given))
    return Program((*inputs, node), (*given, infer(node, types)), ("",) * (len(given) + 1), (len(given),), spaces)


def run_one(node: Node, given: list[tuple[Type, Tensor]], rows: dict[Space, int] | None = None) -> Any:
    program = one_node(node, *(t for t, _ in given))
    verify(program)
    return interp(program, {f"in{i}": x for i, (_, x) in enumerate(given)}, rows)[0]


def gat() -> Program:
    """One attention layer, four heads of eight, softmax as PyG has it."""
    b = Builder()
    heads = Type(V, (4, 8), f32)
    z = b.add(Input("z", heads), "gat.py:20 def forward(self, z, edge_index):")
    score = b.add(Input("score", Type(E, (4,), f32)))
    src = b.add(MapOf(b.add(Input("src", Type(E, (), i64))), V))
    dst = b.add(MapOf(b.add(Input("dst", Type(E, (), i64))), V))
    top = b.add(Pull(b.add(Push(score, dst, Fold.max)), dst), "gat.py:23 alpha = softmax(alpha, index)")
    weight = b.add(Pointwise(Op.exp, (b.add(Pointwise(Op.sub, (score, top))),)))
    eps = b.add(Const(1e-16, Type(UNIT, (), f32)))
    whole = b.add(Pointwise(Op.add, (b.add(Push(weight, dst, Fold.sum)), eps)))
    alpha = b.add(Pointwise(Op.div, (weight, b.add(Pull(whole, dst)))))
    message = b.add(Pointwise(Op.mul, (b.add(Pull(z, src)), b.add(Reshape(alpha, (4, 1))))), "gat.py:25 x_j * alpha")
    out = b.add(Push(message, dst, Fold.sum))
    return b.program([out, None, alpha], [(V, "s0"), (E, "s1")])


# ---------------------------------------------------------------- text

ODD = Program(
    nodes=(
        Input("x y", Type(Space("odd space"), (), f32)),
        Input("sizes", AnyType('i64[2, s43] "quoted"')),
        Const(math.inf, Type(E, (), f32)),
        Const(-math.inf, Type(E, (), f32)),
        Const(math.nan, Type(E, (), f32)),
        Const(-0.0, Type(E, (2, 1), f64)),
        Const(1, Type(UNIT, (), i64)),
        Const(True, Type(UNIT, (), boolean)),
        Const(1e-300, Type(E, (), f64)),
        ToUnit(Space("any")),
        Aten(
            "aten.sort.stable",
            (Operand(0), (1, -2, (), (Operand(1), None)), "a # b\n\u00e9", True, 1.0, 1, -0.0, math.inf, None),
            (("dtype", Atom("torch.float32")), ("device", Atom("device(cuda:0)")), ("odd key", (Atom("x"),))),
            AnyType(""),
            serial=3,
        ),
        Aten("builtin.getitem", (Operand(10), 0), (), Type(E, (), i64)),
        Push(0, 9, Fold.mul, -0.0),
        Push(0, 9, Fold.max, -math.inf),
        Slice(5, 0, 0, 2, 2),
        Pad(5, 1, 1, 0),
        Concat((5, 5), 1),
        Reduce(5, Fold.min, (0, 1), True),
        Permute(5, (1, 0)),
        Broadcast(5, (2, 7)),
        Cast(5, DType.bf16),
        MapOf(11, Space("wrap"), True),
        Pointwise(Op.where, (7, 2, 3)),
        MatMul(1, 2),
        Gram(1, 2),
    ),
    types=(
        Type(Space("odd space"), (), f32), AnyType('i64[2, s43] "quoted"'), Type(E, (), f32), Type(E, (), f32),
        Type(E, (), f32), Type(E, (2, 1), f64), Type(UNIT, (), i64), Type(UNIT, (), boolean), Type(E, (), f64),
        MapType(Space("any"), UNIT), AnyType(""), Type(E, (), i64), Type(Space("any"), (), f32), AnyType("any"),
        Type(Space("any"), (1,), f64), *([Type(E, (), DType.u8)] * 6), MapType(E, Space("wrap")),
        *([Type(E, (0, 3), DType.i16)] * 3),
    ),
    locs=(
        "a.py:1 x = '#'", "", '"starts quoted', " blanks ", "line\nbreak", "tab\there", *[""] * 18,
        "\u2028 \u00e9 %3",
    ),
    outputs=(10, None, 3, 3),
    spaces=((Space("odd space"), "2*s0 + 1"), (E, ""), (Space("any"), ' "x" # y')),
)  # fmt: skip


@pytest.mark.parametrize("program", [ODD, gat(), Program((), (), (), (), ())], ids=["odd", "gat", "nothing"])
def test_text_reads_back_to_an_equal_program(program: Program) -> None:
    back = parse(show(program))
    assert back == program
    assert show(back) == show(program)  # and here 1, 1.0, True, 0.0 and -0.0 are told apart


def test_text_of_a_gat_layer(golden: Callable[[str, str], None]) -> None:
    verify(gat())
    golden("message_gat.txt", show(gat()))


def test_grammar_page_shows_a_program() -> None:
    page = Path(graphweave.ir.message.__file__).with_name("GRAMMAR.md").read_text()
    program = parse(page.split("```")[1])
    verify(program)
    assert [type(n).__name__ for n in program.nodes] == ["Input"] * 3 + ["MapOf", "MapOf", "Pull", "Push"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: expected 'return'"),
        ("space V s0\nreturn", "line 1, column 8: expected '='"),
        ("%1: V[] f32 = input x\nreturn", "line 1, column 1: expected '%0'"),
        ("%0: V[] f33 = input x\nreturn", "expected one of f64, f32"),
        ("%0: V[] f32 = inputt x\nreturn", "expected one of neg, exp"),
        ("%0: V[] f32 = push.mean %1, %2\nreturn", "expected one of sum, mul, max, min"),
        ("%0: V[4.5] f32 = input x\nreturn", "expected an integer"),
        ("%0: V[] f32 = pull 1, %2\nreturn", "expected an operand such as %3"),
        ("%0: V[] f32 = const x\nreturn", "expected a number"),
        ("%0: V -> W = const 1\nreturn", "expected a constant to have a value type"),
        ("%0: V -> W = input x\nreturn", "expected no map type"),
        ("%0: V[] f32 = neg %0 %0\nreturn", "expected the end of the line"),
        ("%0: V[] f32 = call aten.neg(%0\nreturn", "got 'the end of the line'"),
        ("return %0, x", "expected an operand"),
        ("return\nreturn", "expected nothing after the outputs"),
        ("%0: any \"\\q\" = input x\nreturn", "expected a string with JSON's escapes"),
    ],
)  # fmt: skip
def test_parse_says_where_and_what(text: str, complaint: str) -> None:
    with pytest.raises(ParseError) as refused:
        parse(text)
    assert complaint in str(refused.value)


# ---------------------------------------------------------------- verifier and types


def broken(edit: Callable[[Program], Program]) -> Program:
    return edit(gat())


def put(program: Program, ref: int, node: Node) -> Program:
    return replace(program, nodes=(*program.nodes[:ref], node, *program.nodes[ref + 1 :]))


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda p: replace(p, types=p.types[:-1]), "expected a type and a location for each"),
        (lambda p: replace(p, locs=(*p.locs, "")), "expected a type and a location for each"),
        (lambda p: replace(p, outputs=(99,)), "output %99 is no node"),
        (lambda p: replace(p, outputs=(-1,)), "output %-1 is no node"),
        (lambda p: replace(p, spaces=p.spaces[:1]), "space E is not declared"),
        (lambda p: replace(p, spaces=(*p.spaces, (V, "s9"))), "declared twice"),
        (lambda p: replace(p, spaces=(*p.spaces, (UNIT, "1"))), "is always there"),
        (lambda p: put(p, 6, Push(8, 5, Fold.max)), "operand %8"),
        (lambda p: put(p, 6, Push(-1, 5, Fold.max)), "operand %-1"),
        (lambda p: put(p, 1, Input("z", p.types[1])), "'z' comes twice"),
        (lambda p: put(p, 9, Pointwise(Op.isnan, (8,))), "type of Pointwise"),
        (lambda p: put(p, 3, MapOf(2, W)), "type of MapOf"),
    ],
)  # fmt: skip
def test_verify_refuses(edit: Callable[[Program], Program], complaint: str) -> None:
    with pytest.raises(IRError) as refused:
        verify(broken(edit))
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("node", "given", "complaint"),
    [
        (Const(0.5, Type(E, (), i64)), (), "0.5 cannot be a value of i64"),
        (Const(math.inf, Type(E, (), i32)), (), "inf cannot be a value of i32"),
        (Reduce(0, Fold.sum, (0, 0), True), (Type(E, (2,), f32),), "expected distinct dims"),
        (Reduce(0, Fold.max, (0,), False), (Type(E, (0,), f32),), "no features have no max"),
        (Reduce(0, Fold.sum, (0,), False), (Type(E, (2,), boolean),), "bool has no sum"),
        (Pointwise(Op.exp, (0,)), (Type(E, (), i64),), "exp needs floating point"),
        (Pointwise(Op.div, (0, 0)), (Type(E, (), i64),), "div needs floating point"),
        (Pointwise(Op.sub, (0, 0)), (Type(E, (), boolean),), "sub is not defined on bool"),
    ],
)  # fmt: skip
def test_verify_refuses_what_torch_cannot_do(node: Node, given: tuple[Type, ...], complaint: str) -> None:
    with pytest.raises(IRError, match=complaint):
        verify(one_node(node, *given))


def test_verify_refuses_an_empty_concat() -> None:
    program = Program((Concat((), 0),), (Type(E, (0,), f32),), ("",), (0,), SPACES)
    with pytest.raises(IRError, match="expected blocks"):
        verify(program)


@pytest.mark.parametrize(
    ("node", "given"),
    [
        (MapOf(0, V), (Type(E, (1,), i64),)),
        (MapOf(0, V), (Type(E, (), f32),)),
        (Pull(0, 1), (Type(V, (), f32), Type(V, (), f32))),
        (MatMul(0, 1), (Type(V, (3,), f32), Type(V, (3, 2), f32))),
        (MatMul(0, 1), (Type(V, (3,), f32), Type(UNIT, (3, 2), f64))),
        (Gram(0, 1), (Type(V, (3,), f32), Type(E, (3,), f32))),
        (Pointwise(Op.add, (0, 1)), (Type(V, (3,), f32), Type(E, (3,), f32))),
        (Pointwise(Op.add, (0, 1)), (Type(V, (3,), f32), Type(V, (2,), f32))),
        (Pointwise(Op.add, (0, 1)), (Type(V, (), f32), Type(V, (), f64))),
        (Pointwise(Op.add, (0,)), (Type(V, (), f32),)),
        (Pointwise(Op.where, (0, 0, 0)), (Type(V, (), f32),)),
        (Reshape(0, (4,)), (Type(V, (3,), f32),)),
        (Broadcast(0, (2, 2)), (Type(V, (3,), f32),)),
        (Permute(0, (0, 0)), (Type(V, (3, 2), f32),)),
        (Reduce(0, Fold.sum, (1,), False), (Type(V, (3,), f32),)),
        (Slice(0, 0, 2, 4), (Type(V, (3,), f32),)),
        (Slice(0, 0, 0, 3, 0), (Type(V, (3,), f32),)),
        (Pad(0, 0, -1, 0), (Type(V, (3,), f32),)),
        (Concat((0, 1), 0), (Type(V, (3, 1), f32), Type(V, (3, 2), f32))),
        (Concat((0, 1), 0), (Type(V, (3,), f32), Type(E, (3,), f32))),
        (Pull(0, 7), (Type(V, (), f32),)),
    ],
)  # fmt: skip
def test_infer_refuses(node: Node, given: tuple[Type, ...]) -> None:
    with pytest.raises(IRError, match=r"expected|must be|is not an earlier node"):
        infer(node, given)


def test_builder_makes_equal_nodes_one_and_no_others() -> None:
    b = Builder()
    unit = Type(UNIT, (), f32)
    values: list[float | int | bool] = [1, 1.0, True, 0.0, -0.0, 0, False]
    refs = [b.add(Const(v, unit)) for v in values]
    assert refs == list(range(7))
    assert [b.add(Const(v, unit), "elsewhere") for v in values] == refs
    assert b.add(Const(math.nan, unit)) == b.add(Const(float("nan"), unit))
    calls = [b.add(Aten("aten.f.g", (Operand(0), (v,)), (), unit)) for v in (1, 1.0, True, "1")]
    assert len(set(calls)) == 4
    random = [b.add(Aten("aten.rand.default", (), (), unit, serial)) for serial in (1, 2, 1)]
    assert random[0] != random[1] and random[0] == random[2]
    assert operands(Aten("aten.f.g", (Operand(3), (Operand(1),)), (("k", Operand(3)),), unit)) == (3, 1, 3)


# ---------------------------------------------------------------- interpreter


def dense_map(index: Tensor, rows: int) -> Tensor:
    """0/1 matrix M [len(index), rows] with M[e, index[e]] = 1: pull is M x, push of sums is M^T x."""
    return (index[:, None] == torch.arange(rows)[None, :]).double()


def dense_fold(x: Tensor, index: Tensor, rows: int, fold: Fold, empty: float) -> Tensor:
    """Row by row, by torch's reductions over the rows that the mask picks."""
    folds: dict[Fold, Callable[[Tensor], Tensor]] = {
        Fold.sum: lambda t: t.sum(0), Fold.mul: lambda t: t.prod(0), Fold.max: lambda t: t.amax(0),
        Fold.min: lambda t: t.amin(0),
    }  # fmt: skip
    picked = [x[index == v] for v in range(rows)]
    parts = [folds[fold](p) if len(p) else torch.full(x.shape[1:], empty, dtype=x.dtype) for p in picked]
    return torch.stack(parts) if parts else x.new_zeros(0, *x.shape[1:])


def moving(shape: tuple[int, ...], index_dtype: DType, fold: Fold, empty: float) -> Program:
    b = Builder()
    x = b.add(Input("x", Type(V, shape, f64)))
    src = b.add(MapOf(b.add(Input("src", Type(E, (), index_dtype))), V))
    dst = b.add(MapOf(b.add(Input("dst", Type(E, (), index_dtype))), W))
    message = b.add(Pull(x, src))
    total = b.add(Push(message, b.add(ToUnit(E)), fold, empty))
    return b.program([message, b.add(Push(message, dst, fold, empty)), total], SPACES)


@pytest.mark.parametrize("graph", ZOO, ids=lambda g: g.name)
@pytest.mark.parametrize("fold", list(Fold))
@pytest.mark.parametrize(("shape", "index_dtype"), [((), i64), ((1,), i32), ((31,), i64), ((3, 11), i32)])
def test_moving_is_multiplying_by_the_map(graph: Edges, fold: Fold, shape: tuple[int, ...], index_dtype: DType) -> None:
    empty = -1.5
    x = torch.randn(graph.num_src, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    program = moving(shape, index_dtype, fold, empty)
    verify(program)
    src, dst = (i.int() if index_dtype is i32 else i for i in (graph.src, graph.dst))
    pulled, pushed, total = interp(program, {"x": x, "src": src, "dst": dst}, {W: graph.num_dst})
    flat = x.reshape(graph.num_src, math.prod(shape))
    message = (dense_map(graph.src, graph.num_src) @ flat).reshape(-1, *shape)
    assert_close(pulled, message)
    assert_close(pushed, dense_fold(message, graph.dst, graph.num_dst, fold, empty), reduction_length=48)
    zeros = torch.zeros_like(graph.dst)
    assert_close(total, dense_fold(message, zeros, 1, fold, empty)[0], reduction_length=64)


@pytest.mark.parametrize("graph", ZOO, ids=lambda g: g.name)
def test_push_sum_is_the_transposed_map(graph: Edges) -> None:
    x = torch.randn(graph.num_src, 33, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    program = moving((33,), i64, Fold.sum, 0.0)
    _, pushed, total = interp(program, {"x": x, "src": graph.src, "dst": graph.dst}, {W: graph.num_dst})
    message = dense_map(graph.src, graph.num_src) @ x
    assert_close(pushed, dense_map(graph.dst, graph.num_dst).T @ message, reduction_length=48)
    assert_close(total, message.sum(0), reduction_length=64)


def test_gat_layer_is_pygs() -> None:
    graph = ZOO[[g.name for g in ZOO].index("hub_dst")]
    generator = torch.Generator().manual_seed(3)
    z, score = torch.randn(12, 4, 8, generator=generator), torch.randn(48, 4, generator=generator)
    out, nothing, alpha = interp(gat(), {"z": z, "score": score, "src": graph.src, "dst": graph.dst})
    assert nothing is None
    reach = dense_map(graph.dst, 12).T.bool()  # [12, 48]
    logits = torch.where(reach[..., None], score.double(), -math.inf)  # [12, 48, 4]
    weights = torch.where(reach.any(1)[:, None, None], logits, 0.0).softmax(1) * reach[..., None]
    assert_close(alpha, weights.sum(0).float(), reduction_length=48)
    assert_close(out, torch.einsum("veh,ehc->vhc", weights, z[graph.src].double()).float(), reduction_length=48)


@pytest.mark.parametrize("fold", list(Fold))
@pytest.mark.parametrize("place", [0, 1, 2])
def test_nan_wins_and_stays_in_its_row(fold: Fold, place: int) -> None:
    x = torch.tensor([1.0, -2.0, 3.0, 4.0])
    x[place] = math.nan
    program = moving((), i64, fold, 0.0)
    index = torch.arange(4)
    _, pushed, total = interp(program, {"x": x.double(), "src": index, "dst": torch.tensor([0, 0, 0, 2])}, {W: 3})
    assert pushed.isnan().tolist() == [True, False, False]
    assert total.isnan()


def test_integers_and_bools_move_too() -> None:
    index = (Type(E, (), i64), torch.tensor([2, 0, 2]))
    b = Builder()
    x, m = b.add(Input("x", Type(E, (), i32))), b.add(MapOf(b.add(Input("i", Type(E, (), i64))), V))
    yes = b.add(Pointwise(Op.gt, (x, b.add(Const(0, Type(UNIT, (), i32))))))
    nodes = [*(Push(x, m, fold) for fold in Fold), Push(yes, m, Fold.max), Push(yes, m, Fold.min, 1.0)]
    program = b.program([b.add(n) for n in nodes], SPACES)
    verify(program)
    sums, products, most, least, any_yes, all_yes = interp(
        program, {"x": torch.tensor([5, -1, 7], dtype=torch.int32), "i": index[1]}, {V: 3}
    )
    assert (sums.tolist(), products.tolist()) == ([-1, 0, 12], [-1, 0, 35])
    assert (most.tolist(), least.tolist()) == ([-1, 0, 7], [-1, 0, 5])
    assert (any_yes.tolist(), all_yes.tolist()) == ([False, False, True], [False, True, True])
    assert sums.dtype == torch.int32 and any_yes.dtype == torch.bool


@pytest.mark.parametrize("wrap", [False, True])
def test_map_out_of_range_is_refused(wrap: bool) -> None:
    b = Builder()
    x = b.add(Input("x", Type(V, (), f32)))
    m = b.add(MapOf(b.add(Input("i", Type(E, (), i64))), V, wrap))
    program = b.program([b.add(Pull(x, m))], SPACES)
    given = torch.tensor([1.0, 2.0, 3.0])
    for value in (3, 2**40, -4, *([] if wrap else [-1])):
        with pytest.raises(IndexRangeError, match=rf"index {value} is out of range {-3 if wrap else 0}\.\.2 of V"):
            interp(program, {"x": given, "i": torch.tensor([0, value])})
    if wrap:
        assert interp(program, {"x": given, "i": torch.tensor([-1, 0, -3])})[0].tolist() == [3.0, 1.0, 1.0]


def test_unit_and_row_operands_align_by_features() -> None:
    rows, wide = torch.randn(5, 3), torch.randn(2, 3)
    given = [(Type(V, (3,), f32), rows), (Type(UNIT, (2, 3), f32), wide)]
    assert_close(run_one(Pointwise(Op.mul, (0, 1)), given), rows[:, None, :] * wide)
    column = (Type(V, (2, 1), f32), torch.randn(5, 2, 1))
    assert_close(run_one(Pointwise(Op.sub, (0, 1)), [given[0], column]), rows[:, None, :] - column[1])


ROWS = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(4))
ROW_NODES: list[tuple[Node, Callable[[Tensor], Tensor]]] = [
    (Reshape(0, (2, 6)), lambda r: r.reshape(2, 6)),
    (Permute(0, (1, 0)), lambda r: r.T),
    (Broadcast(0, (2, 3, 4)), lambda r: r.expand(2, 3, 4)),
    (Slice(0, 1, 1, 4, 2), lambda r: r[:, 1:4:2]),
    (Pad(0, 0, 1, 2), lambda r: torch.cat([torch.zeros(1, 4), r, torch.zeros(2, 4)])),
    (Concat((0, 0), 1), lambda r: torch.cat([r, r], 1)),
    (Reduce(0, Fold.sum, (0, 1), False), lambda r: r.sum()),
    (Reduce(0, Fold.mul, (0, 1), True), lambda r: r.prod().reshape(1, 1)),
    (Reduce(0, Fold.max, (1,), True), lambda r: r.amax(1, keepdim=True)),
    (Reduce(0, Fold.min, (0,), False), lambda r: r.amin(0)),
    (Reduce(0, Fold.sum, (), False), lambda r: r),
    (Cast(0, f64), lambda r: r.double()),
    (Pointwise(Op.pow, (0, 0)), lambda r: r**r),
]


@pytest.mark.parametrize(("node", "row"), ROW_NODES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("space", [V, UNIT])
def test_row_operations_are_done_row_by_row(node: Node, row: Callable[[Tensor], Tensor], space: Space) -> None:
    x = ROWS if space == V else ROWS[0]
    want = torch.stack([row(r) for r in ROWS]) if space == V else row(x)
    assert_close(run_one(node, [(Type(space, (3, 4), f32), x)]), want, reduction_length=12)
    if space == V:
        none = run_one(node, [(Type(V, (3, 4), f32), x[:0])])
        assert none.shape == (0, *want.shape[1:]) and none.dtype == want.dtype


def test_matmul_and_gram() -> None:
    x, y, w = ROWS[:, 0], ROWS[:, 1, :2], ROWS[0].T  # [5, 4], [5, 2], [4, 3]
    tx, ty, tw = Type(V, (4,), f32), Type(V, (2,), f32), Type(UNIT, (4, 3), f32)
    assert_close(run_one(MatMul(0, 1), [(tx, x), (tw, w)]), x @ w, reduction_length=4)
    assert_close(run_one(Gram(0, 1), [(tx, x), (ty, y)]), x.T @ y, reduction_length=5)
    unit = Type(UNIT, (4,), f32)
    assert_close(run_one(MatMul(0, 1), [(unit, x[0]), (tw, w)]), x[0] @ w, reduction_length=4)
    assert_close(run_one(Gram(0, 1), [(unit, x[0]), (unit, x[1])]), torch.outer(x[0], x[1]))
    assert run_one(Gram(0, 1), [(tx, x[:0]), (ty, y[:0])]).tolist() == [[0.0, 0.0]] * 4


def test_maps_from_and_to_the_unit_space() -> None:
    b = Builder()
    x, w = b.add(Input("x", Type(V, (3,), f32))), b.add(Input("w", Type(UNIT, (3,), f32)))
    one = b.add(MapOf(b.add(Input("at", Type(UNIT, (), i64))), V))
    outs: list[Node] = [Pull(x, one), Push(w, one, Fold.sum), Push(w, one, Fold.max, -1.0), Pull(w, b.add(ToUnit(V)))]
    program = b.program([b.add(n) for n in outs], SPACES)
    verify(program)
    given, shared = ROWS[:, 0, :3], ROWS[0, 1, :3]
    row, placed, kept, spread = interp(program, {"x": given, "w": shared, "at": torch.tensor(2)})
    assert torch.equal(row, given[2])
    assert torch.equal(placed[2], shared) and placed.count_nonzero() == shared.count_nonzero()
    assert torch.equal(kept[2], shared) and (kept[[0, 1, 3, 4]] == -1).all()
    assert torch.equal(spread, shared.expand(5, 3))


def test_row_counts_come_from_symbols_and_calls() -> None:
    loops, t = Space("loops"), Type(Space("loops"), (), f32)
    join = Aten("aten.cat.default", ((Operand(0), Operand(1)), 0), (), t)
    b = Builder()
    b.add(Input("a", Type(V, (), f32)))
    b.add(Input("b", Type(E, (), f32)))
    ones = b.add(Const(1.0, t))
    program = b.program(
        [b.add(Pointwise(Op.add, (b.add(join), ones)))], [(V, "s0"), (E, "s1"), (loops, "s0 + 2*s1 - 3")]
    )
    verify(program)
    assert interp(program, {"a": torch.ones(2), "b": torch.zeros(3)})[0].tolist() == [2.0, 2.0, 1.0, 1.0, 1.0]
    with pytest.raises(DataError, match="loops has 9 rows by one tensor and 5 by another"):
        interp(program, {"a": torch.ones(2), "b": torch.zeros(3)}, {loops: 9})
    unknown = replace(program, spaces=((V, "s0"), (E, "s1"), (loops, "u7")))
    with pytest.raises(IRError, match="rows of space loops are unknown"):
        interp(unknown, {"a": torch.ones(2), "b": torch.zeros(3)})


def test_interp_refuses_inputs_that_do_not_fit() -> None:
    program = one_node(Pointwise(Op.neg, (0,)), Type(V, (2,), f32))
    for bad in (torch.zeros(3, 3), torch.zeros(2), torch.zeros(3, 2, dtype=torch.float64), 7):
        with pytest.raises(DataError, match="input 'in0' must be f32"):
            interp(program, {"in0": bad})
    with pytest.raises(DataError, match="'in0' is missing"):
        interp(program, {})


def test_interp_refuses_a_call_of_another_type() -> None:
    call = Aten("aten.neg.default", (Operand(0),), (), Type(V, (), f64))
    with pytest.raises(IRError, match="its type says"):
        run_one(call, [(Type(V, (), f32), torch.ones(3))])


# ---------------------------------------------------------------- calls of ATen operators


def test_calls_take_nested_arguments_and_builtins() -> None:
    b = Builder()
    x = b.add(Input("x", Type(V, (3,), f32)))
    pair = b.add(Aten("aten.sort.stable", (Operand(x),), (("stable", True), ("dim", 1)), AnyType("pair")))
    ordered = b.add(Aten("builtin.getitem", (Operand(pair), 0), (), Type(V, (3,), f32)))
    both = b.add(Aten("aten.cat.default", ((Operand(x), Operand(ordered)), 1), (), Type(V, (6,), f32)))
    wide = b.add(
        Aten("aten._to_copy.default", (Operand(both),), (("dtype", Atom("torch.float64")),), Type(V, (6,), f64))
    )
    program = b.program([wide], SPACES)
    verify(program)
    given = torch.tensor([[3.0, -1.0, 2.0]])
    assert interp(program, {"x": given})[0].tolist() == [[3.0, -1.0, 2.0, -1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    "op",
    [torch.ops.aten.add.Tensor, torch.ops.prims.convert_element_type.default, torch.sym_max, math.floor, torch.sym_int],
)
def test_operators_are_found_by_their_names(op: Callable[..., Any]) -> None:
    assert resolve(target_name(op)) is op


def test_unknown_operators_and_arguments_are_refused() -> None:
    for target in ("aten.no_such_op.default", "aten.add.NoSuch", "builtin.exec", "nowhere.f.g"):
        with pytest.raises(IRError):
            resolve(target)
    with pytest.raises(IRError, match="expected an operator overload"):
        target_name(print)
    with pytest.raises(IRError, match="got slice"):
        to_arg(slice(0, 1), lambda node: 0)
    with pytest.raises(IRError, match="expected a torch dtype"):
        materialise(Atom("torch.load"), [])


def test_arguments_survive_the_round_trip() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    given = [x, [1, (x, None)], "s", 2.5, True, torch.bfloat16, torch.device("cuda:1"), torch.strided,
             torch.channels_last, complex(1, -2), torch.Size([2, 3])]  # fmt: skip
    arg = to_arg(given, lambda node: 7)
    want: Arg = (
        Operand(7), (1, (Operand(7), None)), "s", 2.5, True, Atom("torch.bfloat16"), Atom("device(cuda:1)"),
        Atom("torch.strided"), Atom("torch.channels_last"), Atom("complex(1.0,-2.0)"), (2, 3),
    )  # fmt: skip
    assert arg == want
    back = materialise(arg, {7: "value of x"})
    assert back == ["value of x", [1, ["value of x", None]], *given[2:10], [2, 3]]


def traced(program: Program) -> fx.GraphModule:
    """Every node turned into ATen calls on proxies; takes the inputs and then the row count of each space."""
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    names = [n.name for n in program.nodes if isinstance(n, Input)]
    places = {name: fx.Proxy(graph.placeholder(name), tracer) for name in names}
    rows = {space: fx.Proxy(graph.placeholder(f"rows_{space}"), tracer) for space, _ in program.spaces}
    values: list[Any] = []
    for node in program.nodes:
        match node:
            case Input(name):
                values.append(places[name])
            case Const(value, Type(space, shape)) if space == UNIT:
                made = graph.call_function(torch.ops.aten.full.default, (list(shape), value))
                values.append(fx.Proxy(made, tracer))
            case _:
                values.append(apply(node, values, program.types, rows.__getitem__))
    graph.output([None if r is None else values[r].node for r in program.outputs])
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("program", [gat(), moving((3,), i32, Fold.max, -1.0)], ids=["gat", "moving"])
def test_nodes_become_aten_calls_on_proxies(program: Program) -> None:
    """One trace with symbolic row counts serves every graph: nothing in `apply` looks at values or sizes."""
    module = traced(program)
    assert all(isinstance(n.target, torch._ops.OpOverload) for n in module.graph.nodes if n.op == "call_function")
    for edges in (g for g in ZOO if g.square):
        sizes = {V: edges.num_src, W: edges.num_dst, E: len(edges.src)}
        given = inputs(program, edges, seed=5)
        got = module(*given.values(), *(sizes[s] for s, _ in program.spaces))
        for a, b in zip(got, interp(program, given, sizes), strict=True):
            assert (a is b is None) or torch.equal(a, b)
