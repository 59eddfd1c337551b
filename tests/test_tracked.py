"""The cache of what is computed from tensors, under threads."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

from graphweave.runtime import tracked


def test_looking_up_while_another_thread_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup moves its entry to the end, which must not happen while another thread iterates over the entries."""
    cache: tracked.TrackedCache[int] = tracked.TrackedCache(lambda: 1 << 30)
    monkeypatch.setattr(tracked, "SWEEP_BYTES", 0)
    held = [torch.zeros(8) for _ in range(200)]
    keys = [("x", tracked.place(t)) for t in held]
    failures: list[BaseException] = []
    done = threading.Event()

    def look_up() -> None:
        while not done.is_set():
            for key, t in zip(keys, held, strict=True):
                cache.get(key, (t,))

    reader = threading.Thread(target=look_up)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader.start()
        for i in range(2000):
            t = held[i % 200]
            cache._sweep_at = 0
            cache.put(keys[i % 200], (t,), tracked.versions_of((t,)) or (), i, ())
    except RuntimeError as error:
        failures.append(error)
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert not failures
