"""Columns of tables as arrays of one of a few kinds, and key columns as numbers that can be compared."""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

Array: TypeAlias = npt.NDArray[Any]
Kind: TypeAlias = Literal["number", "flag", "date", "string", "category", "empty"]

NO_ROW, DANGLING = -1, -2
"""In place of the number of a row: none is named, or one that is not there."""

_ISO_DATE = r"\d{4}-\d{2}-\d{2}([T ].*)?"
"""Strings of this form that parse as dates are dates."""
_NUMBERS = frozenset({"integer", "floating", "mixed-integer-float", "decimal"})
_DATES = frozenset({"date", "datetime", "datetime64"})


@dataclass(frozen=True, slots=True, eq=False)
class TableColumn:
    """The values of a column [rows], and where they are missing [rows] bool.

    "number" and "flag" (0 or 1) are float64, NaN where missing. "date" is datetime64[us] in UTC, NaT where missing.
    "string" and "category" are objects of str, "" where missing. "empty" has no value at all.
    """

    kind: Kind
    values: Array
    missing: Array

    def numbers(self) -> Array:
        """A number, flag or date (seconds since 1970) as float64, NaN where missing."""
        if self.kind != "date":
            return self.values
        found = self.values.astype(np.int64) / 1e6
        found[self.missing] = np.nan
        return found


def read_column(series: pd.Series) -> TableColumn | None:
    """The column as one of the kinds; None for values of other types (bytes, lists, mixtures)."""
    dtype = series.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        return _strings("category", series.astype(object))
    if pd.api.types.is_bool_dtype(dtype) and not pd.api.types.is_object_dtype(dtype):
        return _numbers("flag", series.to_numpy(np.float64, na_value=np.nan))
    if pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype):
        return _numbers("number", series.to_numpy(np.float64, na_value=np.nan))
    if pd.api.types.is_datetime64_any_dtype(dtype):
        naive = series if series.dt.tz is None else series.dt.tz_convert("UTC").dt.tz_localize(None)
        return _dates(naive.to_numpy().astype("datetime64[us]"))
    if pd.api.types.is_timedelta64_dtype(dtype):
        return _numbers("number", series.dt.total_seconds().to_numpy())
    return _of_objects(series.astype(object))


def _of_objects(series: pd.Series) -> TableColumn | None:
    missing = series.isna().to_numpy(bool)
    present = series[~missing]
    inferred = pd.api.types.infer_dtype(present, skipna=True)
    if not len(present):
        return TableColumn("empty", np.full(len(series), np.nan), missing)
    if inferred == "string":
        return _dates_of_text(present, missing) or _strings("string", series)
    if inferred == "boolean" or inferred in _NUMBERS:
        kind: Kind = "flag" if inferred == "boolean" else "number"
        return _numbers(kind, _filled(missing, [_as_float(value) for value in present], np.nan))
    if inferred in _DATES:
        return _dates(_filled(missing, [_as_utc(value) for value in present], np.datetime64("NaT", "us")))
    if inferred in ("timedelta", "timedelta64"):
        return _numbers("number", _filled(missing, [pd.Timedelta(v).total_seconds() for v in present], np.nan))
    if inferred == "mixed-integer" or all(isinstance(value, uuid.UUID) for value in present):
        return _strings("string", series)
    return None


def _filled(missing: Array, present: Sequence[object], nothing: object) -> Array:
    found = np.full(missing.size, nothing)
    found[~missing] = np.array(present, dtype=found.dtype)
    return found


def _numbers(kind: Kind, values: Array) -> TableColumn:
    """An infinite number counts as missing, since no scale fits it."""
    missing = ~np.isfinite(values)
    return TableColumn(kind, np.where(missing, np.nan, values), missing)


def _dates(values: Array) -> TableColumn:
    return TableColumn("date", values, np.isnat(values))


def _strings(kind: Kind, series: pd.Series) -> TableColumn:
    missing = series.isna().to_numpy(bool)
    values = np.array([str(value) for value in series], dtype=object)
    values[missing] = ""
    return TableColumn(kind, values, missing)


def _dates_of_text(present: pd.Series, missing: Array) -> TableColumn | None:
    text = present.astype(str)
    if not text.str.fullmatch(_ISO_DATE).all():
        return None
    parsed = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
    if parsed.isna().any():
        return None
    naive = parsed.dt.tz_localize(None).to_numpy().astype("datetime64[us]")
    return _dates(_filled(missing, list(naive), np.datetime64("NaT", "us")))


def _as_float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 1024 bits
        return np.inf


def _as_utc(value: Any) -> np.datetime64:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.timezone.utc).replace(tzinfo=None)
    return np.datetime64(value, "us")


def rows_named(keys: Sequence[pd.Series], named: Sequence[pd.Series]) -> Array:
    """For each row of the columns `named`, the number of the row whose `keys` have the same values; `NO_ROW` where one
    of its values is missing, `DANGLING` where no row has them. Keys that are not missing are different."""
    count = len(keys[0])
    present = np.flatnonzero(~_any_missing(keys))
    codes = np.zeros(present.size + len(named[0]), dtype=np.int64)
    for own, other in zip(keys, named, strict=True):
        found, _ = pd.factorize(_joined(own.iloc[present], other), use_na_sentinel=False)
        codes, _ = pd.factorize(codes * (int(found.max(initial=0)) + 1) + found)
    places = pd.Index(codes[: present.size]).get_indexer(pd.Index(codes[present.size :]))
    rows = np.where(places < 0, DANGLING, present[places] if count and present.size else DANGLING)
    return np.where(_any_missing(named), NO_ROW, rows).astype(np.int64)


def _any_missing(columns: Sequence[pd.Series]) -> Array:
    return np.logical_or.reduce([column.isna().to_numpy(bool) for column in columns])


def first_duplicate(keys: Sequence[pd.Series]) -> int | None:
    """The number of the first row whose values an earlier row has, too; None if there is none. Rows in which one is
    missing are like no other."""
    frame = pd.DataFrame({number: _comparable(key) for number, key in enumerate(keys)})
    again = frame.duplicated().to_numpy() & ~_any_missing(keys)
    return int(again.argmax()) if again.any() else None


def _joined(own: pd.Series, other: pd.Series) -> Array:
    first, second = _comparable(own), _comparable(other)
    if first.dtype != second.dtype:
        first, second = first.astype(object), second.astype(object)
    return np.concatenate([first, second])


def _comparable(key: pd.Series) -> Array:
    """Values of a key such that equal keys are equal, whatever their types: 5, 5.0 and Decimal(5) are 5."""
    if pd.api.types.is_signed_integer_dtype(key.dtype) and not key.isna().any():
        return key.to_numpy(np.int64)
    return np.array([_plain(value) for value in key.astype(object)] + [None], dtype=object)[:-1]


def _plain(value: object) -> Any:
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        return int(value)
    return value
