"""The same tables from data frames, Arrow, files and databases are the same graph (`graphweave/data/tables/`)."""

from __future__ import annotations

import datetime
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from graphweave.core.errors import DataError
from graphweave.data import TableGraph, from_tables, shop

pd = pytest.importorskip("pandas", reason="tables need pandas")
pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
sa = pytest.importorskip("sqlalchemy", reason="databases need SQLAlchemy")

import pyarrow.parquet as parquet  # noqa: E402


def same(one: TableGraph, other: TableGraph, names: bool = True) -> None:
    assert set(one.edges) == set(other.edges)
    for table in one.features:
        if names:
            assert one.feature_names[table] == other.feature_names[table]
        assert one.features[table].equal(other.features[table])
    for table in one.times:
        assert one.times[table].equal(other.times[table])
    for relation in one.edges:
        assert one.edges[relation].equal(other.edges[relation])
    for relation in one.edge_features:
        assert one.edge_features[relation].equal(other.edge_features[relation])
    assert one.target is not None and other.target is not None
    assert one.target.y.equal(other.target.y) and one.target.test_mask.equal(other.target.test_mask)


@pytest.fixture(scope="module")
def from_frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], TableGraph]:
    folder = shop(tmp_path_factory.mktemp("frames") / "shop", num_orders=200)
    frames = {file.stem: pd.read_csv(file) for file in sorted(folder.iterdir())}
    return frames, from_tables(frames, "orders.returned")


def test_the_shop_is_the_same_everywhere(tmp_path: Path, from_frames: Any) -> None:
    frames, wanted = from_frames
    assert wanted.target.classes == ("false", "true") and not wanted.notes
    same(from_tables(shop(tmp_path / "shop", num_orders=200), "orders.returned"), wanted)
    database = shop(tmp_path / "shop.db", num_orders=200)
    same(from_tables(f"sqlite:///{database}", "orders.returned"), wanted)
    engine = sa.create_engine(f"sqlite:///{database}")
    same(from_tables(engine, "orders.returned"), wanted)
    engine.dispose()
    arrow = {name: pa.Table.from_pandas(frame) for name, frame in frames.items()}
    same(from_tables(arrow, "orders.returned"), wanted)
    of_arrow = {name: table.to_pandas(types_mapper=pd.ArrowDtype) for name, table in arrow.items()}
    same(from_tables(of_arrow, "orders.returned"), wanted)
    (tmp_path / "parquet").mkdir()
    for name, table in arrow.items():
        parquet.write_table(table, tmp_path / "parquet" / f"{name}.parquet")
    same(from_tables(tmp_path / "parquet", "orders.returned"), wanted)


