"""Drawings of schedules: each edge is visited once, in the schedule's order, and loops are told in words."""

from __future__ import annotations

from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from graphweave import Schedule
from graphweave.core import schedule_drawing as drawing
from graphweave.core.errors import ScheduleError

SVG = "{http://www.w3.org/2000/svg}"
SCHEDULES = (
    Schedule(), Schedule(walk="rows"), Schedule(walk="edges", threads=3), Schedule(walk="divided", threads=4),
    Schedule(row_order="degree"), Schedule(row_order="locality", edge_order="locality"), Schedule(edge_order="source"),
    Schedule(edge_order="degree", threads=1), Schedule(source_partitions=4, feature_tile=16, unroll=2),
    Schedule(source_partitions=100), Schedule(edge_order="hilbert", source_partitions=2),
    Schedule(feature_tile=(2, 16), register_tile=8, vector_bytes=32, prefetch=0), Schedule(product_tile=32),
    Schedule(threads=64), Schedule(gpu_rows=64), Schedule(gpu_edges=1, gpu_warps=1, gpu_stages=3),
)  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
@pytest.mark.parametrize("features", [1, 7, 64])
def test_every_edge_is_drawn_once(schedule: Schedule, features: int) -> None:
    root = ElementTree.fromstring(schedule.draw(features=features))
    places = [(dot.get("cx"), dot.get("cy")) for dot in root.iter(f"{SVG}circle")]
    assert len(places) == len(set(places)) == len(drawing._EDGES)
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert repr(schedule) in words
    assert root.findtext(f"{SVG}title", "").startswith(f"How {schedule!r} walks a graph: each ")


def order(**fields: Any) -> list[tuple[int, int]]:
    """(row, source) of the edges as one thread visits them."""
    return drawing._visited(fields, fields.get("source_partitions", 1))


def rows_of(edges: list[tuple[int, int]]) -> list[int]:
    return [row for row, _ in groupby(row for row, _ in edges)]


def test_rows_of_most_edges_come_first() -> None:
    degrees = [drawing._DEGREES[row] for row in rows_of(order(row_order="degree"))]
    assert degrees == sorted(degrees, reverse=True) and degrees[0] == max(drawing._DEGREES)


def test_edges_go_by_source_within_their_row() -> None:
    for _, edges in groupby(order(edge_order="source"), key=lambda edge: edge[0]):
        sources = [source for _, source in edges]
        assert sources == sorted(sources)


def test_ranges_of_sources_come_one_after_the_other() -> None:
    ranges = [source // 3 for _, source in order(source_partitions=4)]
    assert ranges == sorted(ranges) and set(ranges) == {0, 1, 2, 3}


def test_a_hilbert_curve_goes_to_a_neighbour_each_time() -> None:
    curve = sorted(((x, y) for x in range(16) for y in range(16)), key=lambda place: drawing._hilbert_place(*place))
    steps = {abs(a - c) + abs(b - d) for (a, b), (c, d) in pairwise(curve)}
    assert steps == {1}


def test_an_order_by_locality_shortens_what_lies_between_neighbours() -> None:
    def width(places: list[int]) -> int:
        return max(abs(places[row] - places[source]) for row, source in drawing._EDGES)

    near = drawing._near_order()
    assert sorted(near) == list(range(drawing._NODES))
    assert width(drawing._places(near)) < width(list(range(drawing._NODES)))


def test_threads_share_all_edges() -> None:
    for fields in ({"walk": "rows"}, {"walk": "edges"}, {"walk": "divided"}, {"source_partitions": 2}):
        parts = drawing._shared(order(**fields), {**fields, "threads": 3})
        assert len(parts) == 3 and list(chain(*parts)) == order(**fields)
    cut = drawing._shared(order(walk="divided"), {"walk": "divided", "threads": 4})
    assert len({rows_of(part)[0] for part in cut}) < sum(len(rows_of(part)) for part in cut)
    assert max(map(len, cut)) - min(map(len, cut)) <= 3


def test_loops_are_told_from_the_outermost_on() -> None:
    schedule = Schedule(source_partitions=4, feature_tile=16, unroll=2, prefetch=8)
    assert drawing.loops(schedule.given, 64) == [
        "each of 4 tiles of 16 features",
        "  each of 4 ranges of sources",
        "    each row",
        "      each edge of it, 2 written out, rows fetched 8 edges ahead",
        "        16 features",
        "at the end: add the partial results of each row",
    ]
    assert drawing.loops(Schedule(gpu_rows=4, gpu_warps=1).given, 64)[0] == "each program: 4 rows, on 1 warp"


def test_a_drawing_goes_to_a_file(tmp_path: Path) -> None:
    schedule = Schedule(walk="rows")
    schedule.save(tmp_path / "light.svg", features=8)
    schedule.save(str(tmp_path / "dark.svg"), features=8, dark=True)
    assert (tmp_path / "light.svg").read_text() == schedule.draw(features=8)
    assert (tmp_path / "dark.svg").read_text() == schedule.draw(features=8, dark=True) != schedule.draw(features=8)


@pytest.mark.parametrize("features", [0, -1, 2.0, True])
def test_a_row_has_features(features: Any) -> None:
    with pytest.raises(ScheduleError, match="'features' must be a whole number from 1 on"):
        Schedule().draw(features=features)
