"""Columns as features: numbers scaled, categories, flags, parts of dates, hashed text, and what is missing.

All that is learnt of a column (scale, categories, whether values are missing) is learnt of its training rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import torch
from sklearn.feature_extraction.text import HashingVectorizer
from torch import Tensor

from graphweave.data.tables.columns import Array, TableColumn

KINDS = ("number", "category", "text", "date", "ignore")
"""How a column can be asked to be read."""
_FURTHEST = 10.0
"""Scaled numbers further from the mean than this many standard deviations are put there."""
_DAY = np.timedelta64(1, "D")


@dataclass(slots=True)
class Features:
    """Columns [rows] of features, and their names."""

    rows: int
    columns: list[Array] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def add(self, name: str, values: Array) -> None:
        self.columns.append(values.astype(np.float32))
        self.names.append(name)

    def tensor(self) -> Tensor:
        """[rows, features] float32."""
        if not self.columns:
            return torch.zeros(self.rows, 0)
        return torch.from_numpy(np.stack(self.columns, 1))


@dataclass(frozen=True, slots=True, eq=False)
class ColumnEncoder:
    """Encodes the columns of one table. `training` [rows] bool has the rows of which scales and categories are learnt.
    `row_times` [rows] datetime64[us], if there are any, are what the age of a date is counted from."""

    training: Array
    row_times: Array | None
    max_categories: int
    text_features: int

    def add(self, into: Features, name: str, column: TableColumn, kind: str | None = None) -> str | None:
        """Add the features of a column, read as `kind` or as what it holds. Returns why there are none, or None."""
        seen = self.training & ~column.missing
        if kind == "ignore":
            return None
        if not seen.any():
            return "no value in a training row"
        if kind == "category" or (kind is None and column.kind == "category"):
            self._add_categories(into, name, _texts(column), seen, column.missing)
        elif kind == "text" or (kind is None and column.kind == "string"):
            texts = _texts(column)
            if kind is None and self._are_categories(texts[seen]):
                self._add_categories(into, name, texts, seen, column.missing)
            else:
                self._add_text(into, name, texts)
        elif column.kind == "date" and kind in (None, "date"):
            self._add_date(into, name, column, seen)
        elif column.kind == "flag":
            into.add(name, np.where(column.missing, 0.0, column.values * 2 - 1))
        elif column.kind in ("number", "date") and kind in (None, "number"):
            into.add(name, scaled(column.numbers(), seen))
        else:
            return f"values that are no {kind}s"
        if column.missing[self.training].any():
            into.add(f"{name} is missing", column.missing)
        return None

    def _are_categories(self, texts: Array) -> bool:
        """Few different values, each of which occurs twice on average."""
        different = pd.unique(texts).size
        return different <= self.max_categories and 2 * different <= texts.size

    def _add_categories(self, into: Features, name: str, texts: Array, seen: Array, missing: Array) -> None:
        """A column for each category of the training rows, the commonest first, and one for others."""
        counts = pd.Series(texts[seen], dtype=object).value_counts()
        chosen = sorted(counts.index, key=lambda text: (-counts[text], text))[: self.max_categories]
        codes = pd.Index(chosen, dtype=object).get_indexer(pd.Index(texts, dtype=object))
        for code, text in enumerate(chosen):
            into.add(f"{name} = {text}", (codes == code) & ~missing)
        into.add(f"{name} = other", (codes < 0) & ~missing)

    def _add_text(self, into: Features, name: str, texts: Array) -> None:
        hashing = HashingVectorizer(n_features=self.text_features, token_pattern=r"(?u)\b\w+\b")
        for number, values in enumerate(hashing.transform(texts).toarray().T if texts.size else ()):
            into.add(f"{name}: hash {number}", values)

    def _add_date(self, into: Features, name: str, column: TableColumn, seen: Array) -> None:
        """Where a date lies within its year, week and day, as sines and cosines, and its age."""
        dates = np.where(column.missing, np.datetime64(0, "us"), column.values)
        for period, share in _shares(dates).items():
            if period == "day" and not share[seen].any():
                continue  # dates without a time of day
            for part, function in (("sin", np.sin), ("cos", np.cos)):
                into.add(f"{name}: {part} of {period}", np.where(column.missing, 0, function(2 * np.pi * share)))
        age = -column.numbers()
        if self.row_times is not None:
            known = ~np.isnat(self.row_times)
            age[known] += self.row_times[known].astype(np.int64) / 1e6
            age[~known] = np.nan
            seen = seen & known
            if not seen.any() or not np.nanmax(np.abs(age), initial=0):
                return  # it is the time of the row itself, whose age a batch knows
        into.add(f"{name}: age", scaled(age, seen))


def scaled(values: Array, seen: Array) -> Array:
    """`values` with mean 0 and standard deviation 1 over the rows `seen`; 0 where they are NaN."""
    scale = Scale.of(values[seen])
    return np.nan_to_num(np.clip(scale.apply(values), -_FURTHEST, _FURTHEST), nan=0.0)


@dataclass(frozen=True, slots=True)
class Scale:
    """(value / unit - middle) / spread. The unit keeps squares of huge numbers from overflowing."""

    unit: float
    middle: float
    spread: float

    @staticmethod
    def of(values: Array) -> Scale:
        unit = float(np.max(np.abs(values), initial=0.0)) or 1.0
        units = values / unit
        spread = float(units.std()) if values.size else 0.0
        return Scale(unit, float(units.mean()) if values.size else 0.0, spread if spread > 1e-12 else 1.0)

    def apply(self, values: Array) -> Array:
        with np.errstate(over="ignore"):  # a number of another part may be far beyond; it is clipped
            return (values / self.unit - self.middle) / self.spread


def _texts(column: TableColumn) -> Array:
    if column.kind in ("string", "category"):
        return column.values
    show: Callable[[object], str] = str
    if column.kind in ("number", "flag"):
        show = lambda value: f"{value:.17g}"  # noqa: E731
    texts = np.array([show(value) for value in column.values] + [None], dtype=object)[:-1]
    texts[column.missing] = ""
    return texts


def _shares(dates: Array) -> dict[str, Array]:
    days = dates.astype("datetime64[D]")
    return {
        "year": (days - dates.astype("datetime64[Y]").astype("datetime64[D]")) / _DAY / 366,
        "week": ((days.astype(np.int64) + 3) % 7) / 7,  # 1 January 1970 was a Thursday
        "day": (dates - days) / _DAY,
    }
