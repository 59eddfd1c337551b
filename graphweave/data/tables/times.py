"""When each row became known, and the split of a table's rows by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.data.split import random_split
from graphweave.data.tables.columns import DANGLING, Array, TableColumn, read_column
from graphweave.data.tables.graph import ALWAYS, NEVER
from graphweave.data.tables.schema import KeyedTable

_USUAL = ("time", "timestamp", "datetime", "date", "created", "created_at", "created_on", "at")
"""Names of the column, among several with dates, that says when a row became known."""


def time_columns(
    tables: Mapping[str, KeyedTable], columns: Mapping[str, Mapping[str, TableColumn]], given: Mapping[str, str | None]
) -> dict[str, str]:
    """Table -> the column that says when its rows became known: the one that is given, or of those with dates the only
    one with a usual name, or that ends in "_at", or at all. DataError where several of these are alike."""
    found = {}
    for name in given:
        if name not in tables:
            raise DataError(f"times: there is no table {name!r} (expected some of {', '.join(tables)}). Correct it.")
    for name, table in tables.items():
        if name in given:
            if (column := given[name]) is not None:
                _check_time(table, column)
                found[name] = column
            continue
        dates = [column for column, values in columns[name].items() if values.kind == "date"]
        usual = [column for column in dates if str(column).casefold() in _USUAL]
        moments = [column for column in dates if str(column).casefold().endswith("_at")]
        likely = usual or moments or dates
        if len(likely) > 1:
            raise DataError(
                f"{name}: expected to know when a row became known (got the dates {', '.join(dates)}). Name one of"
                f" them, or none: times={{{name!r}: {dates[0]!r}}}, or --time {name}.{dates[0]}."
            )
        if likely:
            found[name] = likely[0]
    return found


def _check_time(table: KeyedTable, column: str) -> None:
    if column not in table.frame.columns:
        raise DataError(f"times: {table.name} has no column {column!r}. Correct the name.")


def times_of(table: KeyedTable, column: str) -> tuple[Array, bool]:
    """The times of rows [rows] int64, `NEVER` where missing, and whether they are dates (microseconds since 1970)."""
    series = table.frame[column]
    read = read_column(series)
    what = f"{table.name}.{column}"
    if read is not None and read.kind == "date":
        return np.where(read.missing, NEVER, read.values.astype(np.int64)), True
    if read is not None and read.kind == "empty":
        return np.full(table.num_rows, NEVER), True
    whole = read is not None and read.kind == "number" and not (read.values[~read.missing] % 1).any()
    if read is None or not whole or np.abs(read.values[~read.missing]).max(initial=0) >= 2**62:
        raise DataError(f"{what}: times must be dates or whole numbers of less than 62 bits. Convert the column.")
    values = [NEVER if missing else int(value) for value, missing in zip(series, read.missing, strict=True)]
    return np.array(values, dtype=np.int64), False


def check_alike(kinds: Mapping[str, bool]) -> None:
    """DataError if some times are dates and others numbers."""
    if len(set(kinds.values())) > 1:
        dates = ", ".join(name for name, are_dates in kinds.items() if are_dates)
        raise DataError(f"times must be all dates or all numbers (got dates in {dates} alone). Convert the others.")


def inherit(
    times: Mapping[str, Array], counts: Mapping[str, int], references: Sequence[tuple[str, str, Array]]
) -> dict[str, Array]:
    """Times of all tables that have some. A row of a table without times is known when the rows that it names are, and
    never if it names a row that is not there.

    `references`: (table, other, the number of the row of `other` that each row of `table` names, or `NO_ROW` or
    `DANGLING`).
    """
    found = dict(times)
    for _ in range(len(counts)):  # a chain of references without times is no longer than the number of tables
        changed = False
        for table, other, rows in references:
            if table in times or other not in found or table == other:
                continue
            own = found.get(table, np.full(counts[table], ALWAYS))
            later = np.where(rows == DANGLING, NEVER, ALWAYS)
            later[rows >= 0] = found[other][rows[rows >= 0]]
            new = np.maximum(own, later)
            changed |= table not in found or bool((new != own).any())
            found[table] = new
        if not changed:
            break
    return found


def split_rows(
    labelled: Array, times: Array | None, split: Sequence[Any], seed: int, name: str
) -> tuple[tuple[Tensor, Tensor, Tensor], int | None]:
    """Masks of training, validation and test rows among `labelled` [rows] bool, and the time at which training ends.

    With times, the training rows are the earliest, the test rows the latest, and rows of one time are in one part.
    `split` has the shares of the three parts, or two times: the last of training, and the last of validation.
    """
    if len(split) == 2:
        if times is None:
            raise DataError(f"{name}: a split by two times needs rows with times (got none). Name their column.")
        ends = [_as_time(end) for end in split]
        if ends[0] > ends[1]:
            raise DataError(f"split: expected two rising times (got {split[0]} and {split[1]}). Swap them.")
        return _by_ends(labelled & (times != NEVER), times, ends)
    shares = [float(share) for share in split]
    if len(shares) != 3 or min(shares) < 0 or not np.isclose(sum(shares), 1):
        raise DataError(f"split: expected three shares with the sum 1, or two times (got {split}). Pass such.")
    if times is None:
        y = torch.from_numpy(np.where(labelled, 0, -1))
        return random_split(y, seed, shares[0], shares[1]), None
    rows = labelled & (times != NEVER)
    ordered = np.sort(times[rows])
    if not ordered.size:
        return _by_ends(rows, times, [ALWAYS, ALWAYS])
    places = [max(round(share * ordered.size) - 1, 0) for share in (shares[0], shares[0] + shares[1])]
    return _by_ends(rows, times, [int(ordered[place]) for place in places])


def _by_ends(rows: Array, times: Array, ends: Sequence[int]) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
    parts = (times <= ends[0], (times > ends[0]) & (times <= ends[1]), times > ends[1])
    train, val, test = (torch.from_numpy(rows & part) for part in parts)
    return (train, val, test), ends[0]


def _as_time(end: object) -> int:
    if isinstance(end, int):
        return end
    try:
        stamp = pd.Timestamp(end)
    except ValueError as error:
        raise DataError(f"split: {end!r} is no date ({error}). Write it as 2024-06-30.") from error
    naive = stamp if stamp.tz is None else stamp.tz_convert("UTC").tz_localize(None)
    return int(naive.to_datetime64().astype("datetime64[us]").astype(np.int64))
