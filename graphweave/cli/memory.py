"""Peak memory of a training step, measured in a separate process (`runtime/peak_memory.py`).

The child process compiles and warms up on a small graph of the same feature width, and runs a few steps on the real
graph. The measured memory is that of the steps beyond data and model. It includes buffers that a runtime keeps for
reuse, but little of what compilation needs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from graphweave.core import process_memory
from graphweave.core.errors import GraphweaveError
from graphweave.examples.tasks import Data, start
from graphweave.examples.training import TrainingJob
from graphweave.runtime import peak_memory

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


def _measure(way: str, job: TrainingJob, data: Data) -> int | None:
    job.apply_threads()
    training = start(way, job, data)
    training.warm_up()

    def steps() -> None:
        for _ in range(_STEPS):
            training.step()

    return peak_memory.peak_extra_bytes(steps)


def _child(file: str) -> None:
    # The file holds pickled objects besides tensors. Loading it is safe, since the parent wrote it to a private folder.
    way, job, data = torch.load(file, weights_only=False)
    sys.stdout.write(f"{_measure(way, job, data)}\n")


if __name__ == "__main__":
    _child(sys.argv[1])
