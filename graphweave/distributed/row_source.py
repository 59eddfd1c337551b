"""Rows of node or edge data that are fetched a few at a time, from arrays that may lie on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from graphweave.core.errors import DataError


class RowSource(Protocol):
    """A row for each node or edge of a type."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The rows, and the shape of one."""

    @property
    def dtype(self) -> np.dtype:
        """The type of the rows that `rows` gives."""

    def rows(self, index: np.ndarray) -> np.ndarray:
        """The rows at `index`, int64 [k], as a new array."""


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows of an array, converted to `dtype`. `finite`: what they are called in an error if one is NaN or infinite."""

    array: np.ndarray
    dtype: np.dtype
    finite: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self.array.shape

    def rows(self, index: np.ndarray) -> np.ndarray:
        """DataError for a row that is not finite, where this is asked for."""
        found = np.asarray(self.array[index]).astype(self.dtype)
        if self.finite:
            _check_finite(found, index, self.finite)
        return found


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of a CSR matrix as dense float32 rows. `data` of length 1 is the value of all entries."""

    indptr: np.ndarray
    columns: np.ndarray
    data: np.ndarray
    shape: tuple[int, int]
    finite: str

    @property
    def dtype(self) -> np.dtype:
        """Always float32."""
        return np.dtype(np.float32)

    def rows(self, index: np.ndarray) -> np.ndarray:
        """DataError for a row that is not finite."""
        begin = self.indptr[index].astype(np.int64)
        lengths = self.indptr[index + 1].astype(np.int64) - begin
        row = np.repeat(np.arange(index.size), lengths)
        entry = np.arange(row.size) - np.repeat(np.cumsum(lengths) - lengths, lengths) + begin[row]
        out = np.zeros((index.size, self.shape[1]), np.float32)
        out[row, self.columns[entry]] = self.data[0] if self.data.size == 1 else self.data[entry]
        _check_finite(out, index, self.finite)
        return out


def _check_finite(rows: np.ndarray, index: np.ndarray, what: str) -> None:
    good = np.isfinite(rows).reshape(rows.shape[0], -1).all(axis=1)
    if not good.all():
        row = int(index[np.flatnonzero(~good)[0]])
        raise DataError(f"{what} must be finite (row {row} has NaN or infinity). Replace them first.")
