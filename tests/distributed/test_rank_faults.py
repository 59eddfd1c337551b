"""A rank that is lost ends the job with one message that names it, and loses no checkpoint; torchrun restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from graphweave.cli.main import main
from graphweave.distributed import snapshots
from graphweave.distributed.watch import LOST
from tests import patience
from tests.cli.test_cli_tasks import choices
from tests.distributed.rank_stress import command, history, kill, lost_lines, stress
from tests.ranks_support import begin, ended, environment


@pytest.fixture
def data(tmp_path: Path) -> Path:
    np.savez(tmp_path / "choices.npz", **choices())
    return tmp_path / "choices.npz"


def wait_for_checkpoint(folder: Path, above: int = 0) -> None:
    end = time.monotonic() + patience.seconds()
    while time.monotonic() < end:
        if max(snapshots.numbers(folder), default=0) > above:
            return
        time.sleep(0.05)
    raise AssertionError("no checkpoint was written")


@pytest.mark.slow  # a message that gloo loses (tests/rank_pool.py) would look like a lost rank
def test_a_killed_rank_is_named_once_and_its_work_goes_on_elsewhere(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    processes = begin(2, command(data, folder, 100_000))
    wait_for_checkpoint(folder)
    processes[1].kill()
    (status, out, err), _ = ended(processes)
    assert status == LOST and "2 ranks" in out
    assert err.count("\n") == 1 and "rank 1 of 2 (" in err and "was lost: it closed its connection" in err
    assert f"process {processes[1].pid})" in err
    done = len(history(folder))
    assert main([*command(data, folder, done + 1)[3:]]) == 0  # in this process alone
    assert len(history(folder)) == done + 1


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "sent"), [(0, signal.SIGKILL), (1, signal.SIGKILL), (2, signal.SIGSTOP)])
def test_of_three_ranks_one_tells_of_the_loss(victim: int, sent: int, data: Path, tmp_path: Path) -> None:
    kill(data, tmp_path / "kept", victim, 1.0, sent)


@pytest.mark.slow
def test_an_error_of_one_rank_is_the_only_message(data: Path, tmp_path: Path) -> None:
    """The folder becomes a file while they train, which only rank 0 meets."""
    folder = tmp_path / "kept"
    processes = begin(3, command(data, folder, 100_000))
    wait_for_checkpoint(folder)
    os.rename(folder, tmp_path / "away")
    folder.write_bytes(b"")
    found = ended(processes)
    said = "".join(err for _, _, err in found)
    assert said.count("cannot be written") == 1 and not lost_lines(found), found


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [0, 1])
def test_torchrun_says_which_rank_failed_and_starts_again(restarts: int, data: Path, tmp_path: Path) -> None:
    folder, epochs = tmp_path / "kept", 100_000 if restarts == 0 else 40
    training = command(data, folder, epochs)[1:]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    job = subprocess.Popen(
        [*start, "--max-restarts", str(restarts), *training], env=environment(), cwd=Path(__file__).parents[2],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    wait_for_checkpoint(folder)
    ranks = [pid for pid in children(job.pid) if b"graphweave" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(ranks[1], signal.SIGKILL)
    ((status, out, err),) = ended([job])
    assert "was lost" not in err  # torchrun says it
    if restarts:
        assert status == 0 and len(history(folder)) == epochs and out.count("epoch 1/") == 1
    else:
        assert status == 1 and "Signal 9 (SIGKILL) received" in err and "rank      : 1 (local_rank: 1)" in err


def children(pid: int) -> list[int]:
    """Process numbers of the children of a process, in the order of their starts."""
    return sorted(
        int(n) for task in Path(f"/proc/{pid}/task").iterdir() for n in (task / "children").read_text().split()
    )


@pytest.mark.slow
def test_ranks_killed_at_random_moments_lose_nothing() -> None:
    assert len(stress(kills=4, seed=1, longest=4.0)) >= 4
