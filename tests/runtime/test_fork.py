"""A forked process works: kernels, formats and PyTorch's own large operations, after its parent has used them all."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import graphweave
from graphweave.core import locks
from graphweave.runtime import formats, kernel_cache, threads
from graphweave.runtime.index import Index
from tests import patience
from tests.runtime.test_threads import MEET, meet
from tests.support import features, random_graph

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),  # newer Pythons warn that a child may hang
]

NODES = 20_000
EDGES = 120_000  # enough for every parallel region


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        h = self.linear(x).relu()
        return torch.zeros_like(h).index_add_(0, index[1], h.index_select(0, index[0])).log_softmax(1)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _succeeds_in_a_child(work: Callable[[], bool], quiet: float = 60.0) -> bool:
    """Whether `work` is true in a forked process; False too if it does not end in time."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    end = time.monotonic() + patience.seconds(quiet)
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def _close(out: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(out, wanted, rtol=1e-4, atol=1e-5)


def test_compiled_calls_in_a_child() -> None:
    """The child calls on the graph of the parent, whose formats are cached, and on a new one."""
    layer = Layer()
    compiled = graphweave.compile(layer)
    x, index = features(NODES, 8), random_graph(NODES, NODES, EDGES)
    with torch.no_grad():
        out, wanted = compiled(x, index), layer(x, index)
        assert _close(out, wanted)

        def again() -> bool:
            other = random_graph(NODES, NODES, EDGES, seed=1)
            return torch.equal(compiled(x, index), out) and _close(compiled(x, other), layer(x, other))

        assert _succeeds_in_a_child(again)


def test_a_child_takes_the_records_of_indices_while_threads_of_its_parent_hold_them() -> None:
    """Native code has a lock of its own for records of index tensors, which a child makes anew."""
    index = random_graph(50, 50, 200)[1].contiguous()
    wanted = formats.csr(Index(index, 50)).indptr.tolist()
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            formats.csr(Index(index, 50))
            formats.csr(Index(index.view(-1, 2)[:, 0], 50))

    threads_of_parent = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads_of_parent:
        thread.start()
    try:
        for _ in range(20):
            assert _succeeds_in_a_child(
                lambda: formats.csr(Index(index.view(200), 51)).indptr.tolist() == [*wanted, wanted[-1]], quiet=10
            )
    finally:
        stop.set()
        for thread in threads_of_parent:
            thread.join()


def test_a_child_runs_on_one_thread_whatever_it_asks_for() -> None:
    """PyTorch's own operations too, unless the child sets their threads itself."""
    compiled = graphweave.compile(Layer())
    x, index = features(NODES, 8), random_graph(NODES, NODES, EDGES)
    with torch.no_grad():
        compiled(x, index)

        def again() -> bool:
            alone = torch.get_num_threads() == 1
            torch.randn(2_000_000).exp().sum()
            torch.set_num_threads(2)
            compiled(x, index)
            return alone

        assert _succeeds_in_a_child(again)
    assert torch.get_num_threads() == 2


def test_a_child_waits_for_no_thread_that_it_does_not_have() -> None:
    """It has its parent's library and runtime, but loops of its kernels run on the one thread that it has."""
    kernel = kernel_cache.load(MEET, "meet")
    assert meet(kernel, 2, threads.num_threads()) == [0, 1]

    def again() -> bool:
        with pytest.raises(MemoryError):  # the second chunk begins when the first has waited in vain
            meet(kernel, 2, threads.num_threads(2), seconds=0)
        return True

    assert _succeeds_in_a_child(again)


def test_a_child_compiles() -> None:
    with torch.no_grad():
        graphweave.compile(Layer())(features(NODES, 8), random_graph(NODES, NODES, EDGES))
    layer = Layer().double()
    x, index = features(300, 8, torch.float64), random_graph(300, 300, 2000)

    def first() -> bool:
        compiled = graphweave.compile(lambda x, index: layer(x, index) * 3.0)
        with torch.no_grad():
            return torch.allclose(compiled(x, index), layer(x, index) * 3.0)

    assert _succeeds_in_a_child(first)


def test_locks_that_another_thread_held_are_open_in_a_child() -> None:
    lock, again = locks.lock(), locks.reentrant_lock()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, again:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    try:
        assert _succeeds_in_a_child(lambda: lock.acquire(blocking=False) and again.acquire(blocking=False))
        assert not lock.acquire(blocking=False)
    finally:
        done.set()
        holder.join()


class _Embedded(Dataset):
    """Items that a compiled model computes in the worker."""

    def __init__(self, model: Callable[[Tensor, Tensor], Tensor], x: Tensor, index: Tensor) -> None:
        self.model, self.x, self.index = model, x, index

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        with torch.no_grad():
            return self.model(self.x * (i + 1), self.index)[:5]


def test_a_dataset_that_calls_a_compiled_model() -> None:
    layer = Layer()
    compiled = graphweave.compile(layer)
    x, index = features(NODES, 8), random_graph(NODES, NODES, EDGES)
    with torch.no_grad():
        compiled(x, index)
        dataset, limit = _Embedded(compiled, x, index), patience.seconds()
        loader = DataLoader(dataset, num_workers=2, batch_size=2, multiprocessing_context="fork", timeout=limit)
        batches = torch.cat(list(loader))
        wanted = torch.stack([layer(x * (i + 1), index)[:5] for i in range(4)])
    assert _close(batches, wanted)
