"""Scalar expressions of the loop IR as expressions on tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from graphweave.codegen.arrays import flatten
from graphweave.codegen.spelling import template
from graphweave.codegen.triton.axes import aligned
from graphweave.codegen.triton.names import literal, ttype
from graphweave.codegen.triton.registers import read
from graphweave.codegen.triton.scope import Printed, TritonScope
from graphweave.core.errors import IRError
from graphweave.core.formulas import evaluate
from graphweave.core.types import HALF, AnyFold, DType, Fold, Op, OwnFold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.loop.types import dtype_of, result_type


def expression(expr: loop.Expr, scope: TritonScope) -> Printed:
    """`expr` for all rows, edges and lanes around it, parenthesised so that it may stand as an operand."""
    match expr:
        case loop.Var(name):
            v = scope.variables[name]
            return Printed(aligned(v.text, v.dims, scope.dims), v.axes, bool(v.dims))
        case loop.Lit(value, dtype):
            return Printed(literal(value, dtype))
        case loop.Load(buffer, index):
            return _load(buffer, index, scope)
        case loop.CastTo(x, dtype):
            return _cast(x, dtype, scope)
        case loop.IndexSum():
            return _index_sum(expr, scope)
        case loop.Degree(csr, row):
            return _degree(csr, row, scope)
        case loop.Uniform(seed, row, size, index, dtype):
            return _uniform(seed, row, size, index, dtype, scope)
        case loop.Call(op, args):
            return _call(op, args, scope)


def tensor(expr: loop.Expr, scope: TritonScope) -> Printed:
    """`expr` as a tensor of its type; to Triton a bare number is none."""
    if isinstance(expr, loop.Lit):
        text = f"tl.full([], {_number(expr)}, {ttype(expr.dtype)})"
        return Printed(text)
    return expression(expr, scope)


def _number(lit: loop.Lit) -> str:
    if lit.dtype is DType.bool:
        return str(int(bool(lit.value)))
    if not lit.dtype.is_float:
        return str(int(lit.value))
    return repr(float(lit.value)) if math.isfinite(lit.value) else f'float("{float(lit.value)}")'


# ---------------------------------------------------------------- memory


def pointer(buffer: str, index: tuple[loop.Expr, ...], scope: TritonScope) -> Printed:
    """Address of `buffer[index]`; row numbers are converted to 64 bits before they are multiplied."""
    info = scope.arrays[buffer]
    features = index[1:] if info.has_rows else index
    parts = [Printed(scope.names.of(buffer))]
    if info.has_rows:
        row = expression(index[0], scope)
        if info.numel != 1:
            wide = row.text if dtype_of(index[0], scope.types) is DType.i64 else f"{row.text}.to(tl.int64)"
            row = Printed(f"{wide} * {info.numel}", row.axes, row.ranked)
        parts.append(row)
    parts += offset(features, info.shape, scope)
    return _join_parts(" + ".join(p.text for p in parts), parts)


def offset(features: tuple[loop.Expr, ...], extents: tuple[int, ...], scope: TritonScope) -> list[Printed]:
    """The terms of an element's offset in a contiguous block."""
    affine, rest = flatten(features, extents)
    out = []
    for name, coefficient in affine.terms.items():
        if coefficient:
            lane = expression(loop.Var(name), scope)
            out.append(lane if coefficient == 1 else Printed(f"{lane.text} * {coefficient}", lane.axes, lane.ranked))
    for expr, stride in rest:
        part = expression(expr, scope)
        out.append(part if stride == 1 else Printed(f"{part.text} * {stride}", part.axes, part.ranked))
    if affine.offset:
        out.append(Printed(str(affine.offset)))
    return out


def _load(buffer: str, index: tuple[loop.Expr, ...], scope: TritonScope) -> Printed:
    if buffer in scope.held:
        return read(scope, scope.held[buffer], scope.position(buffer, index))
    if buffer not in scope.arrays:
        raise IRError(f"'{buffer}' is no buffer or array of this kernel.")
    key = (buffer, index, scope.dims)
    if key not in scope.loaded:
        info = scope.arrays[buffer]
        at, name = pointer(buffer, index, scope), scope.fresh(buffer, "at")
        mask = scope.mask(at.axes)
        masked = f", mask={mask}, other={'0.0' if info.dtype.is_float else '0'}" if mask else ""
        scope.line_of_load(at, index, name)(f"{name} = tl.load({at.text}{masked})")
        scope.loaded[key] = Printed(name, at.axes, at.ranked)
    return scope.loaded[key]


