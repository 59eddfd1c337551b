"""Seconds, bytes and bandwidth on one device: CUDA events and the allocator's counts, or the host's clock on a CPU."""

from __future__ import annotations

import gc
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from bench.probes import Probe, probed

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 25}
"""Size of each of the two tensors of a copy, by kind of device."""

RECORDED_STEPS = 5
"""A kernel's time is the median over this many steps."""


class Clock:
    """Times work on `device`. On a GPU these are seconds between two events of the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"

    def sync(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: Any, end: Any) -> float:
        if not self.cuda:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def turn(self, step: Callable[[], Any], steps: int) -> float:
        """Mean seconds of `steps` calls in a row. The garbage collector is off meanwhile."""
        self.sync()
        gc.disable()
        try:
            start = self.mark()
            for _ in range(steps):
                step()
            return self.between(start, self.mark()) / steps
        finally:
            gc.enable()

    def first(self, step: Callable[[], Any]) -> float:
        """Seconds of the host until the device is done."""
        self.sync()
        start = time.perf_counter()
        step()
        self.sync()
        return time.perf_counter() - start

    def busy(self, seconds: float) -> Any:
        """Keeps the device busy for about `seconds`, so that work queued meanwhile runs without gaps afterwards.

        Returns an event at the end of the busy time; None on a CPU.
        """
        if not self.cuda:
            return None
        torch.cuda._sleep(int(seconds * 2e9))  # cycles; no GPU's clock is far above 2 GHz
        return self.mark()

    # ------------------------------------------------------------ memory

    def allocated(self) -> int:
        """Bytes of tensors on the device, after garbage is collected. 0 on a CPU."""
        gc.collect()
        if not self.cuda:
            return 0
        self.sync()
        return torch.cuda.memory_allocated(self.device)

    def peak(self, step: Callable[[], Any]) -> int | None:
        """torch.cuda.max_memory_allocated of one call; None on a CPU."""
        if not self.cuda:
            return None
        gc.collect()
        self.sync()
        torch.cuda.reset_peak_memory_stats(self.device)
        step()
        self.sync()
        return torch.cuda.max_memory_allocated(self.device)

    def release(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def lost(self) -> bool:
        """Whether the device refuses all further work of this process, as after an access out of bounds."""
        if not self.cuda:
            return False
        try:
            torch.cuda.synchronize(self.device)
            return float(torch.ones(1, device=self.device).sum()) != 1.0
        except RuntimeError:
            return True

    # ------------------------------------------------------------ the device

    def copy_bandwidth(self, repeats: int = 10) -> dict[str, float]:
        """Bytes a second of `y.copy_(x)`, read and written, on tensors larger than caches: the median of `repeats`."""
        size = COPY_BYTES[self.device.type]
        if self.cuda:
            size = min(size, torch.cuda.mem_get_info(self.device)[0] // 8)
        x = torch.ones(size // 4, device=self.device)
        y = torch.empty_like(x)
        self.turn(lambda: y.copy_(x), 3)
        seconds = median(self.turn(lambda: y.copy_(x), 3) for _ in range(repeats))
        return {"bytes": float(2 * x.nbytes), "seconds": seconds, "bytes_per_second": 2 * x.nbytes / seconds}

    def warm_up(self, dtypes: Sequence[torch.dtype]) -> None:
        """Runs products in each dtype, forward and backward, so that libraries allocate their workspaces beforehand."""
        for dtype in dtypes:
            layer = torch.nn.Linear(64, 64, device=self.device, dtype=dtype)
            x = torch.ones(256, 64, device=self.device, dtype=dtype, requires_grad=True)
            torch.nn.functional.cross_entropy(layer(x @ x.t() @ x), torch.zeros_like(x[:, 0]).long()).backward()
        self.release()

    def describe(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: dict[str, Any] = {
                "device": str(self.device),
                "float32_matmul_precision": torch.get_float32_matmul_precision(),
                "allow_tf32_matmul": torch.backends.cuda.matmul.allow_tf32,
                "allow_tf32_cudnn": torch.backends.cudnn.allow_tf32,
                "cuda": torch.version.cuda,
            }
        if self.cuda:
            of = torch.cuda.get_device_properties(self.device)
            found.update(
                name=of.name, capability=f"{of.major}.{of.minor}", memory_bytes=of.total_memory,
                multiprocessors=of.multi_processor_count, l2_bytes=getattr(of, "L2_cache_size", None),
            )  # fmt: skip
        return found


def kernels(clock: Clock, step: Callable[[], Any]) -> dict[str, Any]:
    """Every fused kernel of a warm step: bytes counted from its loop IR (`ir/loop/traffic.py`) and median seconds.

    On a GPU the step is queued while the device is busy, so that the time between two events is that of the kernels
    between them. `host_bound`: the device ran out of queued work nevertheless (the host waited for it on the way), so
    that times include work of the host.
    """
    with probed(clock.mark, clock.between) as recorder:
        recorder.on = True
        step()  # counts the bytes, once for each kernel
        took = clock.first(step)
        host_bound = True
        for wait in (2 * took + 0.02, 8 * took + 0.1):
            for probe in recorder.probes.values():
                probe.marks.clear()
            held = [_held(clock, step, wait) for _ in range(RECORDED_STEPS)]
            host_bound = not all(held)
            if not host_bound:
                break
        clock.sync()
    found = [_entry(probe, RECORDED_STEPS) for probe in recorder.probes.values() if probe.kernel and probe.seconds]
    return {"host_bound": clock.cuda and host_bound, "kernels": found}


def _held(clock: Clock, step: Callable[[], Any], wait: float) -> bool:
    """Queues a step behind `wait` busy seconds. Returns whether the whole step was queued before these were over."""
    clock.sync()
    event = clock.busy(wait)
    step()
    return event is None or not event.query()


def _entry(probe: Probe, steps: int) -> dict[str, Any]:
    """Bytes, flops and seconds of a kernel in one step, over all of its calls."""
    calls = max(1, round(len(probe.seconds) / steps))
    traffic = probe.traffic
    return {
        "name": probe.name, "calls": calls, "seconds": median(probe.seconds) * calls,
        "gather_bytes": traffic.gather * calls, "compulsory_bytes": traffic.compulsory * calls,
        "flops": traffic.flops * calls,
    }  # fmt: skip


SMI = ("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem", "temperature.gpu",
       "power.draw", "power.limit", "pstate")  # fmt: skip


def nvidia_smi() -> dict[str, str] | None:
    """The report of nvidia-smi on the first GPU; None if the program is absent or fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    fields = answer.stdout.strip().splitlines()[0].split(", ") if answer.stdout.strip() else []
    return dict(zip(SMI, fields, strict=False)) or None
