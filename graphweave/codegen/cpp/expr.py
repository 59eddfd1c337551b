"""Scalar expressions of the loop IR as C++ expressions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from graphweave.codegen.arrays import Array, flatten
from graphweave.codegen.cpp.names import ctype, literal
from graphweave.codegen.cpp.native import HALVES, Header
from graphweave.codegen.names import Names
from graphweave.codegen.spelling import template
from graphweave.core.errors import IRError
from graphweave.core.types import DType, Fold, Op
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import dtype_of


@dataclass(slots=True)
class CppScope:
    """The names and types that the printer knows at one point of the kernel."""

    names: Names
    arrays: dict[str, Array]
    types: dict[str, DType]
    row_pointers: dict[tuple[str, str], str] = field(default_factory=dict)  # (array, row variable) -> pointer
    fused: set[str] = field(default_factory=set)  # lanes that another lane's loop also covers
    headers: set[Header] = field(default_factory=set)  # with the functions used so far
    functions: dict[str, str] = field(default_factory=dict)  # operator -> text of the function that no header has
    vectors: int | None = None  # bytes of a vector of lanes, at most; None is what the machine has
    runs: frozenset[str] = frozenset()  # CSRs without an indptr, whose rows have equally many positions

    def uses(self, op: Op, header: str) -> None:
        """The text of `op` is printed, which calls a function of `header`, if that is not empty."""
        if header:
            self.headers.add(cast(Header, header))
        if op.facts.cpp.function:
            self.functions[op.value] = op.facts.cpp.function


# ---------------------------------------------------------------- addresses


def element(array: str, index: tuple[loop.Expr, ...], scope: CppScope) -> str:
    """The C++ lvalue for `array[index]`."""
    base, offset = address(array, index, scope)
    return base if offset is None else f"{base}[{offset}]"


def address(array: str, index: tuple[loop.Expr, ...], scope: CppScope) -> tuple[str, str | None]:
    """A pointer, and the offset from it of `array[index]`; for a scalar its variable and None."""
    info = scope.arrays[array]
    row = index[0] if info.has_rows else None
    features = index[1:] if info.has_rows else index
    base = scope.names.of(info.name)
    if len(features) != len(info.shape):
        raise IRError(f"'{array}' has {len(info.shape)} feature dimensions, indexed with {len(features)}.")
    offset = offset_text(features, info.shape, scope)
    if row is None:
        return base, None if info.is_scalar else offset
    if isinstance(row, loop.Var) and (array, row.name) in scope.row_pointers:
        return scope.row_pointers[array, row.name], offset
    row_text = row_offset(row, info.numel, scope)
    return base, row_text if offset == "0" else f"{row_text} + {offset}"


def row_offset(row: loop.Expr, numel: int, scope: CppScope) -> str:
    """The number of elements before row `row`, converted to 64 bits before the multiplication."""
    text = expression(row, scope)
    wide = text if dtype_of(row, scope.types) is DType.i64 else f"(int64_t){_atom(text)}"
    return wide if numel == 1 else f"{_atom(wide) if ' ' in wide else wide} * {numel}"


def offset_text(features: tuple[loop.Expr, ...], shape: tuple[int, ...], scope: CppScope) -> str:
    """The element offset of feature indices in a contiguous block of `shape`."""
    affine, rest = flatten(features, shape)
    parts = []
    for name, coefficient in affine.terms.items():
        if coefficient and name not in scope.fused:
            variable = scope.names.of(name)
            parts.append(variable if coefficient == 1 else f"{variable} * {_signed(coefficient)}")
    for expr, stride in rest:
        text = _atom(expression(expr, scope))
        parts.append(text if stride == 1 else f"(int64_t){text} * {stride}")
    if affine.offset or not parts:
        parts.append(_signed(affine.offset))
    return " + ".join(parts)


def _signed(number: int) -> str:
    return str(number) if number >= 0 else f"({number})"


def _atom(text: str) -> str:
    simple = text.replace("_", "").replace(".", "").isalnum() or (text.startswith("(") and text.endswith(")"))
    return text if simple and text.count("(") <= 1 else f"({text})"


# ---------------------------------------------------------------- values


def expression(expr: loop.Expr, scope: CppScope) -> str:
    """`expr` as a C++ expression, parenthesised so that it may stand as an operand."""
    match expr:
        case loop.Var(name):
            return scope.names.of(name)
        case loop.Lit(value, dtype):
            return literal(value, dtype)
        case loop.Load(array, index):
            return element(array, index, scope)
        case loop.CastTo(x, dtype):
            return _cast(x, dtype, scope)
        case loop.IndexSum():
            return _index_sum(expr, scope)
        case loop.Degree(csr, row):
            if csr in scope.runs:
                return scope.names.derived(csr, "degree")
            indptr, r = scope.names.derived(csr, "indptr"), expression(row, scope)
            return f"((int64_t){indptr}[{r} + 1] - (int64_t){indptr}[{r}])"
        case loop.Uniform(seed, row, size, index, dtype):
            scope.headers.add("random")
            position = f"{row_offset(row, size, scope)} + {offset_text((index,), (size,), scope)}"
            return f"gw_uniform_{dtype.value}({expression(seed, scope)}, {position})"
        case loop.Call(op, args):
            return _call(op, args, scope)


def begin_of(csr: str, row: str, scope: CppScope) -> str:
    """The first position of a row of `csr`, which the C++ expression `row` counts."""
    if csr in scope.runs:
        return f"({row}) * {scope.names.derived(csr, 'degree')}"
    return f"{scope.names.derived(csr, 'indptr')}[{row}]"


def _cast(x: loop.Expr, dtype: DType, scope: CppScope) -> str:
    text, source = expression(x, scope), dtype_of(x, scope.types)
    if source is dtype:
        return text
    if dtype is DType.bool:
        return f"({text} != 0)"
    if dtype in HALVES:
        scope.headers.add(HALVES[dtype])
    if source.is_float and dtype in (DType.u8, DType.i8, DType.i16):
        return f"({ctype(dtype)})(int64_t){_atom(text)}"  # wraps, where the direct conversion is undefined
    return f"({ctype(dtype)}){_atom(text)}"


def _index_sum(index: loop.IndexSum, scope: CppScope) -> str:
    parts = []
    for name, coefficient in index.terms:
        variable = scope.names.of(name)
        parts.append(variable if coefficient == 1 else f"{variable} * {_signed(coefficient)}")
    if index.offset or not parts:
        parts.append(_signed(index.offset))
    text = " + ".join(parts)
    if index.div != 1:
        text = f"({text}) / {index.div}"
    if index.mod is not None:
        text = f"({text}) % {index.mod}"
    return text if len(parts) == 1 and index.div == 1 and index.mod is None and " " not in text else f"({text})"


_UNSIGNED = {DType.i64: "uint64_t", DType.i32: "uint32_t"}
_POWERS = {0.0: "{one}", 1.0: "{x}", 2.0: "gw_squared({x})", 3.0: "gw_cubed({x})", 0.5: "gw_sqrt({x})",
           -0.5: "({one} / gw_sqrt({x}))", -1.0: "({one} / {x})", -2.0: "({one} / gw_squared({x}))"}  # fmt: skip


def constant_power(op: Op, args: tuple[loop.Expr, ...]) -> str | None:
    """The template of a power with a constant exponent that needs no logarithm; None for any other operation."""
    exponent = args[1] if op is Op.pow else None
    return _POWERS.get(float(exponent.value)) if isinstance(exponent, loop.Lit) else None


def filled(text: str, operands: list[str], **more: str) -> str:
    """A template of `core/operators.py`, filled with `operands` and with `more`, other fields by name."""
    values = dict(zip("xyz", operands, strict=False))
    return text.format_map(more | values | {f"({name})": _atom(value) for name, value in values.items()})


def _call(op: Op, args: tuple[loop.Expr, ...], scope: CppScope) -> str:
    dtype = dtype_of(args[-1], scope.types)
    return _written(op, dtype, [expression(arg, scope) for arg in args], scope, constant_power(op, args))


def _written(op: Op, dtype: DType, texts: list[str], scope: CppScope, power: str | None = None) -> str:
    text, header = template(op, "C++", dtype, op.facts.cpp)
    scope.uses(op, header)
    truths = {f"{name}?": _truth(t, dtype) for name, t in zip("xyz", texts, strict=False)}
    return filled(
        power or text, texts, one=literal(1, dtype), type=ctype(dtype), unsigned=_UNSIGNED.get(dtype, "uint32_t"),
        **truths, **{"<type>": f"<{ctype(dtype)}>"},
    )  # fmt: skip


def _truth(text: str, dtype: DType) -> str:
    return _atom(text) if dtype is DType.bool else f"({text} != 0)"


def accumulated(fold: Fold, dtype: DType, target: str, value: loop.Expr, scope: CppScope) -> str:
    """Folds like `folded`, but adds a product in one step, rounded once.

    That is allowed since sums, unlike other values, are never compared with what another kernel computes again.
    """
    match value:
        case loop.Call(Op.mul, (a, b)) if fold is Fold.sum and dtype.is_float:
            scope.headers.add("numbers")
            return f"{target} = gw_madd({expression(a, scope)}, {expression(b, scope)}, {target})"
    return fold_into(fold, dtype, target, expression(value, scope), scope)


def fold_into(fold: Fold, dtype: DType, target: str, value: str, scope: CppScope) -> str:
    """The statement `target = fold(target, value)` without its semicolon."""
    if dtype.is_float and fold in (Fold.sum, Fold.mul):
        return f"{target} {'+' if fold is Fold.sum else '*'}= {value}"
    if dtype.is_float:
        scope.headers.add("pointwise")
        return f"{target} = gw_{fold.value}<{ctype(dtype)}>({target}, {value})"
    return f"{target} = {_written(fold.op, dtype, [target, value], scope)}"