# ---------------------------------------------------------------- values


def _join_parts(text: str, parts: Sequence[Printed]) -> Printed:
    return Printed(text, frozenset().union(*(p.axes for p in parts)), any(p.ranked for p in parts))


def _index_sum(index: loop.IndexSum, scope: TritonScope) -> Printed:
    parts = []
    for name, coefficient in index.terms:
        lane = expression(loop.Var(name), scope)
        parts.append(lane if coefficient == 1 else Printed(f"{lane.text} * {coefficient}", lane.axes, lane.ranked))
    if index.offset or not parts:
        parts.append(Printed(str(index.offset)))
    text = "(" + " + ".join(p.text for p in parts) + ")"
    if index.div != 1:
        text = f"({text} // {index.div})"
    if index.mod is not None:
        text = f"({text} % {index.mod})"
    return _join_parts(text, parts)


def _degree(csr: str, row: loop.Expr, scope: TritonScope) -> Printed:
    indptr, at = scope.names.derived(csr, "indptr"), expression(row, scope)
    mask = scope.mask(at.axes)
    masked = f", mask={mask}, other=0" if mask else ""
    ends = (f"tl.load({indptr} + {at.text}{plus}{masked})" for plus in (" + 1", ""))
    return Printed(f"({' - '.join(ends)}).to(tl.int64)", at.axes, at.ranked)


def _uniform(
    seed: loop.Expr, row: loop.Expr, size: int, index: loop.IndexSum, dtype: DType, scope: TritonScope
) -> Printed:
    scope.helpers.add(f"gw_uniform_{dtype.value}")
    s, r = expression(seed, scope), expression(row, scope)
    # The position is converted to int64, so that it does not overflow.
    parts = [Printed(f"{r.text}.to(tl.int64) * {size}", r.axes, r.ranked), *offset((index,), (size,), scope)]
    text = f"gw_uniform_{dtype.value}({s.text}, {' + '.join(p.text for p in parts)})"
    return _join_parts(text, [s, *parts])


def _cast(x: loop.Expr, dtype: DType, scope: TritonScope) -> Printed:
    value, source = expression(x, scope), dtype_of(x, scope.types)
    if source is dtype:
        return value
    text = (
        value.text
        if value.ranked or isinstance(x, loop.Load | loop.Var)
        else f"tl.full([], {value.text}, {ttype(source)})"
    )
    if isinstance(x, loop.Var | loop.IndexSum | loop.Degree) and not value.ranked:
        text = f"({value.text} + tl.full([], 0, tl.int64))"
    if dtype is DType.bool:
        return Printed(f"({value.text} != 0)", value.axes, value.ranked)
    if dtype in HALF:
        text = f"{text}.to(tl.float32).to({ttype(dtype)})"
    elif source.is_float and dtype in (DType.u8, DType.i8, DType.i16):
        text = f"{text}.to(tl.int64).to({ttype(dtype)})"  # wraps, where the direct conversion is undefined
    else:
        text = f"{text}.to({ttype(dtype)})"
    return Printed(text, value.axes, value.ranked)


_POWERS = {0.0: "(tl.zeros_like({x}) + 1.0)", 1.0: "{x}", 2.0: "({x} * {x})", 3.0: "({x} * {x} * {x})"}
_ROOTS = {0.5: Op.sqrt, -0.5: Op.rsqrt, -1.0: Op.reciprocal}


