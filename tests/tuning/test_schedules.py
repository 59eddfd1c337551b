"""A user's schedule: which ones are valid, what kernels do with them, and that they never change a result."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given

import graphweave
from graphweave.core.errors import ScheduleError, SettingsError
from graphweave.core.schedule import Schedule
from graphweave.execute.triton_launch import Launches, scheduled
from graphweave.runtime.triton_kernel import Launch
from tests.tuning.schedule_cases import schedules


def gcn(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, dst, x[src])


def graph(width: int = 32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    src, dst = (torch.randint(40, (300,), generator=generator) for _ in range(2))
    return torch.randn(40, width, generator=generator), src, dst


# ---------------------------------------------------------------- data


@given(schedules())
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
        ("gpu_registers", 256, "at most 255"),
        ("gpu_registers", 8, "a whole number from 16 on"),
        ("rfactor", 12, "a power of two"),
        ("rfactor", 128, "from 4 to 64"),
        ("edge_order", "random", "one of 'given', 'source', 'degree', 'locality', 'hilbert'"),
        ("row_order", "hilbert", "one of 'given', 'degree', 'locality'"),
        ("vector_bytes", 8, "one of 16, 32, 64"),
        ("unroll", 0, "a whole number from 1 on"),
        ("feature_tile", (4, 0), "a whole number from 1 on, or a tuple of such"),
        ("feature_tile", (), "a whole number from 1 on, or a tuple of such"),
        ("register_tile", 1.5, "a whole number from 1 on"),
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
        ({"source_partitions": 4, "walk": "rows"}, "'walk' must be None with source_partitions"),
        ({"edge_order": "hilbert", "walk": "edges"}, "'walk' must be None with edge_order='hilbert'"),
        ({"edge_order": "hilbert", "row_order": "degree"}, "'row_order' must be None with edge_order='hilbert'"),
        ({"walk": "divided", "row_order": "degree"}, "'row_order' must be 'given' with walk='divided'"),
        ({"feature_tile": 8, "register_tile": 8}, "'register_tile' must be a proper divisor of the 8 features"),
        ({"feature_tile": (2, 4), "register_tile": 3}, "'register_tile' must be a proper divisor of the 8 features"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        Schedule(**fields)


def test_unknown_field_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected fields out of walk"):
        Schedule.from_dict({"walks": "rows"})


def test_option_must_be_a_schedule() -> None:
    with pytest.raises(SettingsError, match=r"a graphweave\.Schedule, a dict of them, or None \(got 'auto'\)"):
        graphweave.compile(gcn, options={"schedule": "auto"})


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (Schedule(gpu_rows=4), "expected a field for a CPU, where the tensors lie"),
        (Schedule(product_tile=8), "product_tile=8: the kernel multiplies no tiles"),
        (Schedule(edge_order="hilbert"), "edge_order='hilbert': the kernel folds its edges into rows"),
        (Schedule(feature_tile=(2, 8)), r"feature_tile=\(2, 8\): the kernel's results have the feature dimensions 32"),
        (Schedule(register_tile=32), "register_tile=32: the tile is all of the 32 features"),
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


def test_wide_rows_have_tiles_of_the_compilers_own() -> None:
    """Accumulators of 512 floats do not stay in registers. A width without a divisor of at least 64 stays whole."""
    wide, odd = (graphweave.explain(gcn, *graph(width)) for width in (512, 521))
    assert "do sweep f < 2" in wide.text("loops") and "sweep" not in odd.text("loops")
    asked = graphweave.compile(gcn, options={"schedule": Schedule(feature_tile=128)})
    assert "do sweep f < 4" in graphweave.explain(asked, *graph(512)).text("loops")
    within = graphweave.compile(gcn, options={"schedule": Schedule(register_tile=128)})
    assert "sweep" not in graphweave.explain(within, *graph(512)).text("loops")


def test_what_every_tile_would_compute_again_keeps_rows_whole() -> None:
    """A tile of 256 products would fold 64 and scale 64 others for each edge, sixteen times."""

    def outer(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        scaled = x[src] * torch.tanh((x[src] * w).sum(1, keepdim=True))
        message = scaled.unsqueeze(2) * w.unsqueeze(1)
        return x.new_zeros(x.size(0), 64, 64).index_add(0, dst, message)

    x, src, dst = graph(64)
    assert "sweep" not in graphweave.explain(outer, x, src, dst, torch.randn(src.numel(), 64)).text("loops")


@pytest.mark.parametrize("width", [320, 512])
def test_the_compilers_own_tiles_change_no_bit(width: int) -> None:
    x, src, dst = graph(width)
    whole = torch.cat([graphweave.compile(gcn)(part, src, dst) for part in x.split(64, 1)], 1)
    assert torch.equal(graphweave.compile(gcn)(x, src, dst), whole)


@pytest.mark.parametrize("tile", [8, 32, (2, 8)])
def test_tiles_of_several_feature_dimensions(tile: int | tuple[int, int]) -> None:
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
    ("size", "why"), [(5, "5 does not divide feature dimensions of 32"), (32, "the tile is all of the 32 features")]
)
def test_tile_that_does_not_divide_is_refused(size: int, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        graphweave.compile(gcn, options={"schedule": Schedule(feature_tile=size)})(*graph())


def test_partitions_are_read_back() -> None:
    text = loops(Schedule(source_partitions=4, feature_tile=8))
    assert "pass_0(piece < num_pieces" in text and "fold_0(slot < num_slots" in text and "finish(slot" in text
    assert text.count("do sweep f < 4") == 1  # only in the kernel over pieces, as in FeatGraph's figure 6


def test_tile_within_a_row_is_read_back_and_gives_the_same_bits() -> None:
    schedule = Schedule(feature_tile=16, register_tile=4)
    text = loops(schedule)
    assert "do sweep f < 2 within r < 4" in text and "alloc push_8_v: f32[4]" in text
    tiled = graphweave.compile(gcn, options={"schedule": schedule})(*graph())
    assert torch.equal(tiled, graphweave.compile(gcn)(*graph()))


def test_row_order_vectors_and_unrolled_loops_are_read_back() -> None:
    text = loops(Schedule(row_order="degree", vector_bytes=16, unroll=4))
    assert "do vectors 16" in text and "edges k in csr[at] unroll 4 prefetch" in text
    assert "let v: i32 = row_order[at]" in text


def test_vectors_and_unrolled_loops_are_printed() -> None:
    made = graphweave.compile(gcn, options={"schedule": Schedule(vector_bytes=16, unroll=4)})
    (kernel,) = graphweave.explain(made, *graph()).graphs[0].kernels
    assert "#pragma GCC unroll 4\n" in kernel.text and "gw_lanes(32, 4, 16)" in kernel.text


def test_partitions_run_in_place_of_the_kernel() -> None:
    made, before = graphweave.compile(gcn, options={"schedule": Schedule(source_partitions=3)}), graphweave.counters()
    torch.testing.assert_close(made(*graph()), gcn(*graph()))
    assert graphweave.counters()["divided_launches"] == before["divided_launches"] + 1


def test_fields_that_a_kernel_does_not_take_are_told() -> None:
    def two(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, dst, torch.tanh(torch.relu(x[src] - x[dst]) @ w))

    made = graphweave.compile(two, options={"schedule": Schedule(product_tile=3, gpu_rows=2)})
    told = graphweave.explain(made, *graph(), torch.randn(32, 32))
    assert "without gpu_rows of the schedule: the kernel runs on a CPU" in told.text("loops")
    assert "tiles tile < 3 in csr[v]" in told.text("loops")


def test_fields_of_a_gpu_change_the_launch() -> None:
    how = Launches(Launch(16, 16), Launch(1, 64))
    made = scheduled(how, Schedule(gpu_rows=4, gpu_edges=8, gpu_warps=2, gpu_stages=3, gpu_registers=64))
    assert made.short == Launch(4, 8, 2, 3, 64) and made.pieces == Launch(1, 8, 2, 3, 64)
    assert made.short.options == {"num_warps": 2, "enable_fp_fusion": False, "num_stages": 3, "maxnreg": 64}
    assert scheduled(how, Schedule(walk="rows")).pieces is None
    assert scheduled(how, Schedule(walk="divided")) == how


# ---------------------------------------------------------------- results


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


# ---------------------------------------------------------------- partial results of reductions


def dots(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return (x[src] * x[dst]).sum(1)


@pytest.mark.parametrize(("rfactor", "width"), [(4, 31), (32, 100), (64, 64)])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_reduction_over_features_has_so_many_partial_results(rfactor: int, width: int) -> None:
    args = graph(width)
    run = graphweave.compile(dots, options={"schedule": Schedule(rfactor=rfactor)})
    told = graphweave.explain(run, *args)
    assert f"sum j1 < {width} in {rfactor} {{" in told.text("loops")
    assert f"[{rfactor} / " in told.text("kernels")
    torch.testing.assert_close(run(*args), dots(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_reduction_has_at_most_as_many_partial_results_as_features() -> None:
    with pytest.raises(ScheduleError, match="rfactor=64: the kernel reduces no 64 features or more"):
        graphweave.compile(dots, options={"schedule": Schedule(rfactor=64)})(*graph(33))


@pytest.mark.parametrize("schedule", [Schedule(rfactor=8), Schedule(edge_format="coo")])
def test_some_fields_are_those_of_all_kernels(schedule: Schedule) -> None:
    with pytest.raises(ScheduleError, match=r"must be None for some of the kernels, since .* for 'forward'"):
        graphweave.compile(dots, options={"schedule": {"forward": schedule}})


# ---------------------------------------------------------------- the format of edges


def loops_of(edge_format: Any, width: int, edges: int = 300, **more: Any) -> str:
    x, src, dst = graph(width)
    run = graphweave.compile(dots, options={"schedule": Schedule(edge_format=edge_format, **more)})
    args = x, src[:edges], dst[:edges]
    torch.testing.assert_close(run(*args), dots(*args), rtol=1e-4, atol=1e-4)
    return graphweave.explain(run, *args).text("loops")


@pytest.mark.parametrize("edge_format", ["csr", "coo"])
@pytest.mark.parametrize("width", [1, 33])
@pytest.mark.usefixtures("fresh_compiler")
def test_values_of_edges_are_computed_in_the_format_of_the_schedule(edge_format: Any, width: int) -> None:
    loops = loops_of(edge_format, width)
    assert ("edges k in csr[v]" in loops) is (edge_format == "csr")
    assert ("(v < num_E0" in loops) is (edge_format == "coo")


@pytest.mark.usefixtures("fresh_compiler")
def test_the_format_of_edges_is_chosen_by_how_many_there_are() -> None:
    assert "edges k in csr[v]" in loops_of(None, 33)
    assert "edges k in csr[v]" not in loops_of(None, 33, edges=40), "no row would be read twice"


@pytest.mark.parametrize("edges", [0, 1, 40])
@pytest.mark.usefixtures("fresh_compiler")
def test_a_schedule_of_grouped_edges_is_taken_of_few_edges_too(edges: int) -> None:
    assert "edges within in pieces" in loops_of(None, 33, edges=edges, edge_order="hilbert")


@pytest.mark.usefixtures("fresh_compiler")
def test_edges_that_are_folded_are_grouped() -> None:
    with pytest.raises(ScheduleError, match="edge_format='coo': the kernel folds edges into rows"):
        graphweave.compile(gcn, options={"schedule": Schedule(edge_format="coo")})(*graph())
