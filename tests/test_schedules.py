"""A user's schedule: what it may be, what kernels make of it, and that it never changes a result."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import graphweave
from graphweave.compiler.pipeline import optimise
from graphweave.core.errors import ScheduleError, SettingsError
from graphweave.core.schedule import EDGE_ORDERS, WALKS, Schedule
from graphweave.core.types import DType
from graphweave.lower.options import options_for
from graphweave.runtime.chunks import equal_rows, equal_work
from graphweave.runtime.edge_orders import ordered_column, ordered_edges, source_pieces
from graphweave.runtime.index import Index
from tests.program_support import ZOO, assert_computes, compiled, large
from tests.programs.random_programs import random_program

ONE_RANGE = st.builds(
    Schedule,
    edge_order=st.sampled_from([None, *EDGE_ORDERS]),
    walk=st.sampled_from([None, *WALKS]),
    feature_tile=st.sampled_from([None, 1, 2, 4, 8]),
    prefetch=st.sampled_from([None, 0, 1, 7]),
    product_tile=st.sampled_from([None, 1, 3, 16]),
    chunks=st.sampled_from([None, 1, 2, 5, 300]),
)  # fmt: skip
PARTITIONS = st.builds(
    Schedule,
    source_partitions=st.sampled_from([1, 2, 3, 50]),
    edge_order=st.sampled_from([None, "source"]),
    feature_tile=st.sampled_from([None, 1, 4]),
    product_tile=st.sampled_from([None, 3]),
    chunks=st.sampled_from([None, 4]),
)  # fmt: skip
SCHEDULES = st.one_of(ONE_RANGE, PARTITIONS)
"""Legal schedules of the CPU; threads are the test's."""


def gcn(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def graph(width: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(40, (300,), generator=generator) for _ in range(2))
    return torch.randn(40, width, generator=generator), src, dst


# ---------------------------------------------------------------- data


@given(SCHEDULES)
def test_repr_and_json_give_the_schedule_back(schedule: Schedule) -> None:
    assert eval(repr(schedule), {"Schedule": Schedule}) == schedule
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule


def test_default_chooses_nothing() -> None:
    assert Schedule().to_dict() == {} and repr(Schedule()) == "Schedule()"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("walk", "columns", "one of 'rows', 'edges', 'divided'"),
        ("prefetch", -1, "a whole number from 0 on"),
        ("threads", 0, "a whole number from 1 on"),
        ("chunks", True, "a whole number from 1 on"),
        ("product_tile", 2.0, "a whole number from 1 on"),
        ("gpu_rows", 12, "a power of two"),
        ("gpu_warps", 64, "at most 32"),
        ("edge_order", "hilbert", "one of 'given', 'source', 'degree'"),
        ("source_partitions", 0, "a whole number from 1 on"),
    ],
)
def test_value_that_cannot_be_is_refused(field: str, value: Any, expected: str) -> None:
    with pytest.raises(ScheduleError, match=expected) as error:
        Schedule(**{field: value})
    assert repr(value) in str(error.value) and field in str(error.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"edge_order": "degree"}, "'edge_order' must be 'source' where there are source_partitions"),
        ({"walk": "rows"}, "'walk' must be None where there are source_partitions"),
    ],
)
def test_partitions_and_another_order_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Schedule(source_partitions=4, **fields)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected fields out of walk"):
        Schedule.from_dict({"walks": "rows"})


