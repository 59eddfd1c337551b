"""Rows of integers sorted into buckets that are read one by one: in memory, or on disk where they are many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor


class Buckets:
    """Rows of `columns` int64 numbers by bucket. A bucket keeps the order in which its rows came."""

    def __init__(self, columns: int, folder: Path | None) -> None:
        """`folder`: where the rows are kept, a new folder that `remove` deletes; None keeps them in memory."""
        self._columns, self._folder = columns, folder
        self._kept: dict[int, list[Tensor]] = {}
        if folder is not None:
            folder.mkdir()

    def add(self, bucket: Tensor, *columns: Tensor) -> None:
        """Adds rows, given as int64 [rows] columns, each to its bucket, int64 [rows]."""
        order = torch.argsort(bucket, stable=True)
        numbers, counts = bucket[order].unique_consecutive(return_counts=True)
        rows = torch.stack([column[order] for column in columns], 1)
        for number, some in zip(numbers.tolist(), rows.split(counts.tolist()), strict=True):
            if self._folder is None:
                self._kept.setdefault(number, []).append(some)
            else:
                with self._file(number).open("ab") as file:
                    some.numpy().tofile(file)

    def take(self, number: int) -> tuple[Tensor, ...]:
        """The columns of a bucket, int64 [rows] each. They are then gone."""
        rows = torch.empty((0, self._columns), dtype=torch.int64)
        if self._folder is None:
            kept = self._kept.pop(number, None)
            rows = rows if kept is None else torch.cat(kept)
        elif self._file(number).exists():
            rows = torch.from_numpy(np.fromfile(self._file(number), dtype=np.int64)).view(-1, self._columns)
            self._file(number).unlink()
        return tuple(column.contiguous() for column in rows.unbind(1))

    def remove(self) -> None:
        """Deletes the folder, whose buckets have all been taken."""
        if self._folder is not None:
            self._folder.rmdir()

    def _file(self, number: int) -> Path:
        assert self._folder is not None
        return self._folder / f"{number}.i64"
