"""Pointwise operators, declared in one row each that holds all that the rooms know of the operator.

Some knowledge depends on more than the operator and stands where it is used: powers to a constant (the printers, the
loop interpreter and the importer treat them as torch does), the branches of `where` in the loop interpreter and in
vectors (a branch not taken may be out of range, a condition may be one truth for all lanes), and rules that rewrite one
form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

Domain: TypeAlias = Literal["floats", "numbers", "all"]
"""Element types of operands: "floats" alone, "numbers" are floats and integers, "all" are these and bool."""

DEAR = 8
"""Cost of an elementary function, a root or a quotient, in vector operations for each element."""

ANY, MODEST = (-math.inf, math.inf), (-8.0, 8.0)
"""Ranges of operands in random programs (`Operator.sampled`)."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """Templates of an operator's text in one language, by the type of its last operand; "" where it has none.

    `{x}`, `{y}` and `{z}` are the operands, `{(x)}` an operand in parentheses if it needs them, `{x?}` one as a truth
    value. In C++, `{type}` is the operands' type, `{<type>}` the same as a template argument (nothing in vectors),
    `{unsigned}` the integer type in which arithmetic wraps, `{one}` and (in vectors) `{zero}` are numbers of the type.
    Functions `gw_*` are the package's own: they stand in the C++ header `header`, or in Triton's preamble.
    """

    floats: str = ""
    integers: str = ""
    truths: str = ""
    f32: str = ""
    """The text for float32, where it differs from that for other floats."""
    header: str = ""
    function: str = ""
    """C++ text of a function template that `floats` calls and no header has; a kernel that calls it begins with it."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The facts of one operator. Operands are called x, y and z in formulas and templates."""

    arity: int = 1
    condition: bool = False
    """Whether x is a bool, whatever the other operands are; all others have one type."""
    takes: Domain = "floats"
    """Types of operands on which the result of torch's operator has the operands' type, or is bool."""
    kernels: Domain | None = None
    """Types of operands for which kernels compute it, where these are fewer than `takes`."""
    gives_bool: bool = False
    truths: bool = False
    """Whether it reads its operands as truth values."""
    compares: bool = False
    """Whether the last bit of an operand may change the result completely."""
    on_bool: str = ""
    """Name of the operator that has the same meaning on bool."""

    cost: int = 1
    """Vector operations for each element."""
    signs: tuple[int, ...] = ()
    """The operator is the sum of its operands with these signs; () for an operator that is no sum."""
    linear: tuple[int, ...] = ()
    """Positions of the operands in each of which it is linear while the others are held."""
    neutral: float | None = None
    """The second operand with which the result is the first operand, for a sum up to the sign of a zero."""
    commutative: bool = False
    """Whether its two operands may change places."""
    finite: bool = True
    """Whether finite operands give finite results, unless these overflow."""
    exact: bool = False
    """Whether it rounds nothing: every way to compute it gives the same bits."""

    derivative: tuple[str, ...] | None = None
    """For each operand, a formula for the change of the result that a change g of the operand makes. As each element
    depends on its own operands alone, the formula also gives the operand's gradient if g is the result's gradient.
    `out` is the result; "" where the change is zero, or there is no derivative. None if the result is no number."""
    formula: str = ""
    """The meaning of the operator as a formula of others, where ATen has no call for it. Numbers stand to the right of
    operands."""
    aten: tuple[str, ...] = ()
    """ATen overloads that are imported as this operator; the first is what the interpreters call. A declared operator
    (`declared.py`) has the overload that it is, with its library: "mylib::softsign.default"."""
    jax: tuple[str, ...] = ()
    """JAX's function that computes the operator, by its name in `jax`, and the primitives of JAX's traces that are
    imported as this operator. Empty for declared operators, which have no meaning in JAX."""
    numbers: tuple[int, ...] = ()
    """Operands that the call takes as Python numbers. The importer gives each the same number for all rows."""
    cpp: Spelling = Spelling()
    lanes: Spelling = Spelling()
    """The texts for C++ vectors, where they differ from those for numbers."""
    triton: Spelling = Spelling()
    sampled: tuple[float, float] | None = None
    """Range of operands in random programs: `ANY`, `MODEST` or two finite ends, and `ANY` for an operator of two. In it
    the operator is defined, does not amplify rounding, and its results are at most 1 larger than the operands. None if
    random programs do not draw the operator by itself."""

    @property
    def in_kernels(self) -> Domain:
        return self.kernels or self.takes

    @property
    def dear(self) -> bool:
        """Whether it is worth computing once and keeping."""
        return self.cost > 1


