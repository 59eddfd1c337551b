"""Functions in processes of their own, the machine, records and tables of a run."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.turns import ROOT


def seconds_of(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def machine() -> dict[str, Any]:
    """Processor, thread count and versions, without which a measurement cannot be interpreted."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text().splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        parts = ("model name", "cpu family", "model", "stepping")
        model = ", ".join(f"{part} {fields[part]}" for part in parts if part in fields)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "transparent_hugepage": _first_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "torch_geometric", "graphweave", "numpy")},
        "compiler": _compiler(),
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _first_line(path: str) -> str | None:
    file = Path(path)
    return file.read_text().splitlines()[0] if file.exists() else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _compiler() -> str | None:
    command = os.environ.get("CXX", "g++")
    try:
        answer = subprocess.run([*command.split(), "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.splitlines()[0]


def _commit() -> str | None:
    """The commit of this repository, and "-dirty" if code was changed since; None outside of a checkout.

    Records and documents are written while benchmarks run, so a change of them says nothing of what is measured.
    """
    try:
        number = _git("rev-parse", "--short=10", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", ".", *map(":(exclude){}".format, _WRITTEN)
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{number}-dirty" if changed else number


_WRITTEN = ("bench/results", "docs")


def _git(*command: str) -> str:
    return subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def in_fresh_process(
    call: Callable[..., Any],
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float | None = None,
    memory: int | None = None,
    **given: Any,
) -> Any:
    """What `call(**given)`, a function of a benchmark's module, returns in a new process; both pass through JSON.

    A child that fails, is killed, or takes more than `timeout` seconds or `memory` bytes (private, RLIMIT_DATA) gives
    {"status": reason} instead: a benchmark reports a crash, it does not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = subprocess.Popen(
            _calling(call, given, answer), cwd=ROOT, env={**os.environ, **(environment or {})}, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        if memory is not None:
            resource.prlimit(child.pid, resource.RLIMIT_DATA, (memory, memory))
        try:
            _, errors = child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return {"status": f"no answer within {timeout:.0f} s"}
        if answer.exists():
            return json.loads(answer.read_text())
    last = errors.strip().splitlines()[-1:] or [""]
    code = child.returncode
    return {"status": f"killed by signal {-code}" if code < 0 else f"exit {code}: {last[0]}"[:300]}


def _calling(call: Callable[..., Any], given: Mapping[str, Any], answer: Path) -> list[str]:
    where = sys.modules[call.__module__].__spec__
    assert where is not None, "the module has no name by which another process could import it"
    return [sys.executable, "-m", "bench.worker", "call", where.name, call.__name__, json.dumps(given), str(answer)]


def on_ranks(
    call: Callable[..., Any], size: int, *, threads: int, timeout: float, apart: bool = False, **given: Any
) -> list[Any]:
    """What `call(**given)` returns in each of `size` new processes, which have the variables of ranks, unless `apart`.

    RuntimeError if one of them fails. BENCH_CORE is the number of the process in any case.
    """
    port = 20_000 + os.getpid() % 20_000
    common = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}
    if not apart:
        common |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with tempfile.TemporaryDirectory() as folder:
        answers = [Path(folder) / f"{rank}.json" for rank in range(size)]
        processes = []
        for rank, answer in enumerate(answers):
            own = {"BENCH_CORE": str(rank)} if apart else {"BENCH_CORE": str(rank), "RANK": str(rank)}
            environment = {**os.environ, **common, **own}
            processes.append(subprocess.Popen(_calling(call, given, answer), cwd=ROOT, env=environment))
        codes = [process.wait(timeout) for process in processes]
        if any(codes):
            raise RuntimeError(f"ranks ended with status {codes}")
        return [json.loads(answer.read_text()) for answer in answers]


MEMORY_LIMIT = "BENCH_MEMORY_LIMIT"
"""Environment variable with the bytes that a process of a benchmark may take at most."""


def available_memory(share: float = 0.85) -> int:
    """Bytes that a benchmark's process may take: this share of what the system has available, at most MEMORY_LIMIT."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None, "/proc/meminfo has no MemAvailable"
    available = int(int(found[1]) * 1024 * share)
    return min(available, int(os.environ.get(MEMORY_LIMIT, available)))


def ratio_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def save(path: Path | None, record: Mapping[str, Any]) -> None:
    """Writes `record` to `path`, or to FOLDER/<benchmark>.json if `path` is a folder that exists."""
    if path is None:
        return
    if path.is_dir():
        path = path / f"{record['benchmark']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), **record}, indent=1) + "\n")
