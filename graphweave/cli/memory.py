"""Peak memory of a training step, measured in a process of its own.

The child compiles and warms up on a small graph of the same feature width, gives freed memory back to the system,
takes its resident size as the base, resets the high-water mark (Linux: 5 written to /proc/self/clear_refs), and then
runs a few steps on the real graph. Peak minus base holds everything the steps need beyond data and model, buffers
that a runtime keeps for reuse included, and leaves out most of what compilation needs. Linux only.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from graphweave.cli.runner import Job, Runner
from graphweave.core.errors import GraphweaveError
from graphweave.data import NodeData, rmat

_WARM_NODES = 64
_WARM_EDGES = 512
_STEPS = 3
_TENSORS = ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")


def peak_extra_bytes(way: str, job: Job, data: NodeData) -> int | None:
    """Bytes above the base at the worst moment; None where the system cannot tell."""
    if not sys.platform.startswith("linux"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.pt"
        torch.save({key: getattr(data, key) for key in _TENSORS}, file)
        arguments = json.dumps([way, asdict(job), str(file), data.num_classes, data.name])
        done = subprocess.run(
            [sys.executable, "-m", "graphweave.cli.memory", arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise GraphweaveError(f"measuring the memory of {way} failed: {reason}")
    return int(done.stdout.strip().splitlines()[-1])


def _warm_data(data: NodeData) -> NodeData:
    """A small graph with the features, classes and dtypes of `data`, every node in every split."""
    rows = torch.arange(_WARM_NODES) % data.num_nodes
    every = torch.ones(_WARM_NODES, dtype=torch.bool)
    y = torch.arange(_WARM_NODES) % data.num_classes
    edges = rmat(_WARM_NODES, _WARM_EDGES)
    return NodeData(data.x[rows], edges, y, every, every, every, data.num_classes, data.name)


def _status(key: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise GraphweaveError(f"/proc/self/status has no {key}.")


def _measure(way: str, job: Job, data: NodeData) -> int:
    job.apply_threads()
    runner = Runner(way, job, data)
    runner.use(_warm_data(data))
    for _ in range(2):
        runner.step()
    runner.use(data)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    base = _status("VmRSS")
    for _ in range(_STEPS):
        runner.step()
    return max(_status("VmHWM") - base, 0)


def _child(arguments: str) -> None:
    way, job, file, classes, name = json.loads(arguments)
    tensors: dict[str, Tensor] = torch.load(file, weights_only=True)
    data = NodeData(**tensors, num_classes=classes, name=name)
    sys.stdout.write(f"{_measure(way, Job(**job), data)}\n")


if __name__ == "__main__":
    _child(sys.argv[1])
