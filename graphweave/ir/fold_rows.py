"""The meaning of a user's fold along an index in PyTorch: the operator `graphweave::fold_rows`, and its derivative.

Both operators are plain PyTorch; kernels compute the same, up to the order of values. `fold_rows` combines neighbours
in pairs, so rounding errors grow with the logarithm of a row's length. Its derivative is the reducer's slope. For one
that names the fold of all other values of a row, `fold_others` computes these by a scan from either side.
"""

from __future__ import annotations

import ast
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


@torch.library.custom_op(
    "graphweave::fold_others", mutates_args=(), schema="(Tensor src, Tensor index, str reducer) -> Tensor"
)
def fold_others(src: Tensor, index: Tensor, reducer: str) -> Tensor:
    """out[e] = the fold of src[f] over all f != e with index[f] = index[e]. src: [E, ...], index: [E] -> [E, ...]."""
    combine, identity = _combine(reducer)
    order = torch.argsort(index, stable=True)
    row, value = index[order], src[order]
    before = _scanned(value, row, combine, identity)
    after = _scanned(value.flip(0), row.flip(0), combine, identity).flip(0)
    return torch.empty_like(src).index_copy(0, order, combine(before, after))


@fold_others.register_fake
def _fold_others_fake(src: Tensor, index: Tensor, reducer: str) -> Tensor:
    return torch.empty_like(src)


Combine = Callable[[Tensor, Tensor], Tensor]


def _combine(reducer: str) -> tuple[Combine, float]:
    known = OwnReducer.of(reducer)
    return (lambda x, y: value_of(known.combine, x=x, y=y)), known.identity


def _places(row: Tensor) -> Tensor:
    """The place of each element in its run of equal rows."""
    at = torch.arange(row.shape[0], device=row.device)
    return at - torch.searchsorted(row, row)


def _scanned(value: Tensor, row: Tensor, combine: Combine, identity: float) -> Tensor:
    """The fold of all values that stand before each in its run of equal rows, by doubling distances."""
    first = torch.cat([row.new_ones(1, dtype=torch.bool), row[1:] != row[:-1]])[: row.shape[0]]
    start = torch.where(first, torch.arange(row.shape[0], device=row.device), 0).cummax(0).values
    place = torch.arange(row.shape[0], device=row.device) - start
    nothing = value.new_full((1, *value.shape[1:]), identity)
    out = torch.where(_as_column(first, value), nothing, torch.cat([nothing, value])[:-1])
    step = 1
    while bool((place > step).any()):
        later = torch.nonzero(place > step).squeeze(1)
        out = out.index_copy(0, later, combine(out[later - step], out[later]))
        step *= 2
    return out


def _as_column(mask: Tensor, like: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (like.dim() - 1))


# ---------------------------------------------------------------- the derivative


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, index, ctx.rows, ctx.reducer = inputs
    ctx.save_for_backward(x, index, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, index, out = ctx.saved_tensors
    slope = OwnReducer.of(ctx.reducer).slope
    wanted, known = names_in(slope), {"x": x, "out": out.index_select(0, index)}
    if "ties" in wanted:
        equal = (x == known["out"]).to(x.dtype)
        known["ties"] = torch.zeros_like(out).index_add(0, index, equal).index_select(0, index)
    if "rest" in wanted:
        known["rest"] = fold_others(x, index, ctx.reducer)
    return gradient.index_select(0, index) * value_of(slope, **known), None, None, None


fold_rows.register_autograd(_backward, setup_context=_setup)


def _setup_others(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del inputs, output


def _backward_others(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError(
        "graphweave: a reducer whose gradient needs all other values of a row has no gradients of gradients. Give the "
        "reducer a slope: (function, identity, slope), with slope(value, result) the derivative of the result."
    )


fold_others.register_autograd(_backward_others, setup_context=_setup_others)
