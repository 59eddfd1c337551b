"""A node's class alone defines it: operands, text and parsing follow from its fields and its template."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from graphweave.core.errors import ParseError
from graphweave.core.lines import NOWHERE
from graphweave.core.types import DType, Fold, Space
from graphweave.ir.loop.nodes import Expr, Kernel, Lane, Let, Lit, Load, Stmt, Store, Var, expression, statement
from graphweave.ir.loop.parse import parse as parse_kernel
from graphweave.ir.loop.show import show as show_kernel
from graphweave.ir.loop.walk import expressions, mapped, relocated, statements, subexpressions
from graphweave.ir.message.builder import operands, spaces_in, with_operands
from graphweave.ir.message.nodes import Input, Program, Ref, Type, node
from graphweave.ir.message.parse import parse
from graphweave.ir.message.show import show
from tests.loop_support import spmm

# ---------------------------------------------------------------- what a developer writes


@node("scan.{fold} {x} by {keys}| from={first}| {reverse}")
@dataclass(frozen=True, slots=True)
class Scan:
    """out[r] = fold of x[s] over s <= r with equal keys."""

    x: Ref
    keys: tuple[Ref, ...]
    fold: Fold
    first: float = 0.0
    reverse: bool = False


@node()
@dataclass(frozen=True, slots=True)
class Lookup:
    """A node whose text is made from its fields."""

    x: Ref
    others: tuple[Ref, ...]
    weight: Ref | None
    space: Space
    dims: tuple[int, ...]
    strict: bool = False


@statement("repeat {lane}| from {start}| {\n  {body}\n  until {stop}\n}")
@dataclass(frozen=True, slots=True)
class Repeat:
    lane: Lane
    body: tuple[Stmt, ...]
    stop: Expr
    start: Expr | None = None


@expression("clamp({x}, {low} to {high})")
@dataclass(frozen=True, slots=True)
class Clamp:
    x: Expr
    low: float
    high: float


# ---------------------------------------------------------------- what works without more code

V, E = Space("V"), Space("E")


@pytest.mark.parametrize(
    ("new", "text"),
    [
        (Scan(0, (1, 0), Fold.max), "scan.max %0 by %1, %0"),
        (Scan(0, (1,), Fold.sum, -0.0, reverse=True), "scan.sum %0 by %1 from=-0.0 reverse"),
        (Scan(0, (), Fold.sum, reverse=True), "scan.sum %0 by reverse"),
        (Lookup(0, (1, 0), 1, V, (2, 3)), "lookup %0, %1, %0, %1 space=V dims=[2, 3]"),
        (Lookup(0, (), None, E, (), strict=True), "lookup %0 space=E dims=[] strict"),
    ],
)
def test_a_node_of_message_programs(new: Scan | Lookup, text: str) -> None:
    t = Type(V, (), DType.f32)
    program = Program((Input("x", t), Input("y", t), new), (t,) * 3, (NOWHERE,) * 3, (2,), ((V, 7), (E, None)))  # type: ignore[arg-type]
    assert f"%2: V[] f32 = {text}\n" in show(program)
    if not (isinstance(new, Lookup) and new.weight is not None):  # the first tuple takes the whole list
        assert parse(show(program)) == program


def test_operands_and_spaces_of_a_node() -> None:
    scan, lookup = Scan(4, (5, 6), Fold.sum), Lookup(1, (2, 3), 7, E, ())
    assert operands(scan) == (4, 5, 6)  # type: ignore[arg-type]
    assert with_operands(scan, lambda ref: ref + 10) == Scan(14, (15, 16), Fold.sum)  # type: ignore[arg-type, comparison-overlap]
    assert operands(lookup) == (1, 2, 3, 7)  # type: ignore[arg-type]
    assert operands(replace(lookup, weight=None)) == (1, 2, 3)  # type: ignore[arg-type]
    assert spaces_in(lookup) == (E,)  # type: ignore[arg-type]


def test_nodes_of_kernels() -> None:
    load = Load("x", (Var("v"), Var("i")))
    store = Store("y", (Var("v"), Var("i")), Clamp(load, -1.0, 1.0))  # type: ignore[arg-type]
    inner = Repeat(("j", 2), (Let("a", DType.f32, load),), Lit(True, DType.bool), Var("v"))
    outer = Repeat(("i", 4), (store, inner), Var("i"))  # type: ignore[arg-type]
    kernel: Kernel = replace(spmm(4), body=(outer,))  # type: ignore[arg-type]
    text = show_kernel(kernel)
    assert text.endswith(
        """\
  do
    repeat i < 4 {
      y[v, i] = clamp(x[v, i], -1.0 to 1.0)
      repeat j < 2 from v {
        let a: f32 = x[v, i]
        until true:bool
      }
      until i
    }
}
"""
    )
    assert parse_kernel(text) == kernel
    assert [type(s).__name__ for s in statements(kernel.body)] == ["Repeat", "Store", "Repeat", "Let"]
    assert expressions(inner) == (inner.stop, inner.start)  # type: ignore[arg-type]
    assert [e for e in subexpressions(store.value) if isinstance(e, Load)] == [load]
    assert mapped(inner, lambda e: Var("z"), lambda s: s) == Repeat(inner.lane, inner.body, Var("z"), Var("z"))
    moved = relocated(outer, lambda array, index: (f"{array}_near", index[1:]))  # type: ignore[arg-type]
    assert "clamp(x_near[i], -1.0 to 1.0)" in show_kernel(replace(kernel, body=(moved,)))
    with pytest.raises(ParseError, match=r"line 8, column 37: expected 'to', got 'or 1\.0\)'"):
        parse_kernel(text.replace(" to ", " or "))


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("template", ["bad {x}", "bad {x} {y} {z}", "bad {x} {x} {y}", "bad {x} | {y}|"])
def test_a_template_has_each_field_once(template: str) -> None:
    with pytest.raises(TypeError, match="Bad"):

        @statement(template)
        @dataclass(frozen=True, slots=True)
        class Bad:
            x: str
            y: int
