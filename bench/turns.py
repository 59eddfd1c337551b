"""Processes that take turns: each stays alive with the system that it measures, and runs only when it is asked.

So systems that cannot share a process (another PyTorch, another allocator, one that may be killed for memory) are
measured in the same minutes, but never two at once. A question and an answer are one line of JSON each, over pipes.
Only the standard library is imported, because a peer's virtual environment runs this file, too.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]

TURN_SECONDS = 0.05
"""A turn has as many steps as fill about this time, so that the process's waking up has little weight."""

SETTLE_SECONDS = 0.02
"""Pause between turns, in which the OpenMP threads of the previous process stop spinning."""


MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment of processes whose memory is measured: malloc returns larger blocks to the system at once, so that the
high-water mark is the memory in use."""

ANSWERS = "BENCH_ANSWERS"
"""Environment variable with the pipe for a process's answers. Libraries may print to standard output."""


class PlayerLost(Exception):
    """The process ended, ran out of memory or time, or answered with an error. The message says which."""


class Answering(Protocol):
    """A peer that is asked: a process of its own (`Player`), or one in this process (`bench.runner.Here`)."""

    def ask(self, do: str, **arguments: Any) -> Any: ...

    def close(self) -> None: ...


class Player:
    """A process that runs `serve`. `ask(do, **arguments)` runs one of its handlers and returns the result."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, timeout: float, memory: int | None = None
    ) -> None:
        """`timeout`: seconds that one answer may take. `memory`: bytes of private memory (RLIMIT_DATA), None for all.

        Beyond this limit an allocation fails in that process, before the system kills a process of its own choice.
        """
        self._timeout = timeout
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 (closed by `close`)
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            list(command), cwd=ROOT, env={**os.environ, **environment, ANSWERS: str(writing)}, pass_fds=(writing,),
            stdin=subprocess.PIPE, stdout=self._errors, stderr=self._errors, text=True, bufsize=1,
            start_new_session=True,
        )  # fmt: skip
        os.close(writing)
        self._answers = os.fdopen(reading)
        if memory is not None:
            resource.prlimit(self._process.pid, resource.RLIMIT_DATA, (memory, memory))

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise PlayerLost("ended before, after an answer that it did not give")
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        except BrokenPipeError:
            raise PlayerLost(self._last_words()) from None
        ready, _, _ = select.select([self._answers], [], [], self._timeout)
        if not ready:
            self.close()
            raise PlayerLost(f"no answer to {do!r} within {self._timeout:.0f} s")
        line = self._answers.readline()
        if not line:
            raise PlayerLost(self._last_words())
        answer = json.loads(line)
        if "error" in answer:
            raise PlayerLost(answer["error"])
        return answer["value"]

    def _last_words(self) -> str:
        code = self._process.wait(timeout=30)
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or [""])[-1][:300]
        return f"killed by signal {-code}" if code < 0 else f"exit {code}: {last}"

    def close(self) -> None:
        """Ends the process and its children. It may have ended already."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for stream in (self._process.stdin, self._answers, self._errors):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def serve(handlers: Mapping[str, Callable[..., Any]]) -> None:
    """Answers questions until the other end closes. A handler's exception is an answer and does not end the process."""
    pipe = int(os.environ.pop(ANSWERS))
    os.set_inheritable(pipe, False)  # so that the pipe closes with this process, which the reader waits for
    answers = os.fdopen(pipe, "w", buffering=1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            reply = {"value": handlers[question.pop("do")](**question)}
        except Exception as problem:  # a system that fails is a result of a benchmark
            reply = {"error": f"{type(problem).__name__}: {problem}"[:300]}
        answers.write(json.dumps(reply) + "\n")


def steps_timer(step: Callable[[], Any]) -> Callable[[int], float]:
    """The handler "turn": mean seconds of `steps` calls. The garbage collector runs before and is off meanwhile."""

    def turn(steps: int) -> float:
        gc.collect()
        gc.disable()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        seconds = (time.perf_counter() - start) / steps
        gc.enable()
        return seconds

    return turn


def take_turns(
    players: Mapping[str, Answering], *, repeats: int, warmup: int = 2, question: str = "turn",
    known_steps: Mapping[str, int] | None = None, seconds: float = TURN_SECONDS, settle: float = SETTLE_SECONDS,
    **arguments: Any,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Asks every player for a turn, round after round. Returns the seconds of a step: median, q1, q3, repeats, min.

    The warm-up determines how many steps fill a turn of `seconds`, unless `known_steps` has the number; without a
    warm-up it is one. `settle` is the pause between turns in seconds.
    A player that fails on the way keeps no numbers: its entry has the reason as `status`. The others go on.
    """
    steps = {name: (known_steps or {}).get(name, 1) for name in players}
    times: dict[str, list[float]] = {name: [] for name in players}
    lost: dict[str, str] = {}

    def one(name: str, count: int) -> float:
        time.sleep(settle)
        return players[name].ask(question, steps=count, **arguments)

    for round_ in range(warmup + repeats):
        for name in players:
            if name in lost:
                continue
            try:
                taken = one(name, steps[name])
            except PlayerLost as problem:
                lost[name] = str(problem)
                continue
            if round_ < warmup:
                steps[name] = max(1, int(seconds / max(taken, 1e-6)))
            else:
                times[name].append(taken)
    return {
        name: {"status": lost[name]} if name in lost else {"status": "ok", **summary(each), "steps": steps[name]}
        for name, each in times.items()
    }


def summary(taken: Sequence[float]) -> dict[str, Any]:
    q1, _, q3 = quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else (taken[0],) * 3
    return {"median": median(taken), "q1": q1, "q3": q3, "min": min(taken), "repeats": len(taken)}


def _status_kib(field: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {field}"
    return int(found[1])


def peak_extra_bytes(call: Callable[[], Any]) -> int:
    """Peak resident bytes while `call` runs, beyond those resident when it starts.

    Linux only: writing 5 to /proc/self/clear_refs sets the high-water mark VmHWM back to the resident size. Run it in
    a fresh process: buffers an allocator still holds from earlier work would hide what the call takes.
    """
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_kib("VmRSS")
    call()
    return max(_status_kib("VmHWM") - before, 0) * 1024