def test_option_must_be_a_schedule() -> None:
    with pytest.raises(SettingsError, match=r"must be a graphweave\.Schedule or None \(got 'auto'\)"):
        graphweave.compile(gcn, options={"schedule": "auto"})


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Schedule(gpu_rows=4), "expected a field that says something to a CPU"),
        (Schedule(product_tile=8), "product_tile=8: the kernel multiplies no tiles"),
        (Schedule(gpu_warps=4, gpu_stages=2), "Move the tensors to a GPU, or use fields of the CPU"),
    ],
)
def test_schedule_that_no_kernel_can_take_is_refused(schedule: Schedule, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        graphweave.compile(gcn, options={"schedule": schedule})(*graph())


# ---------------------------------------------------------------- effects


def loops(schedule: Schedule, width: int = 32) -> str:
    told = graphweave.explain(graphweave.compile(gcn, options={"schedule": schedule}), *graph(width))
    return told.graphs[0].kernels[0].loops


def test_prefetch_distance_is_read_back() -> None:
    assert "_column[k + 5]] {" in loops(Schedule(prefetch=5))
    assert "prefetch" not in loops(Schedule(prefetch=0))


def test_feature_tiles_are_read_back_and_give_the_same_bits() -> None:
    text = loops(Schedule(feature_tile=8))
    assert "do sweep f < 4" in text and "from {8*f + 0} < 8" in text and "_out[v, {8*f + 1*j2 + 0}]" in text
    tiled = graphweave.compile(gcn, options={"schedule": Schedule(feature_tile=8)})(*graph())
    assert torch.equal(tiled, graphweave.compile(gcn)(*graph()))


@pytest.mark.parametrize("tile", [1, 4, 8, 16, 32])
def test_tiles_of_several_feature_dimensions(tile: int) -> None:
    def heads(x: torch.Tensor, a: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, dst, torch.tanh(x[src] * a[:, :, None] + x[dst]))

    _, src, dst = graph()
    generator = torch.Generator().manual_seed(4)
    x, a = torch.randn(40, 4, 16, generator=generator), torch.randn(300, 4, generator=generator)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    made = graphweave.compile(heads, options={"schedule": Schedule(feature_tile=tile)})
    out, expected = made(ours, a, src, dst), heads(theirs, a, src, dst)
    torch.testing.assert_close(out, expected)
    out.sin().sum().backward()
    expected.sin().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize(
    ("size", "why"), [(5, "5 does not divide rows of 32 features"), (32, "32 does not divide rows of 32 features")]
)
def test_tile_that_does_not_divide_is_refused(size: int, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        graphweave.compile(gcn, options={"schedule": Schedule(feature_tile=size)})(*graph())


def test_partitions_are_read_back() -> None:
    text = loops(Schedule(source_partitions=4, feature_tile=8))
    assert "pass_0(piece < num_pieces" in text and "fold_0(slot < num_slots" in text and "finish(slot" in text
    assert text.count("do sweep f < 4") == 1  # the pieces alone: FeatGraph's figure 6


def test_partitions_run_in_place_of_the_kernel() -> None:
    made, before = graphweave.compile(gcn, options={"schedule": Schedule(source_partitions=3)}), graphweave.counters()
    torch.testing.assert_close(made(*graph()), gcn(*graph()))
    assert graphweave.counters()["divided_launches"] == before["divided_launches"] + 1


def test_order_of_edges() -> None:
    index = Index(torch.tensor([1, 0, 1, 1, 1, 2]), 4)
    source = Index(torch.tensor([3, 0, 2, 0, 2, 2]), 5)
    assert ordered_edges(index, source, "source").tolist() == [1, 3, 2, 4, 0, 5]
    assert ordered_edges(index, source, "degree").tolist() == [1, 2, 4, 3, 0, 5]
    assert ordered_column(index, source, source, "source").tolist() == [0, 0, 2, 2, 3, 2]


def test_pieces_of_source_ranges() -> None:
    """Rows 0 to 3 in ranges of sources {0, 1, 2} and {3, 4}: row 1 has edges of both, row 3 none."""
    index, source = Index(torch.tensor([1, 0, 1, 1, 1, 2]), 4), Index(torch.tensor([3, 0, 2, 0, 2, 2]), 5)
    table = source_pieces(index, source, 2).pieces
    assert table.piece_row.tolist() == [0, 1, 2, 3, 1]
    assert table.pieces.tolist() == [0, 1, 4, 5, 5, 6]
    starts = [int(k + s) for k, s in zip(table.pieces[:-1], table.piece_shift, strict=True)]
    assert starts == [0, 1, 5, 6, 4]  # positions in the order of ordered_edges
    assert table.slots.tolist() == [0, 1, 3, 4, 5]
    assert table.slot_piece is not None and table.slot_piece.tolist() == [0, 1, 4, 2, 3]


def test_fields_that_a_kernel_does_not_take_are_told() -> None:
    def two(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, dst, torch.relu(x[src] - x[dst]) @ w) + gcn(x, src, dst)

    made = graphweave.compile(two, options={"schedule": Schedule(product_tile=3, gpu_rows=2)})
    told = graphweave.explain(made, *graph(), torch.randn(32, 32))
    assert "without gpu_rows of the schedule: the kernel runs on a CPU" in told.text("loops")
    assert "tiles tile < 3 in csr[v]" in told.text("loops")


def test_chunks_of_equal_rows_and_of_equal_work() -> None:
    assert equal_rows(10, 3).tolist() == [0, 3, 6, 10]
    assert equal_rows(2, 5).tolist() == [0, 1, 2] and equal_rows(0, 5).tolist() == [0, 0]
    indptr = torch.tensor([0, 100, 100, 101, 102, 103])
    assert equal_work(indptr, 2).tolist() == [0, 1, 5]
    assert equal_work(indptr, 100).tolist() == [0, 1, 2, 3, 4, 5]
    assert equal_work(torch.tensor([0]), 4).tolist() == [0, 0]


# ---------------------------------------------------------------- results


@settings(max_examples=4, deadline=None)
@given(SCHEDULES, st.integers(0, 400))
def test_schedule_never_changes_a_result(schedule: Schedule, number: int) -> None:
    check(schedule, number)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(SCHEDULES, st.integers(0, 4000))
def test_more_schedules_never_change_a_result(schedule: Schedule, number: int) -> None:
    check(schedule, number)


def check(schedule: Schedule, number: int) -> None:
    """`assert_computes` compares with the interpreter, and the bits of one thread with those of two.

    A field that no kernel of the program can take is refused by name, and drawn no more.
    """
    program = random_program(number, DType.f64 if number % 2 else DType.f32)
    while True:
        try:
            made = compiled(optimise(program).program if number % 3 else program, options_for("cpp", schedule=schedule))
            break
        except ScheduleError as error:
            (field,) = [name for name in schedule.given if f"can take {name}=" in str(error)]
            schedule = replace(schedule, **{field: None})
    assert_computes(made, program, (*ZOO, large()))


@pytest.mark.parametrize("schedule", [Schedule(walk="rows", chunks=3), Schedule(walk="edges", chunks=7, threads=2)])
def test_compiled_function_and_gradients(schedule: Schedule) -> None:
    x, src, dst = graph()
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = graphweave.compile(gcn, options={"schedule": schedule})(ours, src, dst)
    expected = gcn(theirs, src, dst)
    torch.testing.assert_close(out, expected)
    weight = torch.randn_like(out)
    out.backward(weight)
    expected.backward(weight)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_torch_compile_takes_the_option() -> None:
    made = torch.compile(gcn, backend="graphweave", options={"schedule": Schedule(prefetch=3)})
    torch.testing.assert_close(made(*graph()), gcn(*graph()))