# ---------------------------------------------------------------- rows that are alike


def _alike(text: str, header: str = "") -> Spelling:
    """A spelling with one template for all types."""
    return Spelling(text, text, text, header=header)


def _elementary(
    name: str, derivative: Sequence[str], *, triton: str = "", sampled: tuple[float, float] | None = None,
    arity: int = 1, finite: bool = True, jax: tuple[str, ...] = (),
) -> Operator:  # fmt: skip
    """A function of `elementary.h`."""
    return Operator(
        arity=arity, cost=DEAR, finite=finite, derivative=tuple(derivative), aten=(f"{name}.default",),
        jax=jax or (f"numpy.{name}", name),
        cpp=Spelling(floats=f"gw_{name}({{x}}{', {y}' * (arity - 1)})", header="elementary"),
        triton=Spelling(triton), sampled=sampled,
    )  # fmt: skip


def _root(name: str, derivative: str, cpp: str, triton: str, f32: str, jax: tuple[str, ...]) -> Operator:
    """An operator whose result is rounded as IEEE 754 requires. In float32 Triton's plain operators only approximate
    it, so `f32` is a text of its own."""
    return Operator(
        cost=DEAR, finite=False, derivative=(derivative,), aten=(f"{name}.default",), jax=jax,
        cpp=Spelling(floats=cpp, header="pointwise"), triton=Spelling(triton, f32=f32), sampled=(1.0, 9.0),
    )  # fmt: skip


def _sum(symbol: str, vectors: str, *, sign: int, truths: bool = False) -> Operator:
    wrapping = f"({{type}})(({{unsigned}}){{(x)}} {symbol} ({{unsigned}}){{(y)}})"
    either = ("({x} | {y})", "gw_or({x}, {y})") if truths else ("", "")
    infix, name = f"({{x}} {symbol} {{y}})", "add" if sign > 0 else "sub"
    return Operator(
        arity=2, takes="all" if truths else "numbers", on_bool="logical_or" if truths else "",
        signs=(1, sign), neutral=0.0, commutative=sign > 0, derivative=("g", "g" if sign > 0 else "-g"),
        aten=(f"{name}.Tensor", f"{name}.Scalar"), sampled=ANY,
        jax=("numpy.add", "add", "add_any") if sign > 0 else ("numpy.subtract", "sub"),
        cpp=Spelling(infix, wrapping, either[0]), lanes=Spelling(integers=vectors, truths=either[1]),
        triton=Spelling(infix, infix, either[0]),
    )  # fmt: skip


def _extreme(name: str, short: str, *, reached: str, symbol: str) -> Operator:
    """Maximum or minimum. It is NaN if an operand is NaN. Two equal operands get half of the gradient each."""
    either = {"|": "or", "&": "and"}[symbol]
    parts = (f"where({a} {reached} {b}, where(x == y, g * 0.5, g), 0)" for a, b in ("xy", "yx"))
    return Operator(
        arity=2, takes="all", on_bool=f"logical_{either}", exact=True, commutative=True, derivative=tuple(parts),
        aten=(f"{name}.default",), jax=(f"numpy.{name}", short), sampled=ANY,
        cpp=Spelling(f"gw_{short}({{x}}, {{y}})", f"gw_{short}{{<type>}}({{x}}, {{y}})", f"({{x}} {symbol} {{y}})",
                     header="pointwise"),
        lanes=Spelling(truths=f"gw_{either}({{x}}, {{y}})"),
        triton=Spelling(f"gw_{short}({{x}}, {{y}})", f"tl.{name}({{x}}, {{y}})", f"({{x}} {symbol} {{y}})"),
    )  # fmt: skip


def _comparison(name: str, symbol: str, truths: str, jax: str) -> Operator:
    infix = _alike(f"({{x}} {symbol} {{y}})")
    return Operator(
        arity=2, takes="all", gives_bool=True, compares=True, commutative=name in ("eq", "ne"),
        aten=(f"{name}.Tensor", f"{name}.Scalar"), jax=(f"numpy.{jax}", name),
        cpp=infix, lanes=Spelling(truths=truths), triton=infix,
    )  # fmt: skip


def _logical(name: str, cpp: str, lanes: str, triton: str, *, arity: int = 2) -> Operator:
    return Operator(
        arity=arity, takes="all", gives_bool=True, truths=True, commutative=arity == 2, aten=(f"{name}.default",),
        jax=(f"numpy.{name}", name.removeprefix("logical_")),
        cpp=_alike(cpp), lanes=_alike(lanes), triton=_alike(triton),
    )  # fmt: skip


