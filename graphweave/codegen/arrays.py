"""Addresses in buffers and arrays: a row, and an element offset that is linear in lanes as far as possible."""

from __future__ import annotations

from dataclasses import dataclass

from graphweave.core.types import DType
from graphweave.ir.loop import nodes as loop


@dataclass(slots=True)
class Array:
    """How one buffer, stash or alloc is addressed.

    `has_rows`: the first index selects a row of `shape`. `is_scalar`: a plain variable, not an array.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    has_rows: bool
    is_scalar: bool = False

    @property
    def numel(self) -> int:
        total = 1
        for extent in self.shape:
            total *= extent
        return total


@dataclass(slots=True)
class Affine:
    """offset + sum of coefficient * lane."""

    terms: dict[str, int]
    offset: int = 0


def linear(index: loop.Expr) -> Affine | None:
    """`index` as a sum over lanes; None if it is something else (a division, a loaded value)."""
    match index:
        case loop.Var(name):
            return Affine({name: 1})
        case loop.Lit(value, _):
            return Affine({}, int(value))
        case loop.IndexSum(terms, offset, 1, None):
            total: dict[str, int] = {}
            for name, coefficient in terms:
                total[name] = total.get(name, 0) + coefficient
            return Affine(total, offset)
    return None


def strides(shape: tuple[int, ...]) -> list[int]:
    """Elements between neighbours along each dimension of a contiguous block."""
    out = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        out[i] = out[i + 1] * shape[i + 1]
    return out


def flatten(features: tuple[loop.Expr, ...], shape: tuple[int, ...]) -> tuple[Affine, list[tuple[loop.Expr, int]]]:
    """Feature indices as one element offset: an affine part and (expression, stride) pairs for the rest."""
    affine, rest = Affine({}), []
    for index, extent, stride in zip(features, shape, strides(shape), strict=True):
        part = linear(index)
        if extent == 1 and part is not None:
            continue  # the only legal value is zero
        if part is None:
            rest.append((index, stride))
            continue
        affine.offset += part.offset * stride
        for name, coefficient in part.terms.items():
            affine.terms[name] = affine.terms.get(name, 0) + coefficient * stride
    return affine, rest
