"""Kills ranks of a training at random moments, goes on from the checkpoint, and compares with a training left alone.

    python -m tests.distributed.rank_stress --kills 20

The job has three ranks. A moment may be anywhere: while modules are imported, while ranks meet, in a step, while a
checkpoint is written. AssertionError if ranks do not end in time, if more than one of them tells of the loss, if a
checkpoint is lost or cannot be read, or if the losses are not those of the training that was left alone.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from graphweave.distributed import snapshots
from graphweave.distributed.watch import LOST
from tests import patience
from tests.cli.test_cli_tasks import choices
from tests.ranks_support import begin, ended

SIZE, EPOCHS, RANK = 3, 100_000, 30.0
"""Ranks, epochs (never reached), and seconds that ranks wait for each other on a quiet machine."""


def command(data: Path, folder: Path, epochs: int, *more: str) -> list[str]:
    """A training that keeps a checkpoint in every second step."""
    kept = "--resume" if snapshots.numbers(folder) else "--checkpoint"
    return [
        sys.executable, "-m", "graphweave", "train", "--task", "recommend", "--data", str(data), "--batch", "64",
        "--hidden", "8", "--dropout", "0", "--no-compile", "--epochs", str(epochs), "--timeout",
        str(patience.seconds(RANK)), "--threads", "1", kept, str(folder), "--checkpoint-every", "2", *more,
    ]  # fmt: skip


def history(folder: Path) -> list[float]:
    """The losses of the epochs that the last checkpoint has; none without one."""
    known = snapshots.numbers(folder)
    return snapshots.read(folder, known[-1])["ways"]["eager"]["history"]["loss"] if known else []


def lost_lines(found: list[tuple[int, str, str]]) -> list[str]:
    return [line for _, _, err in found for line in err.splitlines() if "was lost" in line]


def kill(data: Path, folder: Path, victim: int, after: float, sent: int = signal.SIGKILL, met: bool = True) -> str:
    """Start ranks, kill one `after` seconds, counted from when they have met or else from the start, and say what
    happened."""
    before = len(history(folder))
    limit = patience.seconds(RANK)
    processes = begin(SIZE, command(data, folder, EPOCHS, "--timeout", str(limit)))
    if met:
        assert processes[0].stdout is not None
        assert "3 ranks" in processes[0].stdout.readline()
    time.sleep(after)
    processes[victim].send_signal(sent)
    start = time.monotonic()
    survivors = [p for rank, p in enumerate(processes) if rank != victim]
    found = ended(survivors)
    seconds = time.monotonic() - start
    processes[victim].kill()
    processes[victim].communicate()
    lines = lost_lines(found)
    if met:
        assert seconds < limit, f"ranks ended {seconds:.0f} s after the kill"
        assert all(status == LOST for status, _, _ in found) and len(lines) == 1, found
    else:  # ranks that do not meet cannot know who is missing; each says that after the timeout
        assert all(status in (2, LOST) for status, _, _ in found) and len(lines) <= 1, found
    assert all(f"rank {victim} of {SIZE}" in line for line in lines), found
    now = len(history(folder))
    assert now >= before, f"a checkpoint was lost: {before} epochs, then {now}"
    when = "they met" if met else "the start"
    return f"rank {victim}, {after:.2f} s after {when}: ended within {seconds:.2f} s, {now} epochs kept"


def stress(kills: int, seed: int, longest: float) -> list[str]:
    """`kills` kills, each within `longest` seconds of the start."""
    draw = random.Random(seed)
    said = []
    with tempfile.TemporaryDirectory() as scratch:
        data, folder = Path(scratch) / "choices.npz", Path(scratch) / "kept"
        np.savez(data, **choices())
        for _ in range(kills):
            met = draw.random() < 0.8
            said.append(kill(data, folder, draw.randrange(SIZE), draw.uniform(0, longest), met=met))
            print(said[-1], flush=True)
        losses = history(folder)
        if losses:
            alone = Path(scratch) / "alone"
            found = ended(begin(SIZE, command(data, alone, len(losses))))
            assert all(status == 0 for status, _, _ in found), found
            # PyTorch orders gradients anew after the first step of a process, so sums differ in the last bits.
            np.testing.assert_allclose(losses, history(alone), rtol=1e-3)
            said.append(f"{len(losses)} epochs of interrupted ranks have the losses of ranks left alone")
            print(said[-1], flush=True)
    return said


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=float, default=5, help="seconds of the latest moment (default: %(default)s)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    told = stress(asked.kills, asked.seed, asked.longest)
    if asked.out is not None:
        asked.out.write_text(json.dumps(told, indent=1) + "\n")
