"""Rates of this machine, measured by a short probe and kept on disk."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch

from graphweave.core.kernel_cost import Rates
from graphweave.tuning import store
from graphweave.tuning.machine import caches, identity

_PROBE_BYTES = 32 << 20
"""Least bytes of an array of the probe. Arrays are also twice as large as the last cache, so that it cannot hold
them."""


@lru_cache
def rates(device: str = "cpu") -> Rates:
    """The rates of this machine at the current number of threads, or of a CUDA device. The first call on a machine
    measures them, in about a tenth of a second; later ones find them on disk."""
    where = device if device == "cpu" else torch.cuda.get_device_name(device)
    key = {"what": "rates", "machine": identity(), "device": where}
    found = store.load(key)
    if found is None:
        nbytes = max(_PROBE_BYTES, 2 * caches().last)
        found = {
            "bandwidth": triad_bandwidth(nbytes, repeats=3, device=device),
            "products": gemm_rate(1024, repeats=5, device=device),
        }
        store.save(key, found)
    return Rates(found["bandwidth"], found["products"])


def triad_bandwidth(nbytes: int = 256 << 20, repeats: int = 7, device: str = "cpu") -> float:
    """Best bytes per second of `a = b + 3 c` over three float32 arrays of `nbytes`, on the current number of threads.

    The traffic of kernels is compared with this bound. It counts 12 bytes an element, even if the processor reads `a`
    before it writes.
    """
    size = nbytes // 4
    a, b, c = (torch.ones(size, device=device) for _ in range(3))
    return 12 * size / _best(lambda: torch.add(b, c, alpha=3.0, out=a), repeats, device)


def gemm_rate(size: int = 2048, repeats: int = 5, device: str = "cpu") -> float:
    """Best flops per second of the vendor library on square float32 matrices, at the current thread count."""
    a, b, c = (torch.ones(size, size, device=device) for _ in range(3))
    return 2 * size**3 / _best(lambda: torch.mm(a, b, out=c), repeats, device)


def _best(call: Callable[[], object], repeats: int, device: str) -> float:
    """The shortest time of `repeats` calls, in seconds."""
    wait = (lambda: None) if device == "cpu" else torch.cuda.synchronize
    times = []
    for _ in range(repeats):
        wait()
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return min(times)
