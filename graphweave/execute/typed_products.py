"""Products whose matrix depends on the type of the row, and the gradients of their matrices, by the vendor's library.

They run if no kernel of the target multiplies them (`lower/mark_calls.py`), or if no kernel could be printed. They
run as one product for each type that has rows. On a GPU the host must know how many rows each type has, so it asks once
for each graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.types import DType
from graphweave.runtime import arena, formats
from graphweave.runtime.index import Index
from graphweave.runtime.tracked import place


class TypedProduct:
    """out[r, b, j] = sum_k x[g(r), b, k] w[t(r), b, k, j]. On the CPU the result lies in memory of the arena."""

    def __init__(self, blocks: int, k: int, j: int, dtype: DType, transposed: bool = False) -> None:
        """With `transposed`, w is given as [types, blocks, j, k]."""
        self.blocks, self.k, self.j, self.dtype, self.transposed = blocks, k, j, dtype, transposed

    def __call__(self, x: Tensor, w: Tensor, types: Index, gather: Index | None = None) -> Tensor:
        """x [S, ..., k], w [types, ..., k, j] with `blocks` matrices for each type -> [S, ..., j].

        S is the length of `types`, whose values are rows of w. x has S rows, or `gather` [S] names the rows of x.
        IndexRangeError for a value of an index that names no row.
        """
        num, shape = types.values.numel(), (*x.shape[1:-1], self.j)
        flat_x = x.reshape(x.shape[0], self.blocks, self.k)
        matrices = (self.j, self.k) if self.transposed else (self.k, self.j)
        flat_w = w.reshape(types.rows, self.blocks, *matrices)
        _check(types, flat_x, gather)
        with torch.no_grad():
            return self._multiplied(flat_x, flat_w, types, gather).view(num, *shape)

    def _multiplied(self, x: Tensor, w: Tensor, types: Index, gather: Index | None) -> Tensor:
        """x [rows, blocks, k], w [types, blocks, k, j] -> [S, blocks, j]."""
        if _has_no_library(x):
            matrices = (w.mT if self.transposed else w).index_select(0, formats.flat(types, types.wide))
            return (gathered_rows(x, gather).unsqueeze(3) * matrices).sum(2, dtype=x.dtype)
        out = _empty((types.values.numel(), self.blocks, self.j), x)
        grouped = _Grouped(types, gather)
        for kind, here, rows in grouped.segments(gather):
            matrices = w[kind].mT if self.transposed else w[kind]
            out[here] = (x[rows].transpose(0, 1) @ matrices).transpose(0, 1)
        return out


class TypedGram:
    """out[t, b, i, j] = sum over r with t(r) = t of x[g(r), b, i] y[h(r), b, j]; 0 for a type without rows."""

    def __init__(self, blocks: int, k: int, j: int, dtype: DType) -> None:
        self.blocks, self.k, self.j, self.dtype = blocks, k, j, dtype

    def __call__(
        self, x: Tensor, y: Tensor, types: Index, gather_x: Index | None = None, gather_y: Index | None = None
    ) -> Tensor:
        """x [S, ..., k], y [S, ..., j] with `blocks` blocks in each row -> [types, ..., k, j].

        S is the length of `types`. x and y have S rows, or `gather_x` [S] and `gather_y` [S] name their rows.
        IndexRangeError for a value of an index that names no row. On the CPU the result lies in memory of the arena.
        """
        shape = types.rows, *x.shape[1:-1], self.k, self.j
        x, y = x.reshape(x.shape[0], self.blocks, self.k), y.reshape(y.shape[0], self.blocks, self.j)
        _check(types, x, gather_x)
        _check(types, y, gather_y)
        with torch.no_grad():
            return self._summed(x, y, types, gather_x, gather_y).view(shape)

    def _summed(self, x: Tensor, y: Tensor, types: Index, gather_x: Index | None, gather_y: Index | None) -> Tensor:
        """x [rows, blocks, k], y [rows, blocks, j] -> [types, blocks, k, j]."""
        out = _empty((types.rows, self.blocks, self.k, self.j), x).zero_()
        if _has_no_library(x):
            return add_outer(out, gathered_rows(x, gather_x), gathered_rows(y, gather_y), types)
        grouped = _Grouped(types, gather_x, gather_y)
        second = (rows for _, _, rows in grouped.segments(gather_y))
        for (kind, _, rows), others in zip(grouped.segments(gather_x), second, strict=True):
            out[kind] = x[rows].permute(1, 2, 0) @ y[others].transpose(0, 1)
        return out


class _Grouped:
    """Rows grouped by type, and for each position in that order the row of a gathered tensor."""

    def __init__(self, types: Index, *gathers: Index | None) -> None:
        self.types = types
        self.wide = any(index.wide for index in (types, *gathers) if index is not None)
        self.csr = formats.csr(types, self.wide)
        self.perm = formats.perm(types, self.wide)

    def column(self, gather: Index | None) -> Tensor | None:
        """The row at each position; None if row k is at position k."""
        if gather is None:
            return self.perm
        return formats.column(self.types, gather, self.wide)

    def segments(self, gather: Index | None) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(type, its rows, the rows of a tensor read through `gather`) for each type that has rows."""
        positions = torch.arange(self.types.values.numel(), device=self.types.values.device)
        perm, column = self.perm, self.column(gather)
        for kind, (begin, end) in enumerate(pairwise(self.bounds())):
            if begin < end:
                at = slice(begin, end)
                rows = [positions[at] if order is None else order[at].long() for order in (perm, column)]
                yield kind, rows[0], rows[1]

    def bounds(self) -> list[int]:
        """The first position of each type, and the end."""
        t = self.types
        key = "type_bounds", place(t.values), t.rows, t.wrap, self.wide
        found = formats.cached(key, (t.values,), lambda: self.csr.indptr.to("cpu", torch.int64))
        assert isinstance(found, Tensor)
        return cast(list[int], found.tolist())


def _has_no_library(x: Tensor) -> bool:
    """Whether no library can multiply `x`: integers on a GPU. Each row is then multiplied by a copy of its matrix."""
    return x.device.type != "cpu" and not x.is_floating_point()


def _empty(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return arena.empty(shape, like.dtype) if like.device.type == "cpu" else like.new_empty(shape)


def gathered_rows(x: Tensor, gather: Index | None) -> Tensor:
    return x if gather is None else x.index_select(0, formats.flat(gather, gather.wide))


def add_outer(out: Tensor, x: Tensor, y: Tensor, types: Index) -> Tensor:
    """`out` [types, blocks, k, j], with the outer product of each row added to the matrix of its type."""
    return out.index_add_(0, formats.flat(types, types.wide), x.unsqueeze(3) * y.unsqueeze(2))


def _check(types: Index, x: Tensor, gather: Index | None) -> None:
    """Raise DataError unless there is a type for each row and no row beyond the end of x would be read."""
    rows = x.shape[0] if gather is None else gather.values.numel()
    if rows != types.values.numel() or (gather is not None and gather.rows > x.shape[0]):
        raise DataError(
            f"expected a type for each row (got {types.values.numel()} types, {rows} rows"
            + (f" gathered from {x.shape[0]}, said to be {gather.rows})." if gather is not None else ").")
        )