def test_a_schema_file_tells_keys_and_times(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("nr,when,was\n007,2024-01-01,2024-01-02\n008,2024-01-03,2024-01-01\n")
    (tmp_path / "b.csv").write_text("eins,y\n8.0,1\n7,2\n,3\n")
    (tmp_path / "schema.json").write_text(
        '{"keys": {"a": "nr"}, "foreign_keys": {"b.eins": "a"}, "times": {"a": "when"}, "exclude": ["a.was"]}'
    )
    g = from_tables(str(tmp_path))
    assert g.edges["b", "eins", "a"].tolist() == [[0, 1], [1, 0]]
    assert list(g.times) == ["a", "b"]
    (tmp_path / "schema.json").write_text('{"key": {}}')
    with pytest.raises(DataError, match="expected an object with some of"):
        from_tables(str(tmp_path))
    (tmp_path / "schema.json").write_text("{")
    with pytest.raises(DataError, match="not readable JSON"):
        from_tables(str(tmp_path))


def test_huge_integers_keep_their_digits(tmp_path: Path) -> None:
    one, two = 2**53 + 1, 2**70 + 1
    (tmp_path / "a.csv").write_text(f"id\n{2**53}\n{one}\n{two - 1}\n{two}\n")
    (tmp_path / "b.csv").write_text(f"a_id,x\n{one},1\n,2\n{two},3\n")
    g = from_tables(tmp_path)
    assert g.edges["b", "a_id", "a"].tolist() == [[0, 2], [1, 3]]
    frames = {"a": pa.table({"id": [2**53, one]}), "b": pa.table({"a_id": [one, None]})}
    assert from_tables(frames).edges["b", "a_id", "a"].tolist() == [[0], [1]]


@pytest.mark.parametrize(
    "files, message",
    [
        ({}, "no table in this folder"),
        ({"a.csv": b""}, "expected a line of column names"),
        ({"a.csv": b"x,y\n1,2,3\n4,5,6,7\n"}, "not a readable table"),
        ({"a.csv": b"\xff\xfe\xfd"}, "not a readable table"),
        ({"a.parquet": b"nothing"}, "not a readable table"),
        ({"a.csv": b"id\n1\n", "a.csv.gz": b""}, "expected one file for the table a"),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        from_tables(tmp_path)


@pytest.mark.parametrize(
    "source, message",
    [
        ("/nowhere/at/all", "no such folder"),
        ("sqlite:////nowhere/at/all.db", "no such file"),
        ("nothing://x", "not a URL of a database"),
        (5, "expected name -> data frame"),
    ],
)
def test_bad_sources_are_refused(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_tables(source)


def test_a_password_is_in_no_message() -> None:
    pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg")
    for url in ("postgresql+psycopg://u:secret@localhost:1/x", "mysql+nothing://u:secret@localhost/x"):
        with pytest.raises(DataError) as caught:
            from_tables(url)
        assert "secret" not in str(caught.value)


def test_sqlite_keeps_any_value_in_any_column(tmp_path: Path) -> None:
    file = tmp_path / "odd.db"
    connection = sqlite3.connect(file)
    connection.executescript(
        "CREATE TABLE a (id INTEGER PRIMARY KEY, mixed, shape GEOMETRY, price NUMERIC, at TEXT);"
        "CREATE TABLE b (one INTEGER REFERENCES a, two INTEGER REFERENCES a, x REAL);"
        "INSERT INTO a VALUES (1, 5, 'p', 1.5, '2024-01-01'), (2, 'five', 'q', 2, '2024-01-02 10:00');"
        "INSERT INTO b VALUES (1, 2, 0.5), (2, 9, 1.5), (NULL, 1, 2.5);"
    )
    connection.close()
    g = from_tables(f"sqlite:///{file}")
    assert g.edges["a", "b", "a"].tolist() == [[0], [1]] and "a" in g.times
    assert any("2 rows of b join no two rows" in note for note in g.notes)
    connection = sqlite3.connect(file)
    connection.executescript("CREATE TABLE c (id INTEGER PRIMARY KEY, at DATETIME); INSERT INTO c VALUES (1, 'soon');")
    connection.close()
    with pytest.raises(DataError, match="the database cannot be read"):
        from_tables(f"sqlite:///{file}")


def _postgres_programs() -> Path | None:
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders and (folders[-1] / "initdb").is_file() else None


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, without a network, in a temporary folder."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs psycopg")
    programs = _postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    as_user: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="gwpg"))  # a short path, since sockets have such
    if os.geteuid() == 0:  # it refuses to run as root
        if "postgres" not in {user.pw_name for user in pwd.getpwall()}:
            pytest.skip("PostgreSQL runs by no root, and there is no user postgres")
        shutil.chown(folder, "postgres")
        as_user = {"user": "postgres"}
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"

    def run(*words: str) -> None:
        subprocess.run(
            [str(programs / words[0]), *words[1:]], check=True, cwd=folder, stdout=subprocess.DEVNULL, **as_user
        )

    try:
        run("initdb", "-D", f"{folder}/data", "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        run("pg_ctl", "-D", f"{folder}/data", "-o", options, "-l", f"{folder}/log", "-w", "start")
        yield f"postgresql+psycopg://postgres@/postgres?host={folder}"
        run("pg_ctl", "-D", f"{folder}/data", "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_postgres_has_the_same_shop(postgres: str, from_frames: Any) -> None:
    frames, wanted = from_frames
    engine = sa.create_engine(postgres)
    metadata = sa.MetaData(schema=None)
    orders = ["id", sa.Integer], ["customer_id", sa.BigInteger], ["placed_at", sa.DateTime(timezone=True)]
    kinds = {
        "customers": [["id", sa.BigInteger], ["region", sa.Text], ["born", sa.Date], ["newsletter", sa.Boolean],
                      ["joined_at", sa.DateTime]],
        "products": [["id", sa.Integer], ["name", sa.Text], ["category", sa.Text], ["price", sa.Numeric(10, 2)],
                     ["weight", sa.Float]],
        "orders": [*orders, ["payment", sa.Text], ["discount", sa.Float], ["returned", sa.Boolean]],
        "order_lines": [["order_id", sa.Integer], ["product_id", sa.Integer], ["quantity", sa.SmallInteger]],
        "reviews": [["id", sa.Integer], ["product_id", sa.Integer], ["customer_id", sa.Integer],
                    ["rating", sa.Integer], ["text", sa.Text], ["written_at", sa.DateTime]],
    }  # fmt: skip
    names = {"customer_id": "customers.id", "product_id": "products.id", "order_id": "orders.id"}
    for name, columns in kinds.items():
        sa.Table(name, metadata, *(
            sa.Column(column, kind, *([sa.ForeignKey(names[column])] if column in names else []),
                      primary_key=column == "id" or (name == "order_lines" and column in names))
            for column, kind in columns
        ))  # fmt: skip
    metadata.create_all(engine)
    with engine.begin() as connection:
        for table in metadata.sorted_tables:
            dates = [c.name for c in table.columns if isinstance(c.type, (sa.Date, sa.DateTime))]
            frame = frames[table.name].astype(object)
            for column in dates:
                zone = datetime.timezone.utc if table.name == "orders" else None
                frame[column] = pd.Series(
                    [None if pd.isna(v) else pd.Timestamp(v, tz=zone).to_pydatetime() for v in frame[column]],
                    dtype=object,
                )
            rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
            connection.execute(table.insert(), rows)
    engine.dispose()
    same(from_tables(postgres, "orders.returned"), wanted)


def test_postgres_has_types_of_its_own(postgres: str) -> None:
    engine = sa.create_engine(postgres)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SCHEMA odd"))
        connection.execute(sa.text(
            "CREATE TABLE odd.größe (name text, nr numeric(30), u uuid, j jsonb, a int[], i interval, b bytea, t time,"
            " d timestamptz, PRIMARY KEY (name, nr))"
        ))  # fmt: skip
        connection.execute(sa.text(
            "CREATE TABLE odd.ware (id int PRIMARY KEY, g text, n numeric(30), y numeric,"
            " FOREIGN KEY (g, n) REFERENCES odd.größe)"
        ))  # fmt: skip
        big = 10**28
        for shift in (0, 1):
            connection.execute(
                sa.text(
                    "INSERT INTO odd.größe VALUES ('ä', :n, gen_random_uuid(), '{}', '{1}', '1 day', 'x', '12:00',"
                    " '2024-01-01 05:00+05')"
                ),
                {"n": Decimal(big + shift)},
            )
        connection.execute(
            sa.text("INSERT INTO odd.ware VALUES (1, 'ä', :n, 1.25), (2, 'ä', NULL, 2.5)"), {"n": Decimal(big + 1)}
        )
    engine.dispose()
    g = from_tables(f"{postgres}&options=-csearch_path%3Dodd", "ware.y", target_kind="classes")
    assert g.edges["ware", "g+n", "größe"].tolist() == [[0], [1]]
    assert g.target is not None and g.target.classes == ("1.25", "2.5")
    assert g.times["größe"].tolist() == [1704067200000000] * 2
    assert {note.split(" ")[0] for note in g.notes if "other types" in note} == {
        "größe.j", "größe.a", "größe.b", "größe.t",
    }  # fmt: skip
