"""Data parallel training: ranks train as one process does, in every task; DDP around compiled modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import graphweave
from graphweave.core.counters import counters
from graphweave.data import families
from graphweave.distributed.ranks import ALONE, Ranks, started
from graphweave.examples.tasks import Data, start
from graphweave.examples.training import Links, TrainingJob
from tests import patience
from tests.cli.test_cli_tasks import CASES, case
from tests.ranks_support import on_ranks
from tests.support import by_default, random_graph

EPOCHS = 2
RELATIONS = {f"relations {negatives}": Links("distmult", 100, negatives, 0.3, 1) for negatives in (0, 5)}
SIZES = {"classes": 11, "points": 7, "sampled": 10, "sampled gcn": 10}
"""Batches of which the last has one row, so that a rank has none."""


def trained(way: str, job: TrainingJob, data: Data, ranks: Ranks = ALONE) -> dict[str, Any]:
    """The losses, validations and tests of a training in float64, and the last weights. (In float32 Adam would turn
    rounding noise, where a gradient is 0, into steps.)"""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        training = start(way, job, data, ranks)
        for _ in range(EPOCHS):
            training.epoch()
        history = training.history
        weights = [value for module in training.modules for value in module.state_dict().values()]  # type: ignore[attr-defined]
        return {"loss": history.loss, "val": history.val, "test": training.test(), "weights": weights}
    finally:
        torch.set_default_dtype(before)


def prepared(name: str, folder: Path) -> tuple[TrainingJob, Data]:
    if name in RELATIONS:
        links = RELATIONS[name]
        return TrainingJob("rgcn", 8, 1, 0.0, 0.01, 0.0, EPOCHS, 0, 1, links), families(count=2, seed=2)
    folder = folder / name
    folder.mkdir()
    job, data = case(name, folder)
    double = {f.name: value.double() for f in fields(data) if isinstance(value := getattr(data, f.name), Tensor)
              and value.is_floating_point()}  # fmt: skip
    return replace(job, dropout=0.0, batch=SIZES.get(name, job.batch)), replace(data, **double)


def every_case(given: list[tuple[str, TrainingJob, Data]]) -> list[dict[str, Any]]:
    with started(patience.seconds()) as ranks:
        return [trained(*one, ranks) for one in given]


def assert_alike(many: dict[str, Any], one: dict[str, Any]) -> None:
    np.testing.assert_allclose(many["loss"], one["loss"], rtol=1e-9)
    np.testing.assert_allclose(many["val"], one["val"], rtol=1e-6)
    assert many["test"] == pytest.approx(one["test"], rel=1e-6)
    for a, b in zip(many["weights"], one["weights"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def compare(size: int, names: list[str], folder: Path, way: str) -> None:
    cases = [prepared(name, folder) for name in names]
    want = [trained("eager", *one) for one in cases]
    for found in on_ranks(size, "tests.distributed.test_data_parallel:every_case", [(way, *one) for one in cases]):
        for name, many, one in zip(names, found, want, strict=True):
            try:
                assert_alike(many, one)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


QUICK = ["classes", "lightgcn", "sampled", "sampled gcn", "link dot", "relations 5"]


def test_two_ranks_train_as_one_process(tmp_path: Path) -> None:
    compare(2, QUICK, tmp_path, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "way"), [(2, "eager"), (4, "eager"), (2, "graphweave")])
def test_ranks_train_as_one_process_in_every_task(size: int, way: str, tmp_path: Path) -> None:
    compare(size, [*CASES, *RELATIONS], tmp_path, way)


class Mixed(nn.Module):
    """Two layers of attention in plain PyTorch: x [N, 5], src, dst [E] -> [N, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)
        self.left, self.right = nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        h = self.first(x)
        weight = nn.functional.leaky_relu(self.left(h)[src] + self.right(h)[dst], 0.2).exp()
        total = torch.zeros(x.size(0), 1, dtype=x.dtype).index_add(0, dst, weight)
        mean = torch.zeros_like(h).index_add(0, dst, weight * h[src]) / total.clamp(min=1e-6)
        return self.second(nn.functional.elu(mean))


WRAPPINGS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compiled inside": lambda model: DistributedDataParallel(graphweave.compile(model)),
    "compiled outside": lambda model: graphweave.compile(DistributedDataParallel(model)),
    "torch.compile": lambda model: torch.compile(DistributedDataParallel(model), backend="graphweave"),
    "not compiled": DistributedDataParallel,
}


def share_of(rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """A graph of other size on each rank."""
    x = torch.randn(30 + 7 * rank, 5, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    src, dst = random_graph(x.size(0), x.size(0), 90 + 20 * rank, seed=rank)
    return x, src, dst


def gradients(wrap: Callable[[nn.Module], nn.Module], rank: int) -> list[Tensor]:
    """After two steps on a rank's graph."""
    torch.manual_seed(0)
    model = Mixed().double()
    run = wrap(model)
    for _ in range(2):
        model.zero_grad()
        run(*share_of(rank)).square().mean().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def wrapped(names: list[str]) -> tuple[dict[str, list[Tensor]], dict[str, int]]:
    with started(patience.seconds()) as ranks:
        found = {name: gradients(WRAPPINGS[name], ranks.rank) for name in names}
    return found, dict(counters())


@pytest.mark.parametrize("names", by_default([["compiled inside"], list(WRAPPINGS)], ["compiled inside"]), ids=len)
def test_gradients_are_averaged_around_compiled_modules(names: list[str], tmp_path: Path) -> None:
    """Each kernel is compiled by one rank; the other finds it in the cache."""
    each = [gradients(lambda model: model, rank) for rank in range(2)]
    want = [torch.stack(parts).mean(0) for parts in zip(*each, strict=True)]
    found = on_ranks(2, "tests.distributed.test_data_parallel:wrapped", names, GRAPHWEAVE_CACHE_DIR=str(tmp_path))
    for in_rank, _ in found:
        for name, got in in_rank.items():
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=name)
    built = [counts.get("kernel_builds", 0) for _, counts in found]
    hits = [counts.get("kernel_cache_hits", 0) for _, counts in found]
    assert sum(built) == len(list((tmp_path / "kernels").glob("*.so"))) > 0
    assert sum(built) <= sum(hits), (built, hits)  # the ranks have the same kernels
