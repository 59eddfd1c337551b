"""Tables with their keys and foreign keys: what was given, what a database declares, and what names tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from graphweave.core.errors import DataError
from graphweave.data.tables.columns import first_duplicate
from graphweave.data.tables.graph import Reference


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """The `columns` of a table name the row of the table `other` whose `other_columns` have these values."""

    columns: tuple[str, ...]
    other: str
    other_columns: tuple[str, ...]

    @property
    def name(self) -> str:
        return "+".join(self.columns)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedTable:
    """Rows of a table. `key` has the columns that tell one row from another, () if it has none."""

    name: str
    frame: pd.DataFrame
    key: tuple[str, ...] = ()
    foreign: tuple[ForeignKey, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.frame)

    def columns(self, names: Sequence[str]) -> list[pd.Series]:
        return [self.frame[name] for name in names]


def complete(
    tables: Mapping[str, KeyedTable],
    keys: Mapping[str, str | Sequence[str]],
    foreign_keys: Mapping[Reference, str],
) -> dict[str, KeyedTable]:
    """`tables` with the keys and foreign keys that are given, and for tables that declare none, those that the names
    of columns tell. Keys are checked: DataError for a duplicate or missing one, or for an unknown table or column."""
    found = dict(tables)
    for name, columns in keys.items():
        key = (columns,) if isinstance(columns, str) else tuple(columns)
        found[name] = replace(_table(found, name), key=_known_columns(_table(found, name), key))
    found = {name: table if table.key else replace(table, key=_own_key(table)) for name, table in found.items()}
    given: dict[str, list[ForeignKey]] = {name: [] for name in found}
    for reference, other in foreign_keys.items():
        name, columns = resolve(found, reference)
        key = _table(found, other).key
        if len(key) != len(columns):
            raise DataError(
                f"{name}.{'+'.join(columns)}: expected as many columns as the key of {other} has (got {len(columns)},"
                f" its key is {key or 'unknown'}). Name its key: keys={{{other!r}: ...}}."
            )
        given[name].append(ForeignKey(columns, other, key))
    for name, table in found.items():
        own = [f for f in table.foreign if all(f.columns != g.columns for g in given[name])]
        named = [] if own else _named_foreign(table, found)
        named = [f for f in named if all(f.columns != g.columns for g in given[name])]
        found[name] = replace(table, foreign=(*given[name], *own, *named))
        check_key(table)
    return found


def resolve(tables: Mapping[str, KeyedTable], reference: Reference) -> tuple[str, tuple[str, ...]]:
    """The table and the columns that a reference names. DataError if there are none of these names."""
    if isinstance(reference, tuple):
        name, columns = reference[0], tuple(reference[1:])
    else:
        fits = [name for name in tables if reference.startswith(f"{name}.")]
        if not fits:
            raise DataError(
                f"{reference!r}: expected TABLE.COLUMN with one of the tables {', '.join(map(str, tables))}."
                " Correct the name."
            )
        name = max(fits, key=len)
        rest = reference[len(name) + 1 :]
        columns = (rest,) if rest in tables[name].frame.columns else tuple(rest.split("+"))
    return name, _known_columns(_table(tables, name), columns)


def check_key(table: KeyedTable) -> None:
    """DataError if two rows have one key, or a row has none."""
    if not table.key:
        return
    columns, what = table.columns(table.key), f"{table.name}: the key {'+'.join(table.key)}"
    for column in columns:
        if column.isna().any():
            row = int(column.isna().to_numpy().argmax())
            raise DataError(f"{what} is missing in row {row}. Give each row a key, or name another (keys=...).")
    again = first_duplicate(columns) if len(table.frame) else None
    if again is not None:
        value = ", ".join(str(column.iloc[again]) for column in columns)
        raise DataError(f"{what} must differ in all rows (got {value} again in row {again}). Correct the table.")


def _table(tables: Mapping[str, KeyedTable], name: str) -> KeyedTable:
    if name not in tables:
        raise DataError(
            f"there is no table {name!r} (expected one of {', '.join(map(str, tables))}). Correct the name."
        )
    return tables[name]


def _known_columns(table: KeyedTable, columns: Sequence[str]) -> tuple[str, ...]:
    for column in columns:
        if column not in table.frame.columns:
            listed = ", ".join(map(str, table.frame.columns))
            raise DataError(f"{table.name} has no column {column!r} (expected one of {listed}). Correct the name.")
    return tuple(columns)


def _singulars(name: str) -> set[str]:
    """The name of a table as one row might be called: customers -> customer, categories -> category."""
    word = name.casefold()
    found = {word}
    if word.endswith("ies"):
        found.add(word[:-3] + "y")
    if word.endswith("es"):
        found.add(word[:-2])
    if word.endswith("s"):
        found.add(word[:-1])
    return found


def _own_key(table: KeyedTable) -> tuple[str, ...]:
    """The column `id`, or else the one that is called like the table and ends in `_id`."""
    wanted = ("id", *sorted(f"{word}_id" for word in _singulars(table.name)))
    for name in wanted:
        for column in table.frame.columns:
            if str(column).casefold() == name:
                return (column,)
    return ()


def _named_foreign(table: KeyedTable, tables: Mapping[str, KeyedTable]) -> list[ForeignKey]:
    """Columns `customer_id`, or `ROLE_customer_id`, of which one row in another table is a customer with a key of one
    column; `parent_id` names a row of the same table."""
    found = []
    for column in table.frame.columns:
        word = str(column).casefold()
        if (column,) == table.key or not word.endswith("_id"):
            continue
        stem = word.removesuffix("_id")
        if stem == "parent" and len(table.key) == 1:
            found.append(ForeignKey((column,), table.name, table.key))
            continue
        fits = [
            (len(one), other)
            for other in tables.values()
            if len(other.key) == 1
            for one in _singulars(other.name)
            if stem == one or stem.endswith(f"_{one}")
        ]
        if fits:
            _, other = max(fits, key=lambda fit: fit[0])
            found.append(ForeignKey((column,), other.name, other.key))
    return found
