"""A generated shop: customers, products, orders, their lines and reviews, as an SQLite database or as CSV files."""

from __future__ import annotations

import csv
import datetime
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphweave.core.errors import DataError

_BEGIN = datetime.datetime(2023, 1, 1)
_DAYS = 700
_REGIONS = ("north", "east", "south", "west")
_CATEGORIES = ("books", "garden", "kitchen", "shoes", "toys")
_PAYMENTS = ("card", "invoice", "transfer")
_PRAISE = ("good", "sturdy", "as described", "would buy again", "lovely")
_BLAME = ("broken", "too small", "late", "not as described", "poor")

_SCHEMA = {
    "customers": "id INTEGER PRIMARY KEY, region TEXT, born DATE, newsletter BOOLEAN, joined_at DATETIME",
    "products": "id INTEGER PRIMARY KEY, name TEXT, category TEXT, price NUMERIC(10, 2), weight REAL",
    "orders": "id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customers (id), placed_at DATETIME, payment TEXT,"
    " discount REAL, returned BOOLEAN",
    "order_lines": "order_id INTEGER REFERENCES orders (id), product_id INTEGER REFERENCES products (id),"
    " quantity INTEGER, PRIMARY KEY (order_id, product_id)",
    "reviews": "id INTEGER PRIMARY KEY, product_id INTEGER REFERENCES products (id),"
    " customer_id INTEGER REFERENCES customers (id), rating INTEGER, text TEXT, written_at DATETIME",
}
TIMES = {"customers": "joined_at", "orders": "placed_at", "reviews": "written_at"}
"""When a row of each table became known."""


@dataclass(frozen=True, slots=True)
class _ShopRows:
    """The column names and the rows of a table."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[Any]]


def shop(path: str | Path, *, num_orders: int = 3000, seed: int = 0) -> Path:
    """Write a shop to `path` and return it: an SQLite database if it ends in .db, or else a folder of CSV files.

    Orders are returned (`orders.returned`) the more often the worse their products are, which earlier reviews tell, and
    the more demanding the customer is, which earlier orders tell. DataError if there is something at `path`.
    """
    path = Path(path)
    if path.exists():
        raise DataError(f"{path}: expected a path where nothing is (got one that exists). Name another.")
    tables = _tables(num_orders, np.random.default_rng(seed))
    if path.suffix == ".db":
        _write_database(path, tables)
    else:
        _write_folder(path, tables)
    return path


def _tables(num_orders: int, draw: np.random.Generator) -> dict[str, _ShopRows]:
    num_customers, num_products = max(num_orders // 8, 1), max(num_orders // 40, 1)
    quality, demanding = draw.normal(size=num_products), draw.normal(size=num_customers)
    kinds = draw.integers(len(_CATEGORIES), size=num_products)
    born = [_BEGIN.date() - datetime.timedelta(int(days)) for days in draw.integers(18 * 365, 80 * 365, num_customers)]
    customers = [
        (i, _REGIONS[draw.integers(4)], _or_none(born[i], draw), bool(draw.random() < 0.5), _text(_moment(0, draw)))
        for i in range(num_customers)
    ]
    products = [
        (i, f"{_CATEGORIES[kinds[i]]} {i}", _CATEGORIES[kinds[i]], round(float(draw.lognormal(3, 0.5)), 2),
         _or_none(round(float(draw.lognormal(0, 1)), 3), draw))
        for i in range(num_products)
    ]  # fmt: skip
    orders: list[tuple[Any, ...]] = []
    lines: list[tuple[Any, ...]] = []
    reviews: list[tuple[Any, ...]] = []
    for i, days in enumerate(np.sort(draw.random(num_orders)) * _DAYS):
        who, bought = int(draw.integers(num_customers)), draw.choice(num_products, min(2, num_products), replace=False)
        placed, discount = _moment(days + 30, draw), round(float(draw.random() * 0.3), 2)
        wish = 2.5 * demanding[who] - 4.0 * quality[bought].min() - 4.0
        orders.append((i, who, _text(placed), _PAYMENTS[draw.integers(3)], discount, _happens(wish, draw)))
        lines += [(i, int(product), int(draw.integers(1, 4))) for product in bought]
        for product in bought:
            rating = int(np.clip(round(3 + 1.2 * quality[product] - 0.3 * demanding[who] + draw.normal() * 0.5), 1, 5))
            words = " and ".join(draw.choice(_PRAISE if rating > 3 else _BLAME, 2))
            written = placed + datetime.timedelta(float(draw.integers(3, 20)))
            reviews.append((len(reviews), int(product), who, rating, _or_none(words, draw), _text(written)))
    rows: dict[str, Sequence[Sequence[Any]]] = {
        "customers": customers,
        "products": products,
        "orders": orders,
        "order_lines": lines,
        "reviews": reviews,
    }
    return {name: _ShopRows(_columns(name), found) for name, found in rows.items()}


def _columns(table: str) -> tuple[str, ...]:
    declared = _SCHEMA[table].replace("(10, 2)", "").split(", PRIMARY KEY (")[0]
    return tuple(column.split()[0] for column in declared.split(","))


def _moment(days: float, draw: np.random.Generator) -> datetime.datetime:
    return _BEGIN + datetime.timedelta(float(days), float(draw.integers(86400)))


def _text(moment: datetime.datetime) -> str:
    """The text of a time in SQLite and in CSV files."""
    return moment.strftime("%Y-%m-%d %H:%M:%S.000000")


def _happens(wish: float, draw: np.random.Generator) -> bool:
    return bool(draw.random() < 1 / (1 + np.exp(-wish)))


def _or_none(value: object, draw: np.random.Generator) -> object:
    return value if draw.random() < 0.9 else None


def _write_database(path: Path, tables: dict[str, _ShopRows]) -> None:
    connection = sqlite3.connect(path)
    try:
        with connection:
            for name, table in tables.items():
                connection.execute(f"CREATE TABLE {name} ({_SCHEMA[name]})")
                places = ", ".join("?" * len(table.columns))
                rows = [[str(v) if isinstance(v, datetime.date) else v for v in row] for row in table.rows]
                connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    finally:
        connection.close()


def _write_folder(folder: Path, tables: dict[str, _ShopRows]) -> None:
    folder.mkdir(parents=True)
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(table.columns)
            writer.writerows(table.rows)
