"""Peak memory of a training step, measured in a separate process.

The child process compiles and warms up on a small graph of the same feature width, and returns freed memory and unused
buffers to the system. It takes its resident size as the base, resets the high-water mark (by writing 5 to
/proc/self/clear_refs), and runs a few steps on the real graph. Peak minus base is the memory of the steps beyond data
and model. It includes buffers that a runtime keeps for reuse, but little of what compilation needs. This works only on
Linux.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from graphweave.cli.tasks import Data, start
from graphweave.cli.training import TrainingJob
from graphweave.core import process_memory
from graphweave.core.errors import GraphweaveError
from graphweave.runtime import arena

_STEPS = 3
"""Number of measured training steps."""


def peak_extra_bytes(way: str, job: TrainingJob, data: Data) -> int | None:
    """The largest number of bytes above the base; None if the system cannot tell."""
    if not process_memory.is_told():
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "training.pt"
        torch.save((way, job, data), file)
        done = subprocess.run(
            [sys.executable, "-m", "graphweave.cli.memory", str(file)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GraphweaveError(f"measuring the memory of {way} failed: {reason}. Leave out --compare, or report it.")
    return int(done.stdout.strip().splitlines()[-1])


def _measure(way: str, job: TrainingJob, data: Data) -> int:
    job.apply_threads()
    training = start(way, job, data)
    training.warm_up()
    gc.collect()
    arena.trim()
    ctypes.CDLL(None).malloc_trim(0)
    base = process_memory.begin_peak()
    for _ in range(_STEPS):
        training.step()
    return max(process_memory.peak_bytes() - base, 0)


def _child(file: str) -> None:
    # The file holds pickled objects besides tensors. Loading it is safe, since the parent wrote it to a private folder.
    way, job, data = torch.load(file, weights_only=False)
    sys.stdout.write(f"{_measure(way, job, data)}\n")


if __name__ == "__main__":
    _child(sys.argv[1])
