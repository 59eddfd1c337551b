"""The meaning of a user's fold along an index in PyTorch: the operator `graphweave::fold_rows`, and its derivative.

It is plain PyTorch; kernels compute the same, up to the order of values. `fold_rows` combines neighbours
in pairs, so rounding errors grow with the logarithm of a row's length. Its derivative is the reducer's slope.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from graphweave.core.formulas import evaluate
from graphweave.core.own_reducer import OwnReducer
from graphweave.core.ranges import position, range_error
from graphweave.core.types import Op
from graphweave.ir.operator_calls import call_of


def value_of(formula: str, **names: Tensor) -> Tensor:
    """`formula` of tensors of one dtype and shape."""
    like = next(iter(names.values()))

    def apply(op: Op, operands: tuple[Tensor, ...]) -> Tensor:
        found: Tensor = call_of(op)(*operands)
        return found

    out = evaluate(formula, names, apply, lambda number: torch.full((), number, dtype=like.dtype, device=like.device))
    return out.expand_as(like)


@cache
def names_in(formula: str) -> frozenset[str]:
    """The quantities that a formula names."""
    called = {node.func.id for node in _calls(formula) if isinstance(node.func, ast.Name)}
    return frozenset(node.id for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Name)) - called


def _calls(formula: str) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(formula)) if isinstance(node, ast.Call)]


@torch.library.custom_op(
    "graphweave::fold_rows", mutates_args=(), schema="(Tensor src, Tensor index, SymInt rows, str reducer) -> Tensor"
)
def fold_rows(src: Tensor, index: Tensor, rows: int, reducer: str) -> Tensor:
    """out[v] = the fold of src[e] over all e with index[e] = v, the identity if there is none.

    src: [E, ...] of floats, index: [E] int32 or int64 -> [rows, ...]. `reducer` is the `text` of an `OwnReducer`.
    """
    bad = position(index, rows)
    if bad is not None:
        raise range_error(index, rows, what="index", of="rows", at=bad)
    combine, identity = _combine(reducer)
    order = torch.argsort(index, stable=True)
    row, value = index[order], src[order]
    while True:
        place = _places(row)
        left = place % 2 == 0
        again = torch.nonzero(place % 2 == 1).squeeze(1)
        if not again.numel():
            break
        value = value.index_copy(0, again - 1, combine(value[again - 1], value[again]))
        value, row = value[left], row[left]
    return src.new_full((rows, *src.shape[1:]), identity).index_copy(0, row.long(), value)


@fold_rows.register_fake
def _fold_rows_fake(src: Tensor, index: Tensor, rows: int, reducer: str) -> Tensor:
    return src.new_empty((rows, *src.shape[1:]))


Combine = Callable[[Tensor, Tensor], Tensor]


def _combine(reducer: str) -> tuple[Combine, float]:
    known = OwnReducer.of(reducer)
    return (lambda x, y: value_of(known.combine, x=x, y=y)), known.identity


def _places(row: Tensor) -> Tensor:
    """The place of each element in its run of equal rows."""
    at = torch.arange(row.shape[0], device=row.device)
    return at - torch.searchsorted(row, row)


# ---------------------------------------------------------------- the derivative


def slopes(src: Tensor, index: Tensor, out: Tensor, reducer: OwnReducer) -> Tensor:
    """The derivative of out[index[e]] in src[e], where `out` are the rows of `fold_rows`, as calls that kernels fuse.
    src: [E, ...], out: [rows, ...] -> [E, ...]."""
    known = {"x": src, "out": out.index_select(0, index)}
    if "ties" in names_in(reducer.slope):
        equal = (src == known["out"]).to(src.dtype)
        known["ties"] = torch.zeros_like(out).index_add(0, index, equal).index_select(0, index)
    if reducer.pivot is not None:
        known |= _without_pivot(src, index, out, value_of(reducer.pivot, **known), reducer)
    return value_of(reducer.slope, **known)


def _without_pivot(src: Tensor, index: Tensor, out: Tensor, pivot: Tensor, reducer: OwnReducer) -> dict[str, Tensor]:
    """The first value of each row with the least `pivot`, and the fold of all others, by their names in the slope.

    Numbers of edges are float64, which holds them exactly, since kernels find minima of floats only.
    """
    column = -1, *[1] * (src.dim() - 1)
    at = index.long().reshape(column).expand_as(src)
    number = torch.arange(src.shape[0], dtype=torch.float64, device=src.device).reshape(column)
    least = torch.full_like(out, math.inf).scatter_reduce(0, at, pivot, "amin")
    numbers = torch.where(pivot == least.index_select(0, index), number, math.inf)
    first = torch.full_like(out, math.inf, dtype=torch.float64).scatter_reduce(0, at, numbers, "amin")
    chosen = number == first.index_select(0, index)
    left = torch.zeros_like(out).index_add(0, index, torch.where(chosen, src, 0))
    others = torch.where(chosen, reducer.identity, src)
    kept = torch.ops.graphweave.fold_rows(others, index, out.shape[0], reducer.without_slope.text)
    return {"chosen": chosen, "left": left.index_select(0, index), "kept": kept.index_select(0, index)}


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, ctx.rows, ctx.reducer = inputs
    ctx.save_for_backward(x, index, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, index, out = ctx.saved_tensors
    reducer = OwnReducer.of(ctx.reducer)
    if not reducer.slope:
        raise NotImplementedError(
            "graphweave: a reducer that is flat somewhere has no gradients of gradients. Give it a slope: "
            "(function, identity, slope), with slope(value, result) the derivative of the result."
        )
    if reducer.pivot is None:
        return gradient.index_select(0, index) * slopes(x, index, out, reducer), None, None, None
    # the pivot is compared with one of another pass, so neither may be rounded in between
    wide = torch.promote_types(x.dtype, torch.float32)
    found = gradient.to(wide).index_select(0, index) * slopes(x.to(wide), index, out.to(wide), reducer)
    return found.to(x.dtype), None, None, None


fold_rows.register_autograd(_backward, setup_context=_setup)
