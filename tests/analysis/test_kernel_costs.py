"""The cost of each kernel that `explain` reports, and the rates of the machine that bound its time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import graphweave
from bench.probes import probed
from graphweave.analysis.statistics import Statistics
from graphweave.compiler.kernel_costs import kernel_cost
from graphweave.core.kernel_cost import KernelCost, Rates
from graphweave.core.types import Space
from graphweave.frontends.dynamo import explain
from graphweave.tuning import rates
from tests.program_support import compiled
from tests.support import features
from tests.typed_programs import pushed_program


def layer(x: Tensor, w: Tensor, edge_index: Tensor) -> Tensor:
    """A normalised sum of messages, forward and backward."""
    src, dst = edge_index
    degree = torch.zeros(x.size(0)).index_add(0, dst, torch.ones(dst.numel())).clamp(min=1)
    h = torch.relu(x @ w)
    return torch.zeros_like(h).index_add(0, dst, h[src] / degree[src, None]).sum()


def graph(nodes: int, edges: int) -> Tensor:
    return torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(7))


def test_costs_that_explain_reports_are_those_of_the_kernels_that_run() -> None:
    x, w, edge_index = features(50, 8).requires_grad_(), features(8, 4).requires_grad_(), graph(50, 400)
    explained = graphweave.explain(layer, x, w, edge_index)
    with probed() as recorder:
        recorder.on = True
        graphweave.compile(layer)(x, w, edge_index).backward()
    ran = [(p.traffic.compulsory, p.traffic.gather, p.traffic.flops) for p in recorder.probes.values() if p.kernel]
    notes = [k for g in explained.graphs for k in g.kernels]
    costs = [k.cost for k in (*(k for g in explained.graphs for k in g.once), *notes) if k.cost is not None]
    assert sorted((c.compulsory, c.gather, c.flops) for c in costs) == sorted(ran)
    assert {c.name for c in costs} >= {"forward_0", "backward_0"}
    assert all(c.bound_seconds is None and c.seconds is None for c in costs)


def test_a_fused_push_multiplies_once_for_each_pair_of_row_and_type() -> None:
    program = pushed_program(2, 3, 5, scaled=True)
    plan = compiled(program).plan
    (kernel,) = plan.kernels.values()
    types, nodes, edges = 7, 11, 1300
    statistics = Statistics(((Space("R"), types), (Space("V"), nodes), (Space("E"), edges)))
    cost = kernel_cost(plan.program, kernel, statistics)
    assert cost.flops == 2 * (nodes * types) * 2 * 3 * 5 + 2 * edges * 2 * 3
    assert cost.gather - cost.compulsory == 24 * edges - 24 * nodes


def test_a_bound_is_that_of_bytes_or_of_flops() -> None:
    cost = KernelCost("k", compulsory=1000, gather=4000, flops=300)
    assert cost.bounded_by(Rates(100.0, 1e9)).bound_seconds == 10.0
    assert cost.bounded_by(Rates(1e9, 100.0)).bound_seconds == 3.0


def test_rates_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHWEAVE_CACHE_DIR", str(tmp_path))
    rates.rates.cache_clear()
    measured = rates.rates()
    assert 1e8 < measured.bandwidth < 1e13 and 1e8 < measured.products < 1e15
    rates.rates.cache_clear()

    def again(*_: object, **__: object) -> float:
        raise AssertionError("measured again")

    monkeypatch.setattr(rates, "triad_bandwidth", again)
    assert rates.rates() == measured
    rates.rates.cache_clear()


def test_each_call_of_eager_mode_has_its_bytes_and_the_users_line() -> None:
    explained = graphweave.explain(layer, features(50, 8), features(8, 4), graph(50, 400))
    (capture,) = explained.captures
    gathers = [c.moved for c in capture.eager if c.name == "aten::index" and "h[src]" in c.where.code]
    assert gathers == [8 * 400 + 2 * 16 * 400, 8 * 400 + 2 * 4 * 400]  # the index, the rows read and the rows written
    assert capture.eager_calls == len(capture.eager)
    assert capture.eager_moved == sum(c.moved or 0 for c in capture.eager)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_bounds_are_those_of_the_device_that_kernels_run_on(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"cpu": Rates(1e9, 1e12), "cuda:0": Rates(1e12, 1e15)}
    monkeypatch.setattr(explain, "rates", known.__getitem__)
    explained = graphweave.explain(layer, features(50, 8), features(8, 4), graph(50, 400))
    assert {g.device for g in explained.graphs} == {"cpu"}
    moved = replace(explained, graphs=tuple(replace(g, device=device) for g in explained.graphs))
    for kernel in moved.data().kernels:
        assert kernel.cost is not None
        assert kernel.cost.bound_seconds == known[device].seconds(kernel.cost.compulsory, kernel.cost.flops)