def _call(op: Op, args: tuple[loop.Expr, ...], scope: TritonScope) -> Printed:
    dtype = dtype_of(args[-1], scope.types)
    # Triton could not tell the type of a `where` between two bare numbers.
    bare = op is Op.where and all(isinstance(arg, loop.Lit) for arg in args[1:])
    parts = [tensor(arg, scope) if bare else expression(arg, scope) for arg in args]
    texts = [p.text for p in parts]
    exponent = args[1] if op is Op.pow else None
    if isinstance(exponent, loop.Lit):
        text = _power(texts[0], float(exponent.value), texts[1], dtype, scope)
    else:
        text = _written(op, dtype, texts, scope)
    whole = _join_parts(text, parts)
    if op.facts.gives_bool and not whole.ranked and not all(isinstance(arg, loop.Lit) for arg in args):
        # Triton's interpreter (3.9) broadcasts a scalar truth as a number of the type that was compared.
        return Printed(f"({text}.to(tl.int32) != 0)")
    return whole


def _written(op: Op, dtype: DType, texts: list[str], scope: TritonScope) -> str:
    text, _ = template(op, "Triton", dtype, op.facts.triton)
    scope.helpers.update(re.findall(r"gw_\w+", text))
    values = dict(zip("xyz", texts, strict=False))
    return text.format_map(values | {f"{k}?": v if dtype is DType.bool else f"({v} != 0)" for k, v in values.items()})


def _power(x: str, exponent: float, text: str, dtype: DType, scope: TritonScope) -> str:
    """x to a constant power, without a logarithm where that is possible."""
    if exponent in _POWERS:
        return _POWERS[exponent].format(x=x)
    if exponent in _ROOTS:
        return _written(_ROOTS[exponent], dtype, [x], scope)
    return _written(Op.pow, dtype, [x, f"(tl.zeros_like({x}) + {text})"], scope)


# ---------------------------------------------------------------- reductions


def fold_into(fold: AnyFold, dtype: DType, target: str, value: str, scope: TritonScope) -> str:
    """fold(target, value), element by element."""
    if isinstance(fold, OwnFold):
        return f"{_own(fold, dtype, scope)}({target}, {value})"
    if dtype is DType.bool:
        return f"({target} {'|' if fold in (Fold.sum, Fold.max) else '&'} {value})"
    match fold:
        case Fold.sum | Fold.mul:
            return f"{target} {'+' if fold is Fold.sum else '*'} {value}"
        case Fold.max | Fold.min:
            if not dtype.is_float:
                return f"tl.{fold.value}imum({target}, {value})"
            scope.helpers.add(f"gw_{fold.value}")
            return f"gw_{fold.value}({target}, {value})"


def reduce_axis(fold: AnyFold, dtype: DType, value: str, axis: int, scope: TritonScope) -> str:
    """`value` folded over its dimension `axis`, which the result lacks."""
    if isinstance(fold, OwnFold):
        return f"tl.reduce({value}, {axis}, {_own(fold, dtype, scope)})"
    if dtype is DType.bool:
        which = "max" if fold in (Fold.sum, Fold.max) else "min"
        return f"(tl.{which}(({value}).to(tl.int32), axis={axis}) != 0)"
    if fold is Fold.sum:
        text = f"tl.sum({value}, axis={axis})"
        return text if dtype.is_float or dtype in (DType.i64, DType.i32) else f"{text}.to({ttype(dtype)})"
    if fold is Fold.mul or dtype.is_float:
        scope.helpers.add(f"gw_fold_{fold.value}")
        return f"gw_fold_{fold.value}({value}, {axis})"
    return f"tl.{fold.value}({value}, axis={axis}).to({ttype(dtype)})"


def _own(fold: OwnFold, dtype: DType, scope: TritonScope) -> str:
    """The name of a function of two tensors in the kernel's module, which computes the user's fold."""
    if fold not in scope.own_folds:

        def apply(op: Op, args: tuple[tuple[str, DType], ...]) -> tuple[str, DType]:
            of = args[-1][1]
            return _written(op, of, [text for text, _ in args], scope), result_type(op, of)

        names = {name: (name, dtype) for name in "xy"}
        text, _ = evaluate(fold.combine, names, apply, lambda number: (literal(number, dtype), dtype))
        name = f"gw_own_{len(scope.own_folds)}"
        scope.own_folds[fold] = name, f"def {name}(x, y):\n    return {text}\n"
    return scope.own_folds[fold][0]
