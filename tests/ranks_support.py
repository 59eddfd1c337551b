"""Runs a function in several processes that are ranks of one job, and returns what each of them returned."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests import patience

ROOT = Path(__file__).parent.parent


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """The environment of a process of a job, on one thread, without a rank."""
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"} | more


def begin(size: int, command: list[str], folder: Path = ROOT, **more: str) -> list[subprocess.Popen[str]]:
    """`size` processes of a command in a folder, with ranks."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
    return [
        subprocess.Popen(
            command, env=environment(**where, RANK=str(rank), LOCAL_RANK=str(rank), **more), cwd=folder, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )
        for rank in range(size)
    ]  # fmt: skip


def ended(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Status, standard output and standard error of each. If one does not end in time, all are killed, and
    subprocess.TimeoutExpired is raised."""
    found = []
    try:
        for process in processes:
            out, err = patience.outputs(process)
            found.append((process.returncode, out, err))
    finally:
        for process in processes[len(found) :]:
            process.kill()
            process.communicate()  # waits for its end, and closes the pipes
    return found


def on_ranks(size: int, function: str, argument: Any, **more: str) -> list[Any]:
    """The results of "module:name"(argument) on each of `size` ranks. Both are saved by torch.

    Ranks whose message gloo has lost (`tests/rank_pool.py`) are started once more.
    """
    try:
        return _on_ranks(size, function, argument, **more)
    except subprocess.TimeoutExpired:
        return _on_ranks(size, function, argument, **more)


def _on_ranks(size: int, function: str, argument: Any, **more: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(argument, Path(folder) / "argument")
        command = [sys.executable, "-m", "tests.ranks_support", function, folder]
        found = ended(begin(size, command, **more))
        said = "\n".join(f"rank {rank}: status {status}, {err[-3000:]}" for rank, (status, _, err) in enumerate(found))
        assert all(status == 0 for status, _, _ in found), said
        return [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(size)]


def _run(function: str, folder: str) -> None:
    module, _, name = function.partition(":")
    argument = torch.load(Path(folder) / "argument", weights_only=False)
    result = getattr(importlib.import_module(module), name)(argument)
    torch.save(result, Path(folder) / os.environ["RANK"])


if __name__ == "__main__":
    _run(*sys.argv[1:])
