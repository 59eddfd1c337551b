"""Ranks: what the environment says, their shares, sums over them, and what they refuse with one line."""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphweave.cli.main import main
from graphweave.core.errors import DataError
from graphweave.distributed.batch_norm import over_ranks, take_part
from graphweave.distributed.environment import RankPlace, place, restarts
from graphweave.distributed.ranks import Ranks, started
from tests import patience, ranks_support
from tests.ranks_support import on_ranks

MEET = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
            "TORCHELASTIC_RUN_ID": "none"} | MEET  # fmt: skip
SRUN = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"} | MEET
BATCH_SCRIPT = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "7"}


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, None),
        (MEET, None),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2"} | MEET, RankPlace(1, 2, 1)),
        (TORCHRUN, RankPlace(5, 8, 1, 4, 1)),
        (SRUN, RankPlace(3, 4, 1)),
        (SRUN | TORCHRUN, RankPlace(5, 8, 1, 4, 1)),  # torchrun that srun started
        (BATCH_SCRIPT, None),
        (BATCH_SCRIPT | {"SLURM_STEP_NUM_TASKS": "1"}, None),
    ],
)
def test_a_place_is_what_the_starter_says(given: dict[str, str], want: RankPlace | None) -> None:
    assert place(given) == want


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set, but WORLD_SIZE is (got '2'). Set both"),
        ({"RANK": "1"}, "WORLD_SIZE is not set, but RANK is (got '1')"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set, so 2 processes (WORLD_SIZE)"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"RANK": "2", "WORLD_SIZE": "2"} | MEET, "RANK must be from 0 to WORLD_SIZE - 1 (got 2 of 2)"),
        ({"RANK": "x", "WORLD_SIZE": "2"} | MEET, "RANK must be a whole number (got 'x')"),
        (
            {k: v for k, v in SRUN.items() if k != "MASTER_ADDR"},
            "cannot meet (got MASTER_ADDR None, MASTER_PORT '29500'",
        ),
    ],
)
def test_a_place_that_cannot_be_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(DataError) as error:
        place(given)
    assert message in str(error.value)


def test_torchrun_supervises_the_ranks_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = RankPlace(5, 8, 1, 4, 1)
    assert [rank for rank in range(8) if mine.supervises(rank)] == [4, 5, 6, 7]
    assert not RankPlace(1, 8, 1).supervises(1)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restarts() == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 6, 20])
def test_shares_are_all_rows_in_order(size: int, count: int) -> None:
    rows = torch.arange(count)
    shares = [rows[Ranks(rank, size).share(count)] for rank in range(size)]
    assert torch.equal(torch.cat(shares), rows)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_one_process_needs_no_group() -> None:
    alone = Ranks()
    assert alone.first and alone.sum(1.5, 2.0) == (1.5, 2.0) and alone.objects("a") == ["a"]
    assert torch.equal(alone.gathered(torch.ones(2)), torch.ones(2))
    with started() as ranks:
        assert ranks == alone


REFUSED = [
    (
        ["--task", "node", "--data", "karate"],
        "karate: this training takes all nodes in each step, which 2 ranks cannot",
    ),
    (
        ["--model", "rgcn", "--batch", "1"],
        "batch must be 2 at least, so that each of 2 ranks has a row of it (got 1)",
    ),
    (["--task", "graph", "--data", "no.npz"], "no.npz: no such file"),
    (["--compare", "--task", "link", "--data", "karate"], "--compare times ways within one process (got 2 ranks)"),
    (["--no-compile", "--resume", "nowhere", "--task", "link", "--data", "karate"], "nowhere: no such checkpoint"),
]


def batch_norm(rank: int) -> dict[str, Any]:
    """A normalisation over two ranks, of which rank 1 has 2 rows and the other 5, and then one where it has none."""
    every = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = over_ranks(nn.Sequential(nn.BatchNorm1d(3)).double())
    found: dict[str, Any] = {}
    for name, own, counts in (
        ("both", slice(0, 5) if rank == 0 else slice(5, 7), True),
        ("one", slice(0, 7), rank == 0),
    ):
        x = every[own].clone().requires_grad_()
        take_part(model, counts)
        out = model(x)
        ((out * weight[own]).sum() * (1 if counts else 0)).backward()
        found[name] = out.detach(), x.grad, [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
    found["state"] = model.state_dict()
    return found


def small_work(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with started(patience.seconds()) as ranks:
        found["sum"] = ranks.sum(ranks.rank + 1, 0.5)
        found["gathered"] = ranks.gathered(torch.full((ranks.rank * 2, 2), ranks.rank))
        found["objects"] = ranks.objects({"rank": ranks.rank})
        found["norm"] = batch_norm(ranks.rank)
        for number, (argv, _) in enumerate(REFUSED):
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    status = main(["train", *argv])
                except SystemExit as exit:
                    status = exit.code  # type: ignore[assignment]
            found[f"refused {number}"] = status, out.getvalue(), err.getvalue()
    return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(2, "tests.distributed.test_ranks:small_work", tmp_path_factory.mktemp("ranks"))


def test_sums_and_rows_of_all_ranks(two: list[dict[str, Any]]) -> None:
    for found in two:
        assert found["sum"] == (3.0, 1.0)
        assert torch.equal(found["gathered"], torch.ones(2, 2))
        assert found["objects"] == [{"rank": 0}, {"rank": 1}]


def test_normalisation_is_by_the_rows_of_all_ranks(two: list[dict[str, Any]]) -> None:
    every = torch.randn(7, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.randn(7, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = nn.Sequential(nn.BatchNorm1d(3)).double()
    for name in ("both", "one"):
        x = every.clone().requires_grad_()
        out = model(x)
        (out * weight).sum().backward()
        outs, grads, parameters = zip(*(found["norm"][name] for found in two), strict=True)
        torch.testing.assert_close(torch.cat(outs) if name == "both" else outs[0], out.detach())
        torch.testing.assert_close(torch.cat(grads) if name == "both" else grads[0], x.grad)
        for got, p in zip(zip(*parameters, strict=True), model.parameters(), strict=True):
            torch.testing.assert_close(sum(got), p.grad)
        model.zero_grad()
    for found in two:
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found["norm"]["state"][name], value)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_bad_use_gets_one_line_from_rank_0(number: int, two: list[dict[str, Any]]) -> None:
    (status, out, err), (other_status, other_out, other_err) = (found[f"refused {number}"] for found in two)
    assert (status, other_status) == (2, 2)
    assert out == other_out == other_err == ""
    assert err.count("\n") == 1 and REFUSED[number][1] in err


def test_ranks_that_do_not_end_are_killed_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a second attempt would end in warnings of processes that still run, and of pipes that nobody closed."""
    monkeypatch.setattr(patience, "seconds", lambda quiet: 0.2)
    processes = ranks_support.begin(2, [sys.executable, "-c", "import time; time.sleep(60)"])
    with pytest.raises(subprocess.TimeoutExpired):
        ranks_support.ended(processes)
    assert [p.returncode for p in processes] == [-signal.SIGKILL] * 2
    assert all(p.stdout is not None and p.stdout.closed for p in processes)
