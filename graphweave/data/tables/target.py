"""The column that is to be predicted, as classes or as numbers."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.tables.columns import Array, TableColumn

TargetKind: TypeAlias = Literal["classes", "number"]


def read_target(column: TableColumn | None, what: str, kind: TargetKind | None) -> tuple[Tensor, tuple[str, ...]]:
    """The target of each row, and the names of classes: int64, -1 where missing, or float32 and no class.

    Numbers are numbers, unless they have two values or `kind` says that they are classes; text and flags are classes.
    DataError for dates, for columns of other types, and if there are not two different values.
    """
    if column is None or column.kind == "date":
        got = "dates" if column else "other types"
        raise DataError(f"{what}: a target must be numbers, flags or text (got {got}). Name another column.")
    seen = column.values[~column.missing]
    different = np.unique(seen) if column.kind != "empty" else seen[:0]
    if different.size < 2:
        raise DataError(f"{what}: a target needs two different values at least (got {different.size}). Name another.")
    numbers = column.kind == "number"
    if kind == "number" and not numbers:
        raise DataError(f"{what}: expected numbers (got {column.kind}s). Leave out the kind of the target.")
    if numbers and (kind == "number" or (kind is None and different.size > 2)):
        return torch.from_numpy(column.values.astype(np.float32)), ()
    y = np.searchsorted(different, np.where(column.missing, different[0], column.values))
    y[column.missing] = -1
    return torch.from_numpy(y.astype(np.int64)), tuple(_shown(value, column) for value in different)


def _shown(value: object, column: TableColumn) -> str:
    if column.kind == "flag":
        return "true" if value else "false"
    return f"{value:.17g}" if column.kind == "number" else str(value)


def labelled(y: Tensor) -> Array:
    """Where a target has a value [rows] bool."""
    found: Array = (~y.isnan() if y.is_floating_point() else y >= 0).numpy()
    return found
