"""Makes the graph of tables, where rows are nodes and foreign keys are edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.core.log import logger
from graphweave.data.tables.columns import DANGLING, Array, TableColumn, first_duplicate, read_column, rows_named
from graphweave.data.tables.encode import KINDS, ColumnEncoder, Features
from graphweave.data.tables.graph import ALWAYS, NEVER, EdgeType, Reference, TableGraph, TableOptions, Target
from graphweave.data.tables.schema import KeyedTable, complete, resolve
from graphweave.data.tables.source import read_tables
from graphweave.data.tables.target import labelled, read_target
from graphweave.data.tables.times import check_alike, inherit, split_rows, time_columns, times_of

_log = logger(__name__)

REVERSE = "rev_"
"""Prefix of the name of a relation from the row that is named to the row that names it."""


def make_graph(source: object, target: Reference | None, options: TableOptions) -> TableGraph:
    """The graph of tables, as `from_tables` describes it."""
    tables, brought = read_tables(source)
    if options.dangling not in ("report", "error"):
        raise DataError(f"dangling must be 'report' or 'error' (got {options.dangling!r}). Pass one of these.")
    keys = {**brought.get("keys", {}), **options.keys}
    tables = complete(tables, keys, {**brought.get("foreign_keys", {}), **options.foreign_keys})
    kinds = {**brought.get("kinds", {}), **options.kinds}
    asked = {resolve_one(tables, of): kind for of, kind in kinds.items()}
    for column, kind in asked.items():
        if kind not in KINDS:
            raise DataError(f"kinds: {'.'.join(column)} must be one of {', '.join(KINDS)} (got {kind!r}). Correct it.")
    left_out = [resolve_one(tables, of) for of in (*brought.get("exclude", ()), *options.exclude)]
    asked |= dict.fromkeys(left_out, "ignore")
    making = _Making(tables, asked, options)
    times = {**brought.get("times", {}), **options.times}
    making.read(times, None if target is None else resolve_one(tables, target))
    shown = str(source) if isinstance(source, str) and "@" not in source else "tables"
    found = making.graph(options.name or shown)
    for note in found.notes:
        _log.warning("%s: %s", found.name, note)
    return found


def resolve_one(tables: Mapping[str, KeyedTable], reference: Reference) -> tuple[str, str]:
    """The table and the one column that a reference names."""
    name, columns = resolve(tables, reference)
    if len(columns) != 1:
        raise DataError(f"{name}: expected one column (got {', '.join(columns)}). Name one as {name}.{columns[0]}.")
    return name, columns[0]


@dataclass(slots=True, eq=False)
class _Making:
    """The findings of `from_tables`, step by step. `rows`: (table, number of its foreign key) -> rows that it names."""

    tables: Mapping[str, KeyedTable]
    kinds: Mapping[tuple[str, str], str]
    options: TableOptions
    rows: dict[tuple[str, int], Array] = field(default_factory=dict)
    columns: dict[str, dict[str, TableColumn]] = field(default_factory=dict)
    time_columns: dict[str, str] = field(default_factory=dict)
    times: dict[str, Array] = field(default_factory=dict)
    times_are_dates: bool = True
    target: tuple[str, str] | None = None
    target_column: TableColumn | None = None
    notes: list[str] = field(default_factory=list)

    def read(self, times: Mapping[str, str | None], target: tuple[str, str] | None) -> None:
        self.target = target
        for table in self.tables.values():
            self._name_rows(table)
            self._read_columns(table)
        self.time_columns = time_columns(self.tables, self.columns, times)
        are_dates = {}
        for name, column in self.time_columns.items():
            self.times[name], are_dates[f"{name}.{column}"] = times_of(self.tables[name], column)
            if never := int((self.times[name] == NEVER).sum()):
                self.notes.append(f"{never} rows of {name} have no {column}, so no batch holds them.")
        check_alike(are_dates)
        self.times_are_dates = all(are_dates.values())
        references = [
            (name, self.tables[name].foreign[number].other, rows) for (name, number), rows in self.rows.items()
        ]
        self.times = inherit(self.times, {name: t.num_rows for name, t in self.tables.items()}, references)
        self._note_later_dates()

    def graph(self, name: str) -> TableGraph:
        target, end = self._target()
        features, names = {}, {}
        edges: dict[EdgeType, Tensor] = {}
        edge_features, edge_names, edge_times = {}, {}, {}
        joining = {table.name for table in self.tables.values() if self._is_edges(table)}
        for table in self.tables.values():
            training = self._training(table, target, end)
            if table.name not in joining:
                found = self._features(table, training)
                if not found.columns:
                    found.add("one", np.ones(table.num_rows))
                features[table.name], names[table.name] = found.tensor(), tuple(found.names)
                ends = self._foreign_edges(table)
            else:
                rows, ends = self._joined(table)
            if twice := edges.keys() & ends.keys():
                raise DataError(f"two relations are called {' '.join(min(twice))}. Rename a column or a table.")
            edges.update(ends)
            if table.name not in joining:
                continue
            found = self._features(table, training)
            for relation in ends:
                if found.columns:
                    edge_features[relation], edge_names[relation] = found.tensor()[rows], tuple(found.names)
                if table.name in self.times:
                    edge_times[relation] = torch.from_numpy(self.times[table.name])[rows]
        times = {table: torch.from_numpy(values) for table, values in self.times.items() if table in features}
        return TableGraph(
            name, features, names, times, edges, edge_features, edge_names, edge_times, self.times_are_dates, target,
            tuple(self.notes),
        )  # fmt: skip

    def _name_rows(self, table: KeyedTable) -> None:
        for number, foreign in enumerate(table.foreign):
            other = self.tables.get(foreign.other)
            if other is None:
                raise DataError(
                    f"{table.name}.{foreign.name} names the table {foreign.other}, which is not there. Add it."
                )
            keys = other.columns(foreign.other_columns)
            if first_duplicate(keys) is not None:
                raise DataError(
                    f"{table.name}.{foreign.name} names {foreign.other}.{'+'.join(foreign.other_columns)}, which must"
                    " differ in all rows (got one twice). Correct the table."
                )
            rows = rows_named(keys, table.columns(foreign.columns))
            self.rows[table.name, number] = rows
            if lost := int((rows == DANGLING).sum()):
                what = f"{lost} of {rows.size} rows of {table.name} name no row of {foreign.other} by {foreign.name}"
                if self.options.dangling == "error":
                    raise DataError(f"{what}. Correct the table, or pass dangling='report'.")
                self.notes.append(f"{what}, and get no edge for it.")

    def _read_columns(self, table: KeyedTable) -> None:
        structure = {*table.key, *(column for foreign in table.foreign for column in foreign.columns)}
        self.columns[table.name] = {}
        for column in table.frame.columns:
            read = None
            if (table.name, column) == self.target:
                if column in structure:
                    raise DataError(f"{table.name}.{column} is a key, which cannot be a target. Name another column.")
                self.target_column = read_column(table.frame[column])
            elif column not in structure and self.kinds.get((table.name, column)) != "ignore":
                read = read_column(table.frame[column])
                if read is None:
                    self.notes.append(f"{table.name}.{column} is not used, because it holds values of other types.")
            if read is not None:
                self.columns[table.name][column] = read

    def _note_later_dates(self) -> None:
        for name, columns in self.columns.items():
            if name not in self.times or not self.times_are_dates:
                continue
            for column, values in columns.items():
                if values.kind == "date" and column != self.time_columns.get(name):
                    later = values.values.astype(np.int64)[~values.missing] > self.times[name][~values.missing]
                    if later.any():
                        self.notes.append(
                            f"{name}.{column} has {int(later.sum())} dates later than the time of their row: leave it"
                            f" out if it was not known then (exclude, or --exclude {name}.{column})."
                        )

    def _is_edges(self, table: KeyedTable) -> bool:
        """Whether it joins two tables: two foreign keys, no key of its own, and no row of it is named or predicted."""
        named = any(foreign.other == table.name for other in self.tables.values() for foreign in other.foreign)
        own = set(table.key) - {column for foreign in table.foreign for column in foreign.columns}
        predicted = self.target is not None and self.target[0] == table.name
        return len(table.foreign) == 2 and not own and not named and not predicted

    def _target(self) -> tuple[Target | None, int | None]:
        if self.target is None:
            return None, None
        table, column = self.target
        y, classes = read_target(self.target_column, f"{table}.{column}", self.options.target_kind)
        masks, end = split_rows(labelled(y), self.times.get(table), self.options.split, self.options.seed, table)
        return Target(table, column, y, classes, *masks), end

    def _training(self, table: KeyedTable, target: Target | None, end: int | None) -> Array:
        """The rows of which scales and categories are learnt."""
        if end is not None and table.name in self.times:
            return self.times[table.name] <= end
        if target is not None and table.name == target.table:
            other: Array = (target.val_mask | target.test_mask).numpy()
            return ~other
        return np.ones(table.num_rows, dtype=bool)

    def _features(self, table: KeyedTable, training: Array) -> Features:
        times = None
        if self.times_are_dates and table.name in self.times:
            own = self.times[table.name]
            there = (own != NEVER) & (own != ALWAYS)
            times = np.where(there, own.astype("datetime64[us]"), np.datetime64("NaT", "us"))
        encoder = ColumnEncoder(training, times, self.options.max_categories, self.options.text_features)
        found = Features(table.num_rows)
        for column, values in self.columns[table.name].items():
            why = encoder.add(found, str(column), values, self.kinds.get((table.name, column)))
            if why is not None:
                self.notes.append(f"{table.name}.{column} is not used, because it has {why}.")
        return found

    def _foreign_edges(self, table: KeyedTable) -> dict[EdgeType, Tensor]:
        edges = {}
        for number, foreign in enumerate(table.foreign):
            rows = self.rows[table.name, number]
            there = np.flatnonzero(rows >= 0)
            forth = torch.from_numpy(np.stack([there, rows[there]]))
            edges[table.name, foreign.name, foreign.other] = forth
            edges[foreign.other, REVERSE + foreign.name, table.name] = forth.flip(0)
        return edges

    def _joined(self, table: KeyedTable) -> tuple[Tensor, dict[EdgeType, Tensor]]:
        """The rows of a table of edges that name two rows, and the edges, in both directions."""
        first, second = self.rows[table.name, 0], self.rows[table.name, 1]
        there = np.flatnonzero((first >= 0) & (second >= 0))
        if there.size < table.num_rows:
            self.notes.append(f"{table.num_rows - there.size} rows of {table.name} join no two rows, and are no edges.")
        forth = torch.from_numpy(np.stack([first[there], second[there]]))
        one, other = (foreign.other for foreign in table.foreign)
        ends = {(one, table.name, other): forth, (other, REVERSE + table.name, one): forth.flip(0)}
        return torch.from_numpy(there), ends
