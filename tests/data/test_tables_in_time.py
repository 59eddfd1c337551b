"""Nothing of the future leaks: not into batches, not into scales and categories, not into the training part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from graphweave.core.errors import DataError
from graphweave.data import TableGraph, from_tables
from graphweave.data.tables.graph import ALWAYS, NEVER
from graphweave.examples.tables import TableSampler
from graphweave.sampling import NeighborSampler

pd = pytest.importorskip("pandas", reason="tables need pandas")

BEGIN = pd.Timestamp("2024-01-01")
DAYS = 40


def day(number: float) -> Any:
    return BEGIN + pd.Timedelta(days=number)


def adversarial(seed: int = 0) -> dict[str, Any]:
    """One customer with an order a day, whose every row of later days holds a value that gives it away: the day itself.
    Lines have no time of their own; payments are later than their order; profiles name the last order."""
    draw = np.random.default_rng(seed)
    days = draw.permutation(DAYS)
    return {
        "customers": pd.DataFrame({"id": [0], "last_order_id": [int(days.argmax())]}),
        "orders": pd.DataFrame({
            "id": range(DAYS), "customer_id": 0, "placed_at": [day(d) for d in days], "late": days.astype(float),
            "y": draw.random(DAYS) < 0.5,
        }),
        "lines": pd.DataFrame({"id": range(DAYS), "order_id": range(DAYS), "product_id": 0, "late": days * 1.0}),
        "products": pd.DataFrame({"id": [0]}),
        "payments": pd.DataFrame({
            "id": range(DAYS), "order_id": range(DAYS), "paid_at": [day(d + 5) for d in days], "late": days + 5.0,
        }),
        "tags": pd.DataFrame({
            "order_id": np.arange(DAYS).repeat(2), "product_id": 0,
            "tagged_at": [day(d + e) for d in days for e in (0, 9)], "late": [d + e for d in days for e in (0.0, 9.0)],
        }),
    }  # fmt: skip


def days_of(g: TableGraph, table: str) -> torch.Tensor:
    """The day on which each row of the tables above became known."""
    return (g.times[table] - int(BEGIN.to_datetime64().astype("datetime64[us]").astype(int))) // (86400 * 10**6)


@pytest.fixture(scope="module")
def graph() -> TableGraph:
    return from_tables(adversarial(), "orders.y")


def test_rows_without_times_are_known_when_those_that_they_name_are(graph: TableGraph) -> None:
    assert days_of(graph, "lines").equal(days_of(graph, "orders"))
    assert "products" not in graph.times
    assert days_of(graph, "customers").tolist() == [DAYS - 1]  # it names the last order


def test_no_batch_holds_the_future(graph: TableGraph) -> None:
    """In the batch of all orders, with all neighbours, every node and edge is of its seed's past."""
    assert graph.target is not None
    sampler = TableSampler(graph, graph.target, (-1, -1, -1), seed=0)
    rows = torch.arange(DAYS)
    found = sampler.sampler.sample({"orders": rows}, {"orders": graph.times["orders"]}, 0)
    assert found.trees is not None
    seen = 0
    for table, chunks in found.nodes.items():
        nodes, trees = torch.cat(chunks), torch.cat(found.trees[table])
        if table in graph.times:
            assert (graph.times[table][nodes] <= graph.times["orders"][trees]).all()
            seen += nodes.numel()
    assert seen > 5 * DAYS  # the past is there
    for relation in (("orders", "tags", "products"), ("products", "rev_tags", "orders")):
        for hop in found.edges[relation]:
            trees = torch.cat(found.trees[relation[2]])[hop.dst]
            assert (graph.edge_times[relation][hop.edge] <= graph.times["orders"][trees]).all()
    batch = sampler.batch(rows)
    ages = [x[:, -2] for x, table in zip(batch.features, sampler.tables, strict=True) if table in graph.times]
    assert all((age >= 0).all() for age in ages)


def test_what_is_later_changes_nothing_of_an_earlier_batch(graph: TableGraph) -> None:
    """The tables with all later rows deleted give the same batch as the whole tables."""
    assert graph.target is not None
    when = 25
    order = int((days_of(graph, "orders") == when).nonzero())
    tables = adversarial()
    tables["orders"] = tables["orders"][tables["orders"].placed_at <= day(when)].reset_index(drop=True)
    for name, column in (("lines", None), ("payments", "paid_at"), ("tags", "tagged_at")):
        kept = tables[name].order_id.isin(tables["orders"].id)
        kept &= True if column is None else tables[name][column] <= day(when)
        tables[name] = tables[name][kept].reset_index(drop=True)
    tables["customers"].loc[0, "last_order_id"] = None
    split = (day(20), day(when - 1))
    early = from_tables(tables, "orders.y", split=split)
    whole = from_tables(adversarial(), "orders.y", split=split)
    again = int((tables["orders"].id == order).to_numpy().argmax())
    batches = []
    for g, row in ((early, again), (whole, order)):
        assert g.target is not None
        g_sampler = TableSampler(g, g.target, (-1, -1), seed=0)
        # The customer is known since the last order, so it is in neither: its time is of the whole table.
        nodes = g_sampler.sampler.sample({"orders": torch.tensor([row])}, {"orders": g.times["orders"][[row]]}, 0).nodes
        kept = {t: torch.cat(chunks) for t, chunks in nodes.items() if t != "customers"}
        batches.append({t: g.features[t][n].sort(0).values for t, n in kept.items()})
    assert all(batches[0][t].equal(batches[1][t]) for t in batches[0])