def _stepped(
    name: str, derivative: str, *, integers: tuple[str, str], triton: str, takes: Domain = "numbers",
    sampled: tuple[float, float] | None = None, also: Sequence[str] = (), jax: tuple[str, ...] = (),
) -> Operator:  # fmt: skip
    """A piecewise linear function, which gives integers for integers; `integers` are the texts for these in C++ and
    Triton."""
    return Operator(
        takes=takes, kernels="numbers", exact=True, derivative=(derivative,), aten=(f"{name}.default", *also),
        jax=jax or (f"numpy.{name}", name),
        cpp=Spelling(f"gw_{name}({{x}})", integers[0], header="pointwise"), triton=Spelling(triton, integers[1]),
        sampled=sampled,
    )  # fmt: skip


# ---------------------------------------------------------------- the operators


class Op(Enum):
    """Row-wise scalar operators, the same in both IRs; semantics are torch's. Random programs choose in this order.

    `Op("tanh")` finds an operator by its name in IR text; ValueError if there is none of that name.
    """

    facts: Operator
    _value_: str

    def __new__(cls, name: str, facts: Operator = Operator()) -> Op:
        op = object.__new__(cls)
        op._value_, op.facts = name, facts
        return op

    tanh = "tanh", _elementary("tanh", ["g * (1 - out * out)"], triton="gw_tanh({x})", sampled=ANY)
    sigmoid = "sigmoid", _elementary("sigmoid", ["g * ((1 - out) * out)"], triton="gw_sigmoid({x})", sampled=ANY,
                                     jax=("nn.sigmoid", "logistic"))  # fmt: skip
    relu = "relu", _stepped(
        "relu", "where(out > 0, g, 0)", sampled=ANY, triton="gw_relu({x})", jax=("nn.relu",),
        integers=("gw_relu{<type>}({x})", "tl.maximum({x}, 0)"),
    )  # fmt: skip
    neg = "neg", Operator(
        takes="numbers", signs=(-1,), linear=(0,), exact=True, derivative=("-g",), aten=("neg.default",), sampled=ANY,
        jax=("numpy.negative", "neg"),
        cpp=Spelling("(-{(x)})", "({type})(0 - ({unsigned}){(x)})", header="pointwise"),
        lanes=Spelling(integers="gw_difference({zero}, {x})"), triton=Spelling("(-{x})", "(-{x})"),
    )  # fmt: skip
    abs = "abs", _stepped(
        "abs", "g * sign(x)", sampled=ANY, triton="tl.abs({x})", takes="all",
        integers=("gw_abs{<type>}({x})", "tl.abs({x})"),
    )  # fmt: skip
    sin = "sin", _elementary("sin", ["g * cos(x)"], triton="tl.sin({x})", sampled=MODEST)
    cos = "cos", _elementary("cos", ["g * -sin(x)"], triton="tl.cos({x})", sampled=MODEST)
    erf = "erf", _elementary("erf", [f"g * ({2 / math.sqrt(math.pi)!r} * exp(-(x * x)))"], triton="tl.erf({x})",
                             sampled=ANY, jax=("lax.erf", "erf"))  # fmt: skip
    exp = "exp", _elementary("exp", ["g * out"], triton="tl.exp({x})", sampled=(-8.0, 0.0))
    expm1 = "expm1", _elementary("expm1", ["g * (out + 1)"], triton="gw_expm1({x})", sampled=(-8.0, 0.0))
    log = "log", _elementary("log", ["g * (1 / x)"], triton="tl.log({x})", sampled=(1.0, 9.0), finite=False)
    log1p = "log1p", _elementary("log1p", ["g * (1 / (x + 1))"], triton="gw_log1p({x})", sampled=(1.0, 9.0),
                                 finite=False)  # fmt: skip
    sqrt = "sqrt", _root("sqrt", "g * (0.5 / out)", "gw_sqrt({x})", "tl.sqrt({x})", "tl.sqrt_rn({x})",
                         jax=("numpy.sqrt", "sqrt"))  # fmt: skip
    rsqrt = "rsqrt", _root(
        "rsqrt", "g * (out * -0.5 * out * out)", "({one} / gw_sqrt({x}))",
        "(1.0 / tl.sqrt({x}))", "tl.div_rn(1.0, tl.sqrt_rn({x}))", jax=("lax.rsqrt", "rsqrt"),
    )  # fmt: skip
    reciprocal = "reciprocal", _root(
        "reciprocal", "g * -(out * out)", "({one} / {(x)})", "(1.0 / {x})", "tl.div_rn(1.0, {x})",
        jax=("numpy.reciprocal",),
    )  # fmt: skip
    sign = "sign", _stepped(
        "sign", "", triton="gw_sign({x})", takes="all", integers=("gw_sign{<type>}({x})", "gw_sign({x})"),
        also=["sgn.default"],
    )  # fmt: skip
    floor = "floor", _stepped("floor", "", triton="tl.floor({x})", integers=("{x}", "{x}"))
    ceil = "ceil", _stepped("ceil", "", triton="tl.ceil({x})", integers=("{x}", "{x}"))
    logical_not = "logical_not", _logical("logical_not", "(!{x?})", "gw_not({x?})", "({x} == 0)", arity=1)
    isnan = "isnan", Operator(
        takes="all", gives_bool=True, aten=("isnan.default",), jax=("numpy.isnan",),
        cpp=Spelling("({x} != {x})", "false", "false"), lanes=_alike("({x} != {x})"),
        triton=Spelling("({x} != {x})", "tl.full([], 0, tl.int1)", "tl.full([], 0, tl.int1)"),
    )  # fmt: skip
    add = "add", _sum("+", "gw_sum({x}, {y})", sign=1, truths=True)
    sub = "sub", _sum("-", "gw_difference({x}, {y})", sign=-1)
    maximum = "maximum", _extreme("maximum", "max", reached=">=", symbol="|")
    minimum = "minimum", _extreme("minimum", "min", reached="<=", symbol="&")
    mul = "mul", Operator(
        arity=2, takes="all", on_bool="logical_and", linear=(0, 1), neutral=1.0, commutative=True,
        derivative=("g * y", "g * x"), aten=("mul.Tensor", "mul.Scalar"), jax=("numpy.multiply", "mul"), sampled=ANY,
        cpp=Spelling("({x} * {y})", "({type})(({unsigned}){(x)} * ({unsigned}){(y)})", "({x} & {y})"),
        lanes=Spelling(integers="gw_product_of({x}, {y})", truths="gw_and({x}, {y})"),
        triton=Spelling("({x} * {y})", "({x} * {y})", "({x} & {y})"),
    )  # fmt: skip
    div = "div", Operator(
        arity=2, cost=DEAR, linear=(0,), neutral=1.0, finite=False, derivative=("g / y", "-g * (out / y)"),
        aten=("div.Tensor", "div.Scalar", "true_divide.Tensor"), jax=("numpy.divide", "div"), sampled=ANY,
        cpp=Spelling("({x} / {y})"), triton=Spelling("({x} / {y})", f32="tl.div_rn({x}, {y})"),
    )  # fmt: skip
    pow = "pow", Operator(
        arity=2, cost=DEAR, takes="numbers", kernels="floats", finite=False,
        derivative=("g * y * pow(x, y - 1)", "g * out * log(x)"), aten=("pow.Tensor_Tensor", "pow.Scalar"),
        jax=("numpy.power", "pow"),
        cpp=Spelling("gw_pow({x}, {y})", header="elementary"), triton=Spelling("gw_pow({x}, {y})"),
    )  # fmt: skip
    atan2 = "atan2", _elementary("atan2", ["g / (x * x + y * y) * y", "-(g / (x * x + y * y) * x)"], arity=2,
                                 jax=("numpy.arctan2", "atan2"))  # fmt: skip
    lt = "lt", _comparison("lt", "<", "gw_and(gw_not({x}), {y})", "less")
    le = "le", _comparison("le", "<=", "gw_or(gw_not({x}), {y})", "less_equal")
    gt = "gt", _comparison("gt", ">", "gw_and({x}, gw_not({y}))", "greater")
    ge = "ge", _comparison("ge", ">=", "gw_or({x}, gw_not({y}))", "greater_equal")
    eq = "eq", _comparison("eq", "==", "gw_not(gw_differ({x}, {y}))", "equal")
    ne = "ne", _comparison("ne", "!=", "gw_differ({x}, {y})", "not_equal")
    logical_and = "logical_and", _logical("logical_and", "({x?} & {y?})", "gw_and({x?}, {y?})", "({x?} & {y?})")
    logical_or = "logical_or", _logical("logical_or", "({x?} | {y?})", "gw_or({x?}, {y?})", "({x?} | {y?})")
    where = "where", Operator(
        arity=3, condition=True, takes="all", exact=True, derivative=("", "where(x, g, 0)", "where(x, 0, g)"),
        aten=("where.self",), jax=("numpy.where",), cpp=_alike("gw_select<{type}>({x}, {y}, {z})", "pointwise"),
        triton=_alike("tl.where({x}, {y}, {z})"),
    )  # fmt: skip
