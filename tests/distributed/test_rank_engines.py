"""What starts ranks: the Slurm script, with commands of Slurm that do what theirs do on one machine, and Ray Train."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphweave.distributed import snapshots
from tests import patience
from tests.cli.test_cli_tasks import rings
from tests.ranks_support import ROOT, environment

SCRIPT, RAY = ROOT / "examples" / "train_slurm.sh", ROOT / "examples" / "train_ray.py"
SRUN = """#!/bin/bash
# Starts two tasks of one step.
[[ $1 == --kill-on-bad-exit=1 ]] && shift
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 "$@" &
  tasks[i]=$!
done
wait "${tasks[0]}" && wait "${tasks[1]}"
"""


def arguments(folder: Path, epochs: int = 2) -> list[str]:
    np.savez(folder / "rings.npz", **rings())
    return ["--task", "graph", "--data", str(folder / "rings.npz"), "--batch", "8", "--hidden", "8", "--no-compile",
            "--epochs", str(epochs)]  # fmt: skip


def test_the_slurm_script_is_one_that_bash_can_read() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


@pytest.mark.slow
def test_the_slurm_script_starts_ranks_and_goes_on(tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/bash\necho 127.0.0.1\n")):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    given = environment(
        PATH=f"{commands}{os.pathsep}{os.environ['PATH']}", PYTHON=sys.executable, CHECKPOINT=str(tmp_path / "kept"),
        SLURM_JOB_ID="17", SLURM_JOB_NAME="test", SLURM_JOB_NODELIST="node[1-2]", SLURM_PROCID="0", SLURM_NTASKS="2",
        SLURM_CPUS_PER_TASK="1",
    )  # fmt: skip
    for epochs, last in ((2, "epoch 2/2"), (3, "epoch 3/3")):
        done = subprocess.run(
            ["bash", str(SCRIPT), *arguments(tmp_path, epochs)], env=given, cwd=ROOT, capture_output=True, text=True,
            timeout=patience.seconds(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("2 ranks") == 1 and done.stdout.count(last) == 1
    assert "epoch 2/3" not in done.stdout  # the second job went on from the first one's checkpoint


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed (pip install 'ray[train]')")
def test_ray_train_starts_ranks_and_goes_on(tmp_path: Path) -> None:
    for epochs in (2, 3):
        start = [sys.executable, str(RAY), "--workers", "2", "--checkpoint", str(tmp_path / "kept"), "--"]
        done = subprocess.run(
            [*start, *arguments(tmp_path, epochs)], env=environment(), cwd=ROOT, capture_output=True, text=True,
            timeout=patience.seconds(),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        content = snapshots.read(tmp_path / "kept", snapshots.numbers(tmp_path / "kept")[-1])
        assert content["ranks"] == 2 and len(content["ways"]["eager"]["history"]["loss"]) == epochs
        assert (done.stdout + done.stderr).count(f"epoch {epochs}/{epochs}") == 1
