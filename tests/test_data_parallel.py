"""Data parallel training: two ranks, and more, train as one process does, in every task; DDP around compiled modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import graphweave
from graphweave.cli.tasks import Data, start
from graphweave.cli.training import Links, TrainingJob
from graphweave.core.counters import counters
from graphweave.data import families
from graphweave.distributed.batch_norm import over_ranks, take_part
from graphweave.distributed.ranks import ALONE, Ranks, started
from graphweave.graph.assemble import HOMOGENEOUS_ETYPE, HOMOGENEOUS_NTYPE
from graphweave.sampling.adjacency import adjacency
from graphweave.sampling.hops import hop_sampler
from tests.ranks_support import on_ranks
from tests.support import random_graph
from tests.test_cli_tasks import CASES, case

EPOCHS = 2
RELATIONS = {f"relations {negatives}": Links("distmult", 100, negatives, 0.3, 1) for negatives in (0, 5)}
SIZES = {"classes": 11, "points": 7, "sampled": 10}
"""Batches of which the last has one row, so that a rank has none."""


def trained(given: tuple[str, Path, str], ranks: Ranks = ALONE) -> dict[str, Any]:
    """Of a case without dropout: the losses, validations and tests of a way, and the last weights."""
    name, folder, way = given
    job, data = prepared(name, folder)
    training = start(way, job, data, ranks)
    for _ in range(EPOCHS):
        training.epoch()
    history = training.history
    weights = [value for module in training.modules for value in module.state_dict().values()]  # type: ignore[attr-defined]
    return {"loss": history.loss, "val": history.val, "test": training.test(), "weights": weights}


def prepared(name: str, folder: Path) -> tuple[TrainingJob, Data]:
    if name in RELATIONS:
        links = RELATIONS[name]
        return TrainingJob("rgcn", 8, 1, 0.0, 0.01, 0.0, EPOCHS, 0, 1, links), families(count=2, seed=2)
    job, data = case(name, folder)
    # A large rate of Adam would take rounding noise for steps.
    return replace(job, dropout=0.0, lr=1e-3, batch=SIZES.get(name, job.batch)), data


def every_case(given: list[tuple[str, Path, str]]) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    with started(timeout=120) as ranks:
        return [trained(one, ranks) for one in given]


def assert_alike(many: dict[str, Any], one: dict[str, Any]) -> None:
    np.testing.assert_allclose(many["loss"], one["loss"], rtol=2e-5)
    np.testing.assert_allclose(many["val"], one["val"], atol=1e-4)
    assert many["test"] == pytest.approx(one["test"], abs=1e-4)
    for a, b in zip(many["weights"], one["weights"], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)


def compare(size: int, names: list[str], folder: Path, way: str) -> None:
    given = []
    for name in names:
        (folder / name).mkdir()
        given.append((name, folder / name, way))
    if way == "eager":
        want = [trained(one) for one in given]
    else:
        want = [trained((name, where, "eager")) for name, where, _ in given]
    for found in on_ranks(size, "tests.test_data_parallel:every_case", given):
        for name, many, one in zip(names, found, want, strict=True):
            try:
                assert_alike(many, one)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error


def test_two_ranks_train_as_one_process_in_every_task(tmp_path: Path) -> None:
    compare(2, [*(name for name in CASES if name not in ("link bilinear", "link mlp")), *RELATIONS], tmp_path, "eager")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "way"), [(4, "eager"), (2, "graphweave"), (4, "graphweave")])
def test_ranks_train_as_one_process(size: int, way: str, tmp_path: Path) -> None:
    compare(size, [*CASES, *RELATIONS], tmp_path, way)
