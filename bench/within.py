"""A command that is kept within a number of bytes, together with all processes that it starts. Linux only."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.common import MEMORY_LIMIT
from bench.turns import ROOT

EVERY = 0.1
"""Seconds between two looks at the memory."""

_FIELDS = re.compile(r"^(PPid|RssAnon|RssShmem):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit code of a command, its seconds, the most bytes that its processes held at once, the number of those that
    were killed for memory, and the last line of what it wrote to its standard error."""

    code: int
    seconds: float
    peak: int
    killed: int
    last: str


def _processes() -> dict[int, tuple[int, int]]:
    """Process -> its parent, and the bytes that are its own (resident and not of a file)."""
    found = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                numbers = dict(_FIELDS.findall(Path(entry.path, "status").read_text()))
                own = 1024 * (int(numbers.get("RssAnon", 0)) + int(numbers.get("RssShmem", 0)))
                found[int(entry.name)] = int(numbers["PPid"]), own
    return found


def family(root: int) -> dict[int, int]:
    """A process and its descendants -> the bytes of each."""
    processes = _processes()
    members = {root} & processes.keys()
    while more := {pid for pid, (parent, _) in processes.items() if parent in members} - members:
        members |= more
    return {pid: processes[pid][1] for pid in members}


def run_within(command: Sequence[str], limit: int, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a command in the repository's root. When its processes hold more than `limit` bytes, the largest of those
    that it started is killed, or the command itself if it started none.

    Benchmarks read the limit, too, and give it to each of their peers, so that an allocation beyond it fails.
    """
    start, peak, killed, victim = time.monotonic(), 0, 0, 0
    added = {**os.environ, **(environment or {}), MEMORY_LIMIT: str(limit)}
    with tempfile.TemporaryFile(mode="w+", errors="replace") as errors:
        child = subprocess.Popen(command, cwd=ROOT, env=added, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while child.poll() is None:
                held = family(child.pid)
                peak = max(peak, sum(held.values()))
                if sum(held.values()) > limit and not held.get(victim):  # the memory of the last one is free again
                    started = {pid: own for pid, own in held.items() if pid != child.pid}
                    victim = max(started, key=lambda pid: started[pid], default=child.pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(victim, signal.SIGKILL)
                    killed += 1
                time.sleep(EVERY)
        finally:
            for pid in family(child.pid):  # on an interruption; otherwise it has ended
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            child.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or [""])[-1][:200]
    return Ended(child.returncode, time.monotonic() - start, peak, killed, last)
