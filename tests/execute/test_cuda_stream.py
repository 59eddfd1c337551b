"""Which calls of torch.cuda a capture makes, in which order, and on which stream; the calls themselves are fakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from graphweave.runtime import cuda_stream
from graphweave.runtime.cuda_stream import CudaDevice


class FakeStream:
    def __init__(self, cuda: Cuda, number: int) -> None:
        self._cuda, self.cuda_stream = cuda, number

    def wait_stream(self, other: FakeStream) -> None:
        self._cuda.did.append(f"{self.cuda_stream} waits for {other.cuda_stream}")


class Cuda:
    """The names of torch.cuda in use. As in PyTorch, a capture whose end raises leaves its stream current."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self._made = 0
        self.now = FakeStream(self, 0)
        self.capturing = self.breaks = False

    def Stream(self) -> FakeStream:
        self._made += 1
        return FakeStream(self, self._made)

    def current_stream(self) -> FakeStream:
        return self.now

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def graph_pool_handle(self) -> str:
        return f"pool {self._made}"

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        assert index == 2
        yield

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    class CUDAGraph:
        def replay(self) -> None:
            pass

    @contextmanager
    def graph(self, graph: object, pool: str, stream: FakeStream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        before, self.now = self.now, stream
        self.did.append(f"capture on {stream.cuda_stream} in {pool}")
        try:
            yield
        finally:
            if self.breaks:
                self.now = FakeStream(self, 99)
                raise RuntimeError("capture invalidated")
            self.now = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    for name in (
        "Stream", "current_stream", "is_current_stream_capturing", "graph_pool_handle", "device", "stream", "CUDAGraph",
        "graph",
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(cuda_stream, "_lanes", {})
    return made


def test_work_aside_is_between_what_was_and_what_comes(cuda: Cuda) -> None:
    device = CudaDevice("cuda:2")
    assert device.aside(lambda: cuda.now.cuda_stream) == 1
    assert cuda.now.cuda_stream == 0 and device.stream() == 0
    with pytest.raises(IndexError):
        device.aside(lambda: [][0])
    assert cuda.did == ["1 waits for 0", "0 waits for 1"] * 2


def test_captures_share_the_stream_and_pool_of_what_calls_them(cuda: Cuda) -> None:
    first, second = CudaDevice("cuda:2"), CudaDevice("cuda:2")
    first.aside(lambda: None)
    cuda.did.clear()
    replay, result = first.capture(lambda: cuda.now.cuda_stream)
    assert result == 1 and cuda.now.cuda_stream == 0
    assert getattr(replay, "__name__", "") == "replay"
    second.capture(lambda: None)
    with cuda.stream(FakeStream(cuda, 7)):
        second.capture(lambda: None)
    assert cuda.did == ["capture on 1 in pool 1", "capture on 1 in pool 1", "capture on 2 in pool 2"]


def test_after_a_broken_capture_the_stream_is_the_callers_and_the_next_has_its_own(cuda: Cuda) -> None:
    device = CudaDevice("cuda:2")
    cuda.breaks = True

    def work() -> Any:
        raise ValueError("synchronised")

    with pytest.raises(RuntimeError, match="invalidated") as raised:
        device.capture(work)
    assert isinstance(raised.value.__context__, ValueError), "the cause is told"
    assert cuda.now.cuda_stream == 0
    cuda.breaks = False
    device.capture(lambda: None)
    assert cuda.did == ["capture on 1 in pool 1", "capture on 2 in pool 2"]


def test_a_stream_that_somebody_captures_is_left_alone(cuda: Cuda) -> None:
    cuda.capturing = True
    assert CudaDevice("cuda:2").stream() is None
