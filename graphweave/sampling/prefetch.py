"""Batches are made by a thread ahead of the step that uses them."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from graphweave.core.errors import DataError

T = TypeVar("T")
_WAIT = 0.05
"""Seconds after which a thread whose queue is full looks whether it should stop."""


_running: dict[threading.Thread, threading.Event] = {}
"""The threads of iterations that nobody has left or finished."""


@atexit.register
def _stop_all() -> None:
    """An interpreter that ends kills threads in the middle of native code, which aborts the process."""
    running = dict(_running)
    for stop in running.values():
        stop.set()
    for thread in running:
        thread.join()


class Prefetcher(Generic[T]):
    """Iterates over `batches`, for example a PyG `NodeLoader`, in a thread that is at most `depth` batches ahead.

    The batches and their order are those of `batches`; the first one is made before the thread starts, so that a
    shuffle draws from PyTorch's generator at once. An error is raised where its batch would have come. The thread ends
    with the iteration, also where the loop is left early. Each iteration has a thread of its own.
    """

    def __init__(self, batches: Iterable[T], *, depth: int = 2) -> None:
        """DataError unless `depth` is a positive integer."""
        if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
            raise DataError(f"depth must be a positive integer (got {depth!r}). Pass the batches to hold ready.")
        self._batches, self._depth = batches, depth

    def __len__(self) -> int:
        """That of `batches`; TypeError if they have none."""
        return len(self._batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        batches = iter(self._batches)
        for first in batches:
            yield from self._ahead(batches, first)

    def _ahead(self, batches: Iterator[T], first: T) -> Iterator[T]:
        ready: queue.Queue[tuple[list[T], BaseException | None]] = queue.Queue(self._depth)
        stop = threading.Event()

        def put(item: tuple[list[T], BaseException | None]) -> None:
            while not stop.is_set():
                try:
                    return ready.put(item, timeout=_WAIT)
                except queue.Full:
                    continue

        def work() -> None:
            error: BaseException | None = None
            try:
                for batch in batches:
                    put(([batch], None))
                    if stop.is_set():
                        return
            except BaseException as found:  # raised again in the caller's thread
                error = found
            put(([], error))

        thread = threading.Thread(target=work, name="graphweave-prefetch", daemon=True)
        thread.start()
        _running[thread] = stop
        try:
            yield first
            while (item := ready.get())[0]:
                yield item[0].pop()
            if item[1] is not None:
                raise item[1]
        finally:
            stop.set()
            thread.join()
            _running.pop(thread, None)
