"""Ctrl-C in a compilation, by real signals: it ends at once, the same call works afterwards, and nothing is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslatorBase

import graphweave
from graphweave.core.counters import counters
from graphweave.core.errors import CompileError
from graphweave.core.settings import override
from graphweave.execute import build
from graphweave.frontends.dynamo import graph_compilation
from graphweave.runtime import compiler_runs, kernel_cache
from graphweave.runtime.toolchain import toolchain
from tests import patience

X = torch.randn(12, 3)
SRC, DST = torch.randint(12, (2, 40))


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _interrupts_arrive() -> Iterator[None]:
    """A shell starts what runs behind it with interrupts ignored, which processes inherit."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """An empty cache. After the test, no compiler runs, no file is half written, and no lock is held."""
    with override(cache_dir=tmp_path / "cache"):
        yield tmp_path / "cache"
    assert not compiler_runs._running
    assert [p.name for p in tmp_path.rglob("*") if p.name.startswith("build-") or p.suffix == ".part"] == []
    for lock in tmp_path.rglob("*.lock"):
        with FileLock(lock, timeout=0):
            pass


def once(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of `owner.name` is interrupted as it begins."""
    original, left = getattr(owner, name), [interrupt]

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, interrupted)


def neighbours(x: Tensor) -> Tensor:
    return torch.zeros_like(x).index_add(0, DST, torch.sigmoid(x[SRC]) * 3)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (InstructionTranslatorBase, "call_function"), (graph_compilation, "capture"), (graph_compilation, "compile"),
        (build, "check_schedule"), (build, "needs_of_halves"),
    ],
    ids=["trace", "import", "passes", "plan", "kernels under way"],
)  # fmt: skip
def test_the_same_call_works_after_an_interrupt(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    compiled, x = graphweave.compile(neighbours), X.clone().requires_grad_()
    once(owner, name, monkeypatch)
    before = counters()["eager_fallbacks"]
    with pytest.raises(KeyboardInterrupt):
        compiled(x)
    launches = counters()["kernel_launches"]
    y = compiled(x)
    y.sum().backward()
    torch.testing.assert_close(y, neighbours(X))
    assert counters()["kernel_launches"] > launches
    assert counters()["eager_fallbacks"] == before


def slow_compiler(tmp_path: Path) -> str:
    """A compiler that takes minutes to make a library, by a process of its own, as g++ has cc1plus."""
    script = tmp_path / "slow-g++"
    real = shutil.which(toolchain().command[0])
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo $$ >> {tmp_path}/started; sleep 600; exit 1;; esac\n'
        f'exec {real} "$@"\n'
    )
    script.chmod(0o700)
    return str(script)


def started(tmp_path: Path) -> list[int]:
    log = tmp_path / "started"
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def in_group(group: int) -> bool:
    """Whether a process of this group runs."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def when(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    def wait() -> None:
        while not condition():
            time.sleep(0.01)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def gone(tmp_path: Path) -> bool:
    """Whether the processes of all compilers that were started end soon."""
    end = time.monotonic() + patience.seconds(10)
    while any(map(in_group, started(tmp_path))) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(in_group, started(tmp_path)))


def test_an_interrupt_stops_the_compiler_of_a_library(folder: Path, tmp_path: Path) -> None:
    text, begun = 'extern "C" int f() { return 1; }\n', time.monotonic()
    with override(cxx=slow_compiler(tmp_path)):
        thread = when(lambda: len(started(tmp_path)) == 1, interrupt)
        with pytest.raises(KeyboardInterrupt):
            kernel_cache.library(text)
        thread.join()
    assert time.monotonic() - begun < 300
    assert started(tmp_path)
    assert gone(tmp_path)
    assert kernel_cache.library(text).f() == 1


def test_an_interrupt_while_the_compiler_is_started_stops_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process runs already, and its starter does not know it yet."""

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            interrupt()

    text = 'extern "C" int f() { return 2; }\n'
    with override(cxx=slow_compiler(tmp_path)):
        toolchain()
        monkeypatch.setattr(subprocess, "Popen", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            kernel_cache.library(text)
        monkeypatch.undo()
    assert gone(tmp_path)
    assert kernel_cache.library(text).f() == 2


def test_an_interrupt_stops_compilers_that_are_waited_for_and_starts_no_others(folder: Path, tmp_path: Path) -> None:
    texts = [f'extern "C" int f() {{ return {i}; }}\n' for i in range(9)]
    with override(cxx=slow_compiler(tmp_path)):
        toolchain()
        thread = when(lambda: len(started(tmp_path)) == 2, interrupt)
        work, pool = compiler_runs.Stoppable(), ThreadPoolExecutor(2)
        with pytest.raises(KeyboardInterrupt):
            for wait in [pool.submit(work.do, partial(kernel_cache.library, text)) for text in texts]:
                wait.result()
        work.stop()
        pool.shutdown()
        thread.join()
        count = len(started(tmp_path))
    assert gone(tmp_path)
    assert count == len(started(tmp_path)) == 2
    assert kernel_cache.library(texts[-1]).f() == 8


def test_runs_that_another_thread_stops_raise_a_compile_error(folder: Path, tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def compile_one() -> None:
        try:
            kernel_cache.library("int f();")
        except CompileError as error:
            raised.append(error)

    with override(cxx=slow_compiler(tmp_path)):
        toolchain()
        work, pool = compiler_runs.Stoppable(), ThreadPoolExecutor(1)
        pool.submit(work.do, compile_one)
        while not started(tmp_path):
            time.sleep(0.01)
        work.stop()
        pool.shutdown()
    assert [str(error) for error in raised] == ["the compilation was stopped. Call the function again to compile it."]


def test_an_interrupted_program_ends_though_a_thread_compiles(tmp_path: Path) -> None:
    """Ctrl-C in the user's own loop, while a thread waits for a compiler."""
    text = """
import torch, graphweave
index = torch.zeros(4, dtype=torch.long)
f = graphweave.compile(lambda x: torch.zeros_like(x).index_add(0, index, x[index] * 3), background=True)
while True:
    f(torch.ones(4, 2))
"""
    variables = {**os.environ, "GRAPHWEAVE_CACHE_DIR": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**variables, "GRAPHWEAVE_CXX": slow_compiler(tmp_path)},
    )  # fmt: skip
    end = time.monotonic() + patience.seconds()
    while not started(tmp_path) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = patience.outputs(process)
    # 1 if the thread has ended an import meanwhile, by which Python forgets that it was an interrupt
    assert process.returncode in (-signal.SIGINT, 130, 1), err
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert gone(tmp_path)


def test_a_program_that_ends_stops_what_is_compiled_early(tmp_path: Path) -> None:
    """Without a call of the compiled function: the library is begun when it is made."""
    text = f"""
import pathlib, time, torch, graphweave
graphweave.compile(torch.relu)
while not pathlib.Path({str(tmp_path / "started")!r}).exists():
    time.sleep(0.01)
print("ends", flush=True)
"""
    variables = {**os.environ, "GRAPHWEAVE_CACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    variables.pop("GRAPHWEAVE_TARGET", None)
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**variables, "GRAPHWEAVE_CXX": slow_compiler(tmp_path)},
    )  # fmt: skip
    out, err = patience.outputs(process)
    assert (process.returncode, out, err) == (0, "ends\n", "")
    assert gone(tmp_path)
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.name.startswith("build-") or p.suffix == ".so"]
