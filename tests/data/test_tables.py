"""Tables become a graph: keys, relations, features of columns, and what is refused (`graphweave/data/tables/`)."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphweave.core.errors import DataError
from graphweave.data import TableGraph, from_tables

pd = pytest.importorskip("pandas", reason="tables need pandas")

from graphweave.data.tables.columns import DANGLING, NO_ROW, read_column, rows_named  # noqa: E402
from graphweave.data.tables.encode import ColumnEncoder, Features, Scale  # noqa: E402


def frame(**columns: Any) -> Any:
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})


def shop() -> dict[str, Any]:
    return {
        "customers": pd.DataFrame({"id": [7, 5, 9], "age": [30.0, 40.0, 50.0]}),
        "orders": pd.DataFrame({"id": [1, 2, 3, 4], "customer_id": [5, 9, 5, 7], "total": [1.0, 2.0, 3.0, 6.0]}),
    }


def encoded(
    values: Any, kind: str | None = None, training: Any = None, **options: Any
) -> tuple[list[str], torch.Tensor]:
    column = read_column(pd.Series(values))
    assert column is not None
    into = Features(len(values))
    seen = np.ones(len(values), dtype=bool) if training is None else np.array(training)
    why = ColumnEncoder(seen, None, 64, 4).add(into, "c", column, kind)
    assert why is None
    return into.names, into.tensor()


def test_foreign_keys_are_relations_in_both_directions() -> None:
    g = from_tables(shop())
    assert set(g.edges) == {("orders", "customer_id", "customers"), ("customers", "rev_customer_id", "orders")}
    forth = g.edges["orders", "customer_id", "customers"]
    assert forth.tolist() == [[0, 1, 2, 3], [1, 2, 1, 0]]
    assert g.edges["customers", "rev_customer_id", "orders"].equal(forth.flip(0))
    assert g.feature_names["orders"] == ("total",)
    assert g.num_nodes == 7 and g.num_edges == 8


def test_composite_and_self_references() -> None:
    tables = {
        "stock": pd.DataFrame({"shop": ["a", "a", "b"], "sku": [1, 2, 1], "count": [3, 4, 5]}),
        "sales": pd.DataFrame({"sale_id": [1, 2], "shop": ["b", "a"], "sku": [1, 2]}),
        "parts": frame(id=[1, 2, 3], parent_id=[None, 1, 1]),
    }
    for reference in ("sales.shop+sku", ("sales", "shop", "sku")):
        g = from_tables(tables, keys={"stock": ("shop", "sku")}, foreign_keys={reference: "stock"})
        assert g.edges["sales", "shop+sku", "stock"].tolist() == [[0, 1], [2, 1]]
        assert g.edges["parts", "parent_id", "parts"].tolist() == [[1, 2], [0, 0]]


def test_a_table_that_joins_two_is_edges_with_features() -> None:
    tables = shop() | {
        "products": pd.DataFrame({"id": [1, 2]}),
        "lines": frame(order_id=[1, 1, 3, None], product_id=[2, 1, 2, 1], quantity=[1, 2, 3, 4]),
    }
    g = from_tables(tables)
    assert "lines" not in g.features
    assert g.edges["orders", "lines", "products"].tolist() == [[0, 0, 2], [1, 0, 1]]
    assert g.edge_feature_names["orders", "lines", "products"] == ("quantity",)
    assert g.edge_features["orders", "lines", "products"].shape == (3, 1)
    assert g.features["products"].tolist() == [[1.0], [1.0]] and g.feature_names["products"] == ("one",)
    assert any("lines" in note and "1 rows" in note for note in g.notes)
    named = from_tables(tables, "lines.quantity", target_kind="number")
    assert "lines" in named.features  # what is predicted is a node


def test_dangling_keys_are_counted_or_refused() -> None:
    tables = shop()
    tables["orders"].loc[1, "customer_id"] = 77
    g = from_tables(tables)
    assert g.edges["orders", "customer_id", "customers"].size(1) == 3
    assert any("1 of 4 rows of orders name no row of customers" in note for note in g.notes)
    with pytest.raises(DataError, match="1 of 4 rows of orders"):
        from_tables(tables, dangling="error")


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda t: t["customers"].__setitem__("id", [5, 5, 9]), "must differ in all rows .got 5 again in row 1"),
        (lambda t: t["customers"].__setitem__("id", [5, None, 9]), "is missing in row 1"),
        (lambda t: t.__setitem__("customers", [1, 2]), "expected a pandas DataFrame"),
    ],
)
def test_bad_keys_are_refused(change: Any, message: str) -> None:
    tables = shop()
    change(tables)
    with pytest.raises(DataError, match=message):
        from_tables(tables)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"target": "orders.nothing"}, "has no column 'nothing'"),
        ({"target": "orders.customer_id"}, "cannot be a target"),
        ({"target": "nothing"}, "expected TABLE.COLUMN"),
        ({"keys": {"nothing": "id"}}, "there is no table 'nothing'"),
        ({"foreign_keys": {"orders.total": "nothing"}}, "there is no table 'nothing'"),
        ({"times": {"nothing": "id"}}, "there is no table 'nothing'"),
        ({"kinds": {"orders.total": "colour"}}, "must be one of number"),
        ({"dangling": "maybe"}, "dangling must be"),
        ({"target": "orders.total", "split": (0.5, 0.6, 0.2)}, "three shares with the sum 1"),
        ({"target": "orders.total", "split": ("2020-01-01", "2021-01-01")}, "needs rows with times"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_tables(shop(), options.pop("target", None), **options)


def test_a_schema_by_names() -> None:
    tables = {
        "Categories": pd.DataFrame({"ID": [1, 2]}),
        "boxes": pd.DataFrame({"box_id": [1, 2], "inner_category_id": [2, 1]}),
        "menu": pd.DataFrame({"id": [1], "valid": [3]}),
    }
    g = from_tables(tables)
    assert set(g.edges) == {
        ("boxes", "inner_category_id", "Categories"), ("Categories", "rev_inner_category_id", "boxes"),
    }  # fmt: skip
    assert g.feature_names["menu"] == ("valid",)


def test_empty_tables_missing_columns_and_odd_names() -> None:
    tables = {
        "Größen": pd.DataFrame({"id": pd.Series([], dtype="int64"), "länge": pd.Series([], dtype="float64")}),
        "рост": frame(id=[1, 2], größen_id=[None, 3], nichts=[None, None], 値=[1, 2], bytes=[b"a", b"b"]),
    }
    g = from_tables(tables, keys={"Größen": "id"}, foreign_keys={"рост.größen_id": "Größen"})
    assert g.features["Größen"].shape[0] == 0
    assert g.feature_names["рост"] == ("値",)
    assert g.edges["рост", "größen_id", "Größen"].shape == (2, 0)
    assert any("рост.nichts is not used" in note for note in g.notes)
    assert any("рост.bytes is not used" in note for note in g.notes)
    assert set(g.to_pyg().node_types) == {"Größen", "рост"}
    assert set(g.to_graph().ntypes) == {"Größen", "рост"}


def test_columns_of_each_kind() -> None:
    assert encoded([1.0, 3.0, None])[1].tolist() == [[-1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert encoded([True, False, None])[1].tolist() == [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]
    assert encoded([Decimal("1.5"), Decimal("2.5")])[1].flatten().tolist() == [-1.0, 1.0]
    names, x = encoded(["red", "blue", "red", "blue", "red", "red"])
    assert names == ["c = red", "c = blue", "c = other"]
    assert x[:2].tolist() == [[1, 0, 0], [0, 1, 0]]
    names, x = encoded(["a b", "b c", "c d"])
    assert len(names) == 4 and not x[0].equal(x[1])
    assert encoded([uuid.UUID(int=i) for i in range(3)])[0][0] == "c: hash 0"
    assert encoded([2, 2, 1], "category")[0] == ["c = 2", "c = 1", "c = other"]
    assert encoded(pd.Categorical(["x", "y", "y"]))[0] == ["c = y", "c = x", "c = other"]
    names, x = encoded([datetime.date(2024, 1, 1), datetime.date(2024, 7, 1)])
    assert [n.split(": ")[1] for n in names] == ["sin of year", "cos of year", "sin of week", "cos of week", "age"]
    assert x[0, -1] == 1 and x[1, -1] == -1  # the elder is further away
    names, _ = encoded(["2024-01-01T12:00:00Z", "2024-07-01T00:00:00+02:00"])
    assert "c: sin of day" in names
    assert read_column(pd.Series([[1], [2]])) is None


def test_zones_are_one_time() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5))
    here = datetime.datetime(2024, 1, 1, 5, tzinfo=zone)
    for values in (pd.Series([here]), pd.Series([here], dtype=object), pd.Series(["2024-01-01 05:00:00+05:00"])):
        column = read_column(values)
        assert column is not None and column.values[0] == np.datetime64("2024-01-01T00:00:00", "us")


def test_scales_and_categories_are_of_training_rows_alone() -> None:
    training = [True, True, True, True, False, False]
    for values in ([1.0, 3.0, 1.0, 3.0, 900.0, None], ["a", "b", "a", "b", "secret", None]):
        names, x = encoded(values, training=training)
        others = [*values[:4], *([-4.0, -7.0] if isinstance(values[0], float) else ["b", "other"])]
        again, y = encoded(others, training=training)
        assert names == again and x[:4].equal(y[:4])
        assert not any("secret" in name or "missing" in name for name in names)


def test_huge_numbers() -> None:
    x = encoded(pd.Series([10**400, 2**70, -(2**70), None], dtype=object))[1]
    assert x[:, 0].tolist() == [0.0, 1.0, -1.0, 0.0] and x[:, 1].tolist() == [1, 0, 0, 1]
    keys = pd.Series([2**63 + 1, 2**63 + 2, 2**62 + 1], dtype=object)
    assert rows_named([keys], [pd.Series([2**62 + 1, 2**63 + 2, 5, None], dtype=object)]).tolist() == [
        2, 1, DANGLING, NO_ROW,
    ]  # fmt: skip
    assert np.isfinite(Scale.of(np.array([1e308, -1e308])).apply(np.array([1e308]))).all()


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_numbers_come_back(values: list[float | None]) -> None:
    """Scaled values and indicators tell the column."""
    column = read_column(pd.Series(values, dtype=object))
    assert column is not None
    into = Features(len(values))
    why = ColumnEncoder(np.ones(len(values), dtype=bool), None, 4, 4).add(into, "c", column)
    present = [value for value in values if value is not None]
    assert (why is not None) == (not present)
    if why is not None:
        return
    scale = Scale.of(np.array(present))
    back = (into.columns[0].astype(np.float64) * scale.spread + scale.middle) * scale.unit
    missing = into.columns[1] > 0 if len(into.columns) > 1 else np.zeros(len(values), dtype=bool)
    for value, found, absent in zip(values, back, missing, strict=True):
        assert absent == (value is None)
        assert value is None or abs(found - value) <= 1e-5 * scale.unit


@given(st.lists(st.one_of(st.none(), st.integers(-5, 5), st.integers(2**60, 2**66)), max_size=12), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_are_found_by_key(named: list[int | None], as_float: bool) -> None:
    """Whatever the types of keys, each finds its own row."""
    keys = [*range(-3, 4), *range(2**60, 2**60 + 3)]
    values = [float(v) if as_float and v is not None and abs(v) < 9 else v for v in named]
    found = rows_named([pd.Series(keys)], [pd.Series(values, dtype=object)])
    wanted = [NO_ROW if v is None else keys.index(v) if v in keys else DANGLING for v in named]
    assert found.tolist() == wanted


@pytest.mark.parametrize(
    "values, kind, classes",
    [
        ([True, False, None, True], None, ("false", "true")),
        (["x", "y", "z", None], None, ("x", "y", "z")),
        ([1, 2, 1, 2], None, ("1", "2")),
        ([1, 2, 3, None], None, ()),
        ([1, 2, 3, None], "classes", ("1", "2", "3")),
        ([1.5, 2.5, 1.5, None], "number", ()),
        ([Decimal("0.5"), Decimal(2), Decimal(9), None], None, ()),
    ],
)
def test_targets(values: list[Any], kind: Any, classes: tuple[str, ...]) -> None:
    g = from_tables({"t": frame(id=[1, 2, 3, 4], c=values)}, "t.c", target_kind=kind)
    assert g.target is not None and g.target.classes == classes
    assert "c" not in g.feature_names["t"]
    known = torch.tensor([v is not None for v in values])
    assert (g.target.train_mask | g.target.val_mask | g.target.test_mask).equal(known)
    if not classes:
        wanted = torch.tensor([float("nan") if v is None else float(v) for v in values])
        assert torch.allclose(g.target.y, wanted, equal_nan=True)


def test_a_target_of_one_value_is_refused() -> None:
    for values in ([1, 1], [None, None], [datetime.date(2020, 1, 1)] * 2):
        with pytest.raises(DataError, match="a target"):
            from_tables({"t": frame(id=[1, 2], c=values)}, "t.c", times={"t": None})


def test_pyg_and_graph_hold_the_same() -> None:
    g: TableGraph = from_tables(shop() | {"alone": pd.DataFrame({"id": [1]})}, "orders.total")
    data, own = g.to_pyg(), g.to_graph()
    assert data["orders"].x.equal(own.nodes["orders"].data["x"]) and "alone" not in own.ntypes
    assert data["orders"].train_mask.equal(own.nodes["orders"].data["train_mask"])
    assert data["orders", "customer_id", "customers"].edge_index.equal(torch.stack(own.edges(etype="customer_id")))
    assert data["alone"].x.tolist() == [[1.0]]
    from_tables(shop()).to_pyg().validate()
