"""`from_tables`, which loads pandas when it is first called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from graphweave.core.errors import DataError
from graphweave.data.tables.graph import SPLIT, Reference, TableGraph, TableOptions


def from_tables(
    source: object,
    target: Reference | None = None,
    *,
    keys: Mapping[str, str | Sequence[str]] | None = None,
    foreign_keys: Mapping[Reference, str] | None = None,
    times: Mapping[str, str | None] | None = None,
    exclude: Sequence[Reference] = (),
    kinds: Mapping[Reference, str] | None = None,
    target_kind: Literal["classes", "number"] | None = None,
    split: Sequence[object] = SPLIT,
    dangling: Literal["report", "error"] = "report",
    max_categories: int = 64,
    text_features: int = 32,
    seed: int = 0,
    name: str | None = None,
) -> TableGraph:
    """The graph of tables (docs/tables.md): a node for each row, edges in both directions for each foreign key, and
    features of columns. A table with exactly two foreign keys and no key of its own is edges between the rows that it
    names, with features.

    `source`: name -> pandas DataFrame or Arrow table; a folder of files .csv, .csv.gz or .parquet; the URL of a
    database as SQLAlchemy takes it, or an engine. `target`: the column to predict, as "orders.returned".

    `keys`: table -> its key column or columns; `foreign_keys`: "orders.customer_id" -> the table that it names. For
    tables without declared keys, names tell the rest. `times`: table -> the column that says when a row became known,
    or None. `exclude`: columns that are left out, such as those that are only known later. `kinds`: column -> "number",
    "category", "text", "date" or "ignore". `target_kind`: where the column does not tell. `split`: shares of training,
    validation and test rows, or the last times of the first two. `dangling`: whether foreign keys that name no row are
    reported or a DataError. A column with at most `max_categories` values is one of categories; other text is hashed
    into `text_features` numbers. `seed` draws the split where rows have no times.

    Scales and categories are learnt of training rows: those of the target's table that are not in another part, and
    those of other tables that are known when training ends. DataError for anything that does not fit together.
    """
    try:
        from graphweave.data.tables.build import make_graph
    except ImportError as error:
        raise DataError(
            f"from_tables needs the extra 'tables' ({error}). Run: pip install 'graphweave[tables]'"
        ) from error
    options = TableOptions(
        keys or {}, foreign_keys or {}, times or {}, exclude, kinds or {}, target_kind, split, dangling, max_categories,
        text_features, seed, name,
    )  # fmt: skip
    return make_graph(source, target, options)