def test_scales_are_of_the_past() -> None:
    """Features of training rows are the same, whatever later rows hold."""
    tables, other = adversarial(), adversarial()
    split = (day(20), day(30))
    for name, column in (("orders", "placed_at"), ("payments", "paid_at")):
        later = other[name][column] > day(20)
        other[name].loc[later, "late"] = -1e9
    other["lines"].loc[(other["orders"].placed_at > day(20)).to_numpy(), "late"] = 1e9
    one, two = (from_tables(t, "orders.y", split=split) for t in (tables, other))
    for table in ("orders", "payments", "lines"):
        known = days_of(one, table) <= 20
        assert one.features[table][known].equal(two.features[table][known])
        assert not one.features[table].equal(two.features[table])


def test_the_split_is_by_time(graph: TableGraph) -> None:
    assert graph.target is not None
    days = days_of(graph, "orders")
    train, val, test = (days[getattr(graph.target, f"{part}_mask")] for part in ("train", "val", "test"))
    assert train.max() < val.min() and val.max() < test.min()
    assert [part.numel() for part in (train, val, test)] == [24, 8, 8]


def test_rows_of_one_time_are_in_one_part() -> None:
    orders = pd.DataFrame({"id": range(10), "at": [1, 1, 1, 1, 1, 1, 1, 2, 2, 3], "y": [0, 1] * 5})
    g = from_tables({"orders": orders}, "orders.y", times={"orders": "at"})
    assert g.target is not None and not g.times_are_dates
    assert [int(m.sum()) for m in (g.target.train_mask, g.target.val_mask, g.target.test_mask)] == [7, 2, 1]


def test_rows_of_unknown_time_are_in_no_batch() -> None:
    tables = adversarial()
    tables["payments"].loc[:9, "paid_at"] = pd.NaT
    tables["lines"].loc[0, "order_id"] = 999  # names no order, so nobody knows since when it is there
    g = from_tables(tables, "orders.y")
    assert (g.times["payments"][:10] == NEVER).all() and g.times["lines"][0] == NEVER
    assert any("10 rows of payments have no paid_at" in note for note in g.notes)


def test_a_date_beyond_its_row_is_told() -> None:
    orders = pd.DataFrame({"id": [0, 1], "created": [day(0), day(1)], "sent": [day(3), day(4)], "y": [0, 1]})
    g = from_tables({"orders": orders}, "orders.y")
    assert any("orders.sent has 2 dates later" in note for note in g.notes)
    g = from_tables({"orders": orders}, "orders.y", exclude=["orders.sent"])
    assert not g.notes and not any("sent" in name for name in g.feature_names["orders"])


def test_times_that_cannot_be_told_are_asked_for() -> None:
    two = {"t": pd.DataFrame({"id": [0], "sent": [day(0)], "paid": [day(0)]})}
    with pytest.raises(DataError, match="Name one of them, or none: times="):
        from_tables(two)
    assert from_tables(two, times={"t": None}).times == {}
    mixed = {"t": pd.DataFrame({"id": [0], "at": [day(0)]}), "u": pd.DataFrame({"id": [0], "at": [5]})}
    with pytest.raises(DataError, match="all dates or all numbers"):
        from_tables(mixed, times={"u": "at"})
    with pytest.raises(DataError, match="dates or whole numbers"):
        from_tables({"u": pd.DataFrame({"id": [0], "at": [0.5]})}, times={"u": "at"})


def test_a_target_without_times_sees_all_rows() -> None:
    tables = adversarial() | {"shops": pd.DataFrame({"id": range(4), "y": [0, 1, 0, 1]})}
    tables["orders"]["shop_id"] = 0
    g = from_tables(tables, "shops.y")
    assert g.target is not None and ALWAYS not in g.times["orders"]
    batch = TableSampler(g, g.target, (-1, -1), seed=0).batch(torch.arange(4))
    assert batch.y.tolist() == [0, 1, 0, 1] and batch.features[2].size(0) >= DAYS


def test_pyg_loaders_hold_nothing_of_the_future(graph: TableGraph) -> None:
    from torch_geometric.loader import NodeLoader

    data = graph.to_pyg()
    sampler = NeighborSampler(data, [-1, -1], time_attr="time")
    for batch in NodeLoader(data, sampler, input_nodes=("orders", None), batch_size=7):
        limits = batch["orders"].time[: batch["orders"].batch_size]
        for table in graph.times:
            assert (batch[table].time <= limits[batch[table].batch]).all()
