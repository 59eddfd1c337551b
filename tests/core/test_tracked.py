"""The cache of what is computed from tensors, under threads."""

from __future__ import annotations

import sys
import threading

import torch

from graphweave.runtime import tracked


def cache_of(bound: int = 1 << 30) -> tracked.TrackedCache[object]:
    return tracked.TrackedCache(lambda: bound)


def put(cache: tracked.TrackedCache[object], t: torch.Tensor, *made: torch.Tensor) -> tracked.Key:
    key = ("x", tracked.place(t))
    cache.put(key, (t,), tracked.versions_of((t,)) or (), made, made)
    return key


def test_entries_of_dead_tensors_go_soon_though_two_caches_hold_them() -> None:
    one, two, kept = cache_of(), cache_of(), torch.zeros(8)
    key = put(one, kept)
    for _ in range(50):
        batch = torch.zeros(1000)
        put(one, batch)
        put(two, batch, batch.detach())  # shares the storage of what it was computed from
    assert one.stats()["entries"] <= 4
    assert two.stats()["entries"] <= 4
    assert one.get(key, (kept,)) == ()


def test_what_a_living_entry_made_lives() -> None:
    cache, index = cache_of(), torch.zeros(8)
    made = torch.ones(4)
    first, second = put(cache, index, made), put(cache, made)
    del made
    for _ in range(20):
        put(cache, torch.zeros(3))
    found = cache.get(first, (index,))
    assert isinstance(found, tuple)
    assert cache.get(second, found) == ()
    del found, index
    for _ in range(20):
        put(cache, torch.zeros(3))
    assert cache.stats()["entries"] <= 2


def test_no_count_of_references_outlives_its_entries() -> None:
    cache, tensors = cache_of(200), [torch.zeros(8) for _ in range(20)]
    for t in tensors:
        put(cache, t, t[1:])
        put(cache, t)
    assert cache.stats()["bytes"] <= 200
    tracked.forget(tensors[-1])
    cache.clear()
    assert not cache._held


def test_looking_up_while_another_thread_sweeps() -> None:
    """A lookup moves its entry to the end, which must not happen while another thread iterates over the entries."""
    cache: tracked.TrackedCache[int] = tracked.TrackedCache(lambda: 1 << 30)
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
            cache._to_search.clear()
            cache.put(keys[i % 200], (t,), tracked.versions_of((t,)) or (), i, ())
    except RuntimeError as error:
        failures.append(error)
    finally:
        done.set()
        reader.join()
        sys.setswitchinterval(interval)
    assert not failures
