"""Rows of integers sorted into buckets that are read one by one: in memory, or on disk where they are many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_FEW = 1 << 16
"""Numbers below this are sorted by NumPy's radix sort of 16 bits."""


class Buckets:
    """Rows of `columns` int64 numbers by bucket. A bucket keeps the order in which its rows came."""

    def __init__(self, count: int, columns: int, folder: Path | None) -> None:
        """`count` buckets. `folder`: where the rows are kept, a new folder that `remove` deletes; None keeps them in
        memory."""
        self._few, self._columns, self._folder = count < _FEW, columns, folder
        self._kept: dict[int, list[Tensor]] = {}
        if folder is not None:
            folder.mkdir()

    def add(self, bucket: Tensor, *columns: Tensor) -> None:
        """Adds rows, given as int64 [rows] columns, each to its bucket, int64 [rows] in 0..count-1."""
        keys = bucket.numpy().astype(np.uint16) if self._few else bucket.numpy()
        order = torch.from_numpy(np.argsort(keys, kind="stable"))
        numbers, counts = bucket[order].unique_consecutive(return_counts=True)
        rows = torch.stack(columns, 1).index_select(0, order)  # a row is read at once
        for number, some in zip(numbers.tolist(), rows.split(counts.tolist()), strict=True):
            if self._folder is None:
                self._kept.setdefault(number, []).append(some)
            else:
                with self._file(number).open("ab") as file:
                    some.numpy().tofile(file)

    def take(self, number: int) -> Tensor:
        """int64 [rows, columns]: the rows of a bucket. They are then gone."""
        if self._folder is None:
            kept = self._kept.pop(number, None)
            return torch.empty((0, self._columns), dtype=torch.int64) if kept is None else torch.cat(kept)
        if not self._file(number).exists():
            return torch.empty((0, self._columns), dtype=torch.int64)
        rows = torch.from_numpy(np.fromfile(self._file(number), dtype=np.int64)).view(-1, self._columns)
        self._file(number).unlink()
        return rows

    def remove(self) -> None:
        """Deletes the folder, whose buckets have all been taken."""
        if self._folder is not None:
            self._folder.rmdir()

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number}.i64"


def sorted_rows(rows: Tensor, column: int) -> tuple[Tensor, ...]:
    """The columns of rows sorted by one of them; rows with equal numbers there keep their order."""
    order = torch.argsort(rows[:, column], stable=True)
    return tuple(one.contiguous() for one in rows.index_select(0, order).unbind(1))
