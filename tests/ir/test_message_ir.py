"""Message IR by example: text, verifier, types, builder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import graphweave.ir.message
from graphweave.core.errors import IRError, ParseError
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.sizes import read
from graphweave.core.types import UNIT, DType, Fold, Op, Space
from graphweave.ir.message.builder import Builder, operands
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import (
    AddMatMul,
    Aten,
    Atom,
    Broadcast,
    Cast,
    Concat,
    Const,
    Gram,
    Input,
    LaidOut,
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
)
from graphweave.ir.message.parse import any_type, parse, read_location
from graphweave.ir.message.show import show
from graphweave.ir.message.verify import verify
from tests.programs.examples import SPACES, E, V, W, gat, one_node

f32, f64, i64, i32, boolean = DType.f32, DType.f64, DType.i64, DType.i32, DType.bool


# ---------------------------------------------------------------- text

ODD = Program(
    nodes=(
        Input("x y", Type(Space("odd space"), (), f32)),
        Input("sizes", any_type('i64[2, s43] "quoted"')),
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
            any_type(""),
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
        MatMul(1, 2, 9),
        Gram(1, 2, 9),
        AddMatMul(3, 1, 2),
        AddMatMul(3, 1, 2, 9),
        MatMul(1, 2, 9, called=True),
        Gram(1, 2, called=True),
        LaidOut(1, (1, 0), whole=True),
    ),
    types=(
        Type(Space("odd space"), (), f32), any_type('i64[2, s43] "quoted"'), Type(E, (), f32), Type(E, (), f32),
        Type(E, (), f32), Type(E, (2, 1), f64), Type(UNIT, (), i64), Type(UNIT, (), boolean), Type(E, (), f64),
        MapType(Space("any"), UNIT), any_type(""), Type(E, (), i64), Type(Space("any"), (), f32), any_type("any"),
        Type(Space("any"), (1,), f64), *([Type(E, (), DType.u8)] * 6), MapType(E, Space("wrap")),
        *([Type(E, (0, 3), DType.i16)] * 10),
    ),
    locs=(
        *map(read_location, ("a.py:1 x = '#'", "", '"starts quoted', " blanks ", "line\nbreak", "tab\there")),
        *[NOWHERE] * 25, Location("/lib/b.py", 7, "\u2028 \u00e9 %3", Location("c d.py", 2)),
    ),
    outputs=(10, None, 3, 3),
    spaces=((Space("odd space"), read("2*s0 + 1")), (E, None), (Space("any"), read(' "x" # y'))),
)  # fmt: skip


@pytest.mark.parametrize("program", [ODD, gat(), Program((), (), (), (), ())], ids=["odd", "gat", "nothing"])
def test_text_reads_back_to_an_equal_program(program: Program) -> None:
    back = parse(show(program))
    assert back == program
    assert show(back) == show(program)  # show tells 1, 1.0, True, 0.0 and -0.0 apart


def test_text_of_a_gat_layer(golden: Callable[[str, str], None]) -> None:
    verify(gat())
    golden("message_gat.txt", show(gat()))


def test_grammar_page_shows_a_program() -> None:
    page = Path(graphweave.ir.message.__file__).with_name("GRAMMAR.md").read_text()
    program = parse(page.split("```")[1].removeprefix("text"))
    verify(program)
    assert [type(n).__name__ for n in program.nodes] == ["Input"] * 3 + ["MapOf", "MapOf", "Pull", "Push"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "line 1: expected 'return'"),
        ("space V s0\nreturn", "line 1, column 9: expected '='"),
        ("%1: V[] f32 = input x\nreturn", "line 1, column 1: expected '%0'"),
        ("%0: V[] f33 = input x\nreturn", "expected one of f64, f32"),
        ("%0: V[] f32 = inputt x\nreturn", "expected one of tanh, sigmoid"),
        ("%0: V[] f32 = push.mean %1, %2\nreturn", "expected one of sum, mul, max, min"),
        ("%0: V[4.5] f32 = input x\nreturn", "expected an integer"),
        ("%0: V[] f32 = pull 1, %2\nreturn", "expected an operand such as %3"),
        ("%0: V[] f32 = const x\nreturn", "expected a number"),
        ("%0: V -> W = const 1\nreturn", "expected a value type in this line"),
        ("%0: V -> W = input x\nreturn", "expected no map type"),
        ("%0: V[] f32 = neg %0 %0\nreturn", "expected ',' or the end of the line, got '%0'"),
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
        (lambda p: replace(p, locs=(*p.locs, NOWHERE)), "expected a type and a location for each"),
        (lambda p: replace(p, outputs=(99,)), "output %99 is no node"),
        (lambda p: replace(p, outputs=(-1,)), "output %-1 is no node"),
        (lambda p: replace(p, spaces=p.spaces[:1]), "space E is not declared"),
        (lambda p: replace(p, spaces=(*p.spaces, (V, read("s9")))), "declared twice"),
        (lambda p: replace(p, spaces=(*p.spaces, (UNIT, 1))), "is always there"),
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
        (MatMul(0, 1, 2), (Type(V, (3,), f32), Type(UNIT, (3, 2), f32), MapType(V, UNIT))),
        (MatMul(0, 1, 2), (Type(V, (3,), f32), Type(E, (3, 2), f32), MapType(E, V))),
        (Gram(0, 1, 2), (Type(V, (2, 3), f32), Type(V, (1, 3), f32), MapType(V, E))),
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


def test_constants_are_equal_if_they_are_the_same_number() -> None:
    """NaN equals itself, although Python 3.13 compares the fields of dataclasses one by one."""
    t = Type(UNIT, (), DType.f32)
    assert Const(float("nan"), t) == Const(float("nan"), t)
    assert hash(Const(float("nan"), t)) == hash(Const(float("nan"), t))
    assert Const(0.0, t) != Const(-0.0, t)
    assert Const(1, t) != Const(1.0, t)
