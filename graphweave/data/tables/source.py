"""Reads tables from where people keep them: data frames, Arrow tables, folders of CSV and Parquet files, databases."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from graphweave.core.errors import DataError
from graphweave.core.json_values import JsonObject
from graphweave.data.tables.schema import KeyedTable

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "schema.json"
"""File in a folder of tables that may name keys, foreign keys and times as `from_tables` takes them."""


def read_tables(source: object) -> tuple[dict[str, KeyedTable], JsonObject]:
    """The tables of `source`, and the options that it brings along. DataError for anything that cannot be read."""
    if isinstance(source, Mapping):
        return {name: KeyedTable(name, _frame(value, name)) for name, value in source.items()}, {}
    if isinstance(source, (str, Path)) and "://" not in str(source):
        return _read_folder(Path(source))
    return _read_database(source), {}


def _read_database(source: object) -> dict[str, KeyedTable]:
    try:
        from graphweave.data.tables.sql import read_database
    except ImportError as error:
        raise DataError("databases need SQLAlchemy. Run: pip install 'graphweave[tables]'") from error
    return read_database(source)


def _frame(value: object, name: str) -> pd.DataFrame:
    if hasattr(value, "to_pandas") and not isinstance(value, pd.DataFrame):
        return _of_arrow(value)
    if not isinstance(value, pd.DataFrame):
        raise DataError(
            f"{name}: expected a pandas DataFrame or an Arrow table (got {type(value).__name__}). Convert it first."
        )
    if any(isinstance(dtype, pd.ArrowDtype) for dtype in value.dtypes):
        import pyarrow as pa

        return _of_arrow(pa.Table.from_pandas(value, preserve_index=False))
    doubled = value.columns[value.columns.duplicated()]
    if len(doubled):
        raise DataError(f"{name}: expected columns of different names (got {doubled[0]!r} twice). Rename one.")
    return value.reset_index(drop=True)


def _of_arrow(table: pa.Table) -> pd.DataFrame:
    """Integers with missing values stay integers, since keys of 64 bits are not numbers of float64."""
    frame: pd.DataFrame = table.to_pandas(integer_object_nulls=True, date_as_object=True)
    return frame.reset_index(drop=True)


def _read_folder(folder: Path) -> tuple[dict[str, KeyedTable], JsonObject]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder. Name a folder of .csv or .parquet files, or the URL of a database.")
    tables: dict[str, KeyedTable] = {}
    for file in sorted(folder.iterdir()):
        read = _reader(file)
        if read is None:
            continue
        name = file.name.split(".")[0] if file.suffix in (".gz", ".csv") else file.stem
        if name in tables:
            raise DataError(f"{folder}: expected one file for the table {name} (got another, {file.name}). Move one.")
        try:
            tables[name] = KeyedTable(name, _frame(read(file), name))
        except (OSError, ValueError, pd.errors.ParserError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataError(f"{file}: not a readable table ({reason}). Correct the file.") from error
    if not tables:
        raise DataError(f"{folder}: no table in this folder (expected files .csv, .csv.gz or .parquet). Add some.")
    return tables, _read_schema(folder / SCHEMA)


def _reader(file: Path) -> Callable[[Path], object] | None:
    if file.name.endswith((".csv", ".csv.gz")):
        return _read_csv
    return _read_parquet if file.suffix == ".parquet" else None


def _read_csv(file: Path) -> pd.DataFrame:
    try:
        frame = pd.read_csv(file, dtype_backend="numpy_nullable", low_memory=False)
    except pd.errors.EmptyDataError:
        raise DataError(f"{file}: expected a line of column names (got an empty file). Write one.") from None
    for name in frame.columns[[pd.api.types.is_string_dtype(dtype) for dtype in frame.dtypes]]:
        text = frame[name].dropna().astype(str)
        if len(text) and text.str.fullmatch(r"-?\d{19,}").all():  # beyond 64 bits, which pandas leaves as text
            frame[name] = pd.Series([None if v is pd.NA else int(v) for v in frame[name]], dtype=object)
    return frame


def _read_parquet(file: Path) -> object:
    try:
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise DataError("Parquet files need pyarrow. Run: pip install 'graphweave[tables]'") from error
    return parquet.read_table(file)


def _read_schema(file: Path) -> dict[str, dict[str, str] | list[str]]:
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file}: not readable JSON ({error}). Correct the file.") from error
    known = {"keys", "foreign_keys", "times", "exclude", "kinds"}
    if not isinstance(found, dict) or not found.keys() <= known:
        raise DataError(f"{file}: expected an object with some of {', '.join(sorted(known))}. Correct the file.")
    return found
