"""Reads all tables of an SQL database, with the keys that it declares, through SQLAlchemy."""

from __future__ import annotations

import warnings
from pathlib import Path

import pandas as pd
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SAWarning, SQLAlchemyError

from graphweave.core.errors import DataError
from graphweave.data.tables.schema import ForeignKey, KeyedTable


def read_database(source: object) -> dict[str, KeyedTable]:
    """The tables of the database that a URL or an SQLAlchemy engine names. DataError if it cannot be read; passwords
    are left out of messages."""
    if isinstance(source, sa.Engine):
        return _read(source)
    if not isinstance(source, (str, sa.URL)):
        raise DataError(
            f"tables: expected name -> data frame, a folder, a database URL or an engine (got {type(source).__name__})."
            " Pass one of these."
        )
    try:
        url = sa.make_url(source)
        engine = sa.create_engine(url)
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        scheme = str(source).partition("://")[0]
        raise DataError(
            f"{scheme}://...: not a URL of a database that SQLAlchemy knows ({_reason(error)})."
            " Write it as sqlite:///shop.db or postgresql+psycopg://user@host/name."
        ) from error
    except ImportError as error:
        shown = url.render_as_string(hide_password=True)
        raise DataError(f"{shown}: the driver of this database is missing ({error}). Install it with pip.") from error
    file = url.database if url.get_backend_name() == "sqlite" else None
    named = file and file != ":memory:" and not file.startswith("file:")
    if file and named and not Path(file).is_file():  # SQLite would make an empty database of it
        raise DataError(f"{file}: no such file. Check the path.")
    try:
        return _read(engine)
    finally:
        engine.dispose()


def _read(engine: sa.Engine) -> dict[str, KeyedTable]:
    shown = engine.url.render_as_string(hide_password=True)
    try:
        with warnings.catch_warnings():
            # SQLite has types that SQLAlchemy does not know, and keeps decimals as floating-point numbers.
            warnings.simplefilter("ignore", SAWarning)
            metadata = sa.MetaData()
            metadata.reflect(engine)
            with engine.connect() as connection:
                found = {str(one.name): _table(one, connection) for one in _ordered(metadata)}
    except (SQLAlchemyError, ValueError, TypeError) as error:
        raise DataError(f"{shown}: the database cannot be read ({_reason(error)}). Check the URL and it.") from error
    if not found:
        raise DataError(f"{shown}: the database has no table. Check the URL.")
    return found


def _ordered(metadata: sa.MetaData) -> list[sa.Table]:
    return sorted(metadata.tables.values(), key=lambda table: str(table.name))


def _table(table: sa.Table, connection: sa.Connection) -> KeyedTable:
    rows = connection.execute(sa.select(*map(_as_kept, table.columns))).all()
    # Objects, because pandas would make floating-point numbers of integers among which one is missing.
    frame = pd.DataFrame(
        {str(column.name): pd.Series([row[i] for row in rows], dtype=object) for i, column in enumerate(table.columns)}
    )
    foreign = []
    for constraint in table.foreign_key_constraints:
        pairs = [(str(e.parent.name), str(e.column.name)) for e in constraint.elements]
        columns, others = zip(*pairs, strict=True)
        foreign.append(ForeignKey(columns, str(constraint.referred_table.name), others))
    foreign.sort(key=lambda f: [list(frame.columns).index(c) for c in f.columns])
    return KeyedTable(str(table.name), frame, tuple(str(c.name) for c in table.primary_key.columns), tuple(foreign))


def _as_kept(column: sa.Column[object]) -> sa.ColumnElement[object]:
    """SQLite keeps any value in any column, so that what it calls numeric may be text: it is read as it is kept."""
    return sa.type_coerce(column, sa.types.NullType()) if isinstance(column.type, sa.Numeric) else column


def _reason(error: Exception) -> str:
    """The driver's own words, in one line."""
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [type(error).__name__])[0]
