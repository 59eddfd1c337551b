"""Batches of a prefetching thread are those of the loader; errors reach the caller, and the thread ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch_geometric.loader import NodeLoader

from graphweave.core.errors import DataError
from graphweave.sampling import NeighborSampler, Prefetcher
from tests import patience
from tests.sampling.test_sampling_pyg import assert_same, homogeneous


def threads() -> int:
    return sum(t.name == "graphweave-prefetch" for t in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 3])
def test_batches_are_those_of_the_loader(depth: int) -> None:
    data = homogeneous()
    loader = NodeLoader(data, NeighborSampler(data, [4, 3]), input_nodes=torch.arange(100), batch_size=16)
    ahead = Prefetcher(loader, depth=depth)
    assert len(ahead) == len(loader) == 7
    for _ in range(2):
        for one, other in zip(loader, ahead, strict=True):
            assert_same(one, other)
    assert threads() == 0


def test_a_shuffle_draws_at_once() -> None:
    loader = torch.utils.data.DataLoader(list(range(50)), shuffle=True)  # type: ignore[arg-type]
    orders = []
    for batches in (loader, Prefetcher(loader)):
        torch.manual_seed(3)
        running = iter(batches)
        order = [int(next(running))]
        torch.rand(1)
        orders.append(order + [int(b) for b in running])
    assert orders[0] == orders[1]


def test_an_error_comes_where_its_batch_would() -> None:
    def batches() -> Iterator[int]:
        yield from range(3)
        raise ValueError("cut short")

    seen = []
    with pytest.raises(ValueError, match="cut short"):
        for batch in Prefetcher(batches()):
            seen.append(batch)
    assert seen == [0, 1, 2] and threads() == 0


def test_the_thread_ends_where_the_loop_is_left_and_never_runs_far_ahead() -> None:
    made = []

    def batches() -> Iterator[int]:
        for number in range(1_000):
            made.append(number)
            yield number

    running = iter(Prefetcher(batches(), depth=2))
    assert next(running) == 0 and threads() == 1
    running.close()  # type: ignore[attr-defined]
    assert threads() == 0 and len(made) <= 5


def test_a_process_ends_in_the_middle_of_an_iteration() -> None:
    """An interpreter kills its threads, which aborts the process if one comes back from native code just then."""
    program = """
import torch
from graphweave.sampling import Prefetcher
running = iter(Prefetcher((torch.rand(300_000).sort() for _ in range(1_000)), depth=500))
next(running)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=patience.seconds())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("depth", [0, -1, 1.5, True])
def test_a_bad_depth_is_refused(depth: object) -> None:
    with pytest.raises(DataError, match="depth must be a positive integer"):
        Prefetcher([], depth=depth)  # type: ignore[arg-type]
