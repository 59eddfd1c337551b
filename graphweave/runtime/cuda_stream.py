"""The few calls of torch.cuda that are needed to time, capture and replay a program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

T = TypeVar("T")


def wait_for_gpu() -> None:
    """Wait for the current CUDA device, if the program uses one and is not capturing work of it."""
    if torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        torch.cuda.synchronize()


class GraphDevice(Protocol):
    """A device that captures work and replays it. Tests use one for the CPU."""

    kind: str
    """The type of the torch.device on which tensors lie."""

    def stream(self) -> int | None:
        """The current stream; None while it is being captured, since nothing can be replayed then."""

    def aside(self, work: Callable[[], T]) -> T:
        """Run `work()` on the stream of captures, after earlier and before later work of the current stream."""

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """`work` as a CUDA graph: a function that replays it on the stream that is current at the time, and the results
        of `work`, which each replay overwrites."""


@dataclass(frozen=True, slots=True)
class _Lane:
    side: torch.cuda.Stream
    pool: Any


_lanes: dict[tuple[int, int], _Lane] = {}


class CudaDevice:
    """See `GraphDevice`. Graphs that are replayed on one stream, one after the other, share a pool of memory.

    Only the results of a graph stay in the pool after its replay. They are alive as tensors, so no later capture gets
    their memory, and they are read on the same stream before another graph is replayed. Warm-up and capture run on one
    stream, so that libraries have their workspaces before the capture. Captures use the mode "thread_local", so that
    work of data loaders and other threads does not break them.
    """

    kind = "cuda"

    def __init__(self, device: str) -> None:
        index = torch.device(device).index
        self._device = torch.cuda.current_device() if index is None else index

    def stream(self) -> int | None:
        with torch.cuda.device(self._device):
            if torch.cuda.is_current_stream_capturing():
                return None
            return torch.cuda.current_stream().cuda_stream

    def aside(self, work: Callable[[], T]) -> T:
        with torch.cuda.device(self._device):
            current, side = torch.cuda.current_stream(), self._lane().side
            side.wait_stream(current)
            try:
                with torch.cuda.stream(side):
                    return work()
            finally:
                current.wait_stream(side)

    def capture(self, work: Callable[[], T]) -> tuple[Callable[[], None], T]:
        with torch.cuda.device(self._device):
            lane = self._lane()
            graph = torch.cuda.CUDAGraph()
            try:
                # The outer context restores the stream if the end of a broken capture raises.
                with (
                    torch.cuda.stream(lane.side),
                    torch.cuda.graph(graph, lane.pool, lane.side, capture_error_mode="thread_local"),
                ):
                    results = work()
            except BaseException:
                _lanes.pop(self._key(), None)  # the stream and the pool may be unusable
                raise
        return graph.replay, results

    def _lane(self) -> _Lane:
        key = self._key()
        if key not in _lanes:
            _lanes[key] = _Lane(torch.cuda.Stream(), torch.cuda.graph_pool_handle())
        return _lanes[key]

    def _key(self) -> tuple[int, int]:
        return self._device, torch.cuda.current_stream().cuda_stream
