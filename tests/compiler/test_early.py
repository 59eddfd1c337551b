"""What is compiled, and what is left out, before the first kernel of a process."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo import funcname_cache, guards, output_graph

import graphweave
from graphweave.core.counters import counters
from graphweave.core.garbage import collected_seldom
from graphweave.core.settings import from_environment, override
from graphweave.frontends.dynamo import backend
from graphweave.frontends.tracing import torch_logs
from graphweave.runtime import early, headers, kernel_cache, native_library, toolchain
from tests import fresh_process, patience

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")


def begun() -> bool:
    """Begins early work and waits for its thread. Returns whether there was one."""
    thread = early.begin()
    if thread is not None:
        thread.join(patience.seconds())
    return thread is not None


@needs_cxx
def test_the_library_is_compiled_once_and_the_header_when_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_library, "_library", native_library._library.__wrapped__)  # not yet loaded
    due: list[bool] = []
    monkeypatch.setattr(headers, "is_due", lambda tools, folder: bool(due))
    with override(cache_dir=tmp_path):
        kernel_cache.forget()
        assert begun() and not begun()
        tools, folder = toolchain.toolchain(), kernel_cache.directory()
        text = "#include <graphweave/pointwise.h>"
        assert "-include" not in headers.flags_for(text, tools, folder)
        builds = counters()["kernel_builds"]
        kernel_cache.forget()
        kernel_cache.library(native_library.text())
        due.append(True)
        assert begun()
        assert ("clang" in tools.version) or "-include" in headers.flags_for(text, tools, folder)
        assert counters()["kernel_builds"] == builds, "the library was compiled again"


def test_without_a_compiler_nothing_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with override(cache_dir=tmp_path, cxx="no-such-compiler"):
        assert begun() and not begun()
    assert not recwarn.list and not list(tmp_path.rglob("*.so"))


def test_the_compiler_starts_with_the_first_compiled_function_of_a_new_machine(tmp_path: Path) -> None:
    """It says that it cannot, as there is none, which shows that it was sought before anything was traced."""
    text = "import graphweave, threading, torch\ngraphweave.compile(torch.relu)\n" + (
        "[t.join() for t in threading.enumerate() if t.name == 'graphweave-early']"
    )
    switches = {"GRAPHWEAVE_CACHE_DIR": str(tmp_path), "GRAPHWEAVE_CXX": "no-such-compiler"}
    environment = {**os.environ, **switches, "GRAPHWEAVE_LOGS": "runtime", "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("GRAPHWEAVE_TARGET", None)
    done = fresh_process.run(text, environment)
    assert done.returncode == 0, done.stderr
    assert ("nothing was compiled early" in done.stderr) == (not early._may_have_gpu())


@pytest.mark.parametrize("reason", ["none", "compiled before", "gpu", "triton", "bad setting"])
def test_what_keeps_the_compiler_from_starting_at_once(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "_compile_missing", lambda: None)
    monkeypatch.setattr(early, "_may_have_gpu", lambda: reason == "gpu")
    if reason == "bad setting":
        monkeypatch.setattr(early, "settings", lambda: from_environment({"GRAPHWEAVE_TARGET": "cobol"}))
    with override(cache_dir=tmp_path, target="triton" if reason == "triton" else "auto"):
        if reason == "compiled before":
            headers.folder_of(kernel_cache.directory()).mkdir(parents=True)
        assert (early.begin_on_new_machine() is not None) == (reason == "none")


@needs_cxx
@pytest.mark.parametrize("logged", [False, True])
def test_names_of_functions_are_sought_only_where_they_are_logged(
    logged: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch reads and tokenizes each file that it traces to name functions in a log."""
    monkeypatch.setattr(funcname_cache, "cache", {})
    if logged:
        caplog.set_level(logging.DEBUG, output_graph.trace_call_log.name)
    graphweave.compile(lambda x: torch.nn.functional.relu(x) + 1)(torch.ones(3))
    assert bool(funcname_cache.cache) == logged


@needs_cxx
@pytest.mark.parametrize("logged", [False, True])
def test_guards_are_timed_only_where_that_is_logged(
    logged: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """PyTorch empties the processor's caches for it, after each compilation."""
    timed: list[float] = []
    measure = torch_logs._time_guards
    monkeypatch.setattr(torch_logs, "_time_guards", lambda *args: timed.append(measure(*args)) or timed[-1])
    if logged:
        caplog.set_level(logging.DEBUG, guards.guards_log.name)
    graphweave.compile(lambda x: torch.nn.functional.relu(x) + 1)(torch.ones(3))
    torch._dynamo.reset()
    before = len(timed)
    assert bool(before) == logged
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(3))
    assert len(timed) > before


@needs_cxx
def test_inductor_is_not_imported_for_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._inductor.debug", raising=False)
    x = torch.ones(3, requires_grad=True)
    graphweave.compile(lambda x: torch.nn.functional.relu(x) + 1)(x).sum().backward()
    assert x.grad is not None and "torch._inductor.debug" not in sys.modules


@pytest.fixture
def thresholds() -> Iterator[None]:
    """The collector's thresholds are what they were after the test."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@needs_cxx
@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize("own", [(700, 10, 10), (10**6, 7, 10**5), (0, 10, 10)])
def test_a_compilation_collects_garbage_seldom(own: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The thresholds are raised, never lowered, and are the process's own again afterwards; 0 stands for never."""
    during: list[tuple[int, int, int]] = []
    monkeypatch.setattr(backend, "begin_early", lambda inputs: during.append(gc.get_threshold()))
    gc.set_threshold(*own)
    graphweave.compile(lambda x: torch.nn.functional.relu(x) + 1)(torch.ones(3))
    assert gc.get_threshold() == own
    assert during == [own if own[0] == 0 else (max(own[0], 50_000), max(own[1], 1_000), max(own[2], 1_000))]


@pytest.mark.usefixtures("thresholds")
def test_blocks_that_overlap_bring_back_the_thresholds_of_the_process() -> None:
    """The block of one thread may end within that of another."""
    gc.set_threshold(701, 11, 12)
    first, second = collected_seldom(), collected_seldom()
    with first:
        second.__enter__()
    assert gc.get_threshold() == (50_000, 1_000, 1_000)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (701, 11, 12)
