"""What is compiled, and what is left out, before the first kernel of a process."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch._dynamo import funcname_cache, guards, output_graph

import graphweave
from graphweave.core.counters import counters
from graphweave.core.settings import override
from graphweave.frontends.dynamo import torch_logs
from graphweave.runtime import early, headers, kernel_cache, sources, toolchain

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")


def begun() -> bool:
    """Begins early work and waits for its thread. Returns whether there was one."""
    thread = early.begin()
    if thread is not None:
        thread.join(120)
    return thread is not None


@needs_cxx
def test_what_every_kernel_needs_is_compiled_once(tmp_path: Path) -> None:
    with override(cache_dir=tmp_path):
        kernel_cache.forget()
        assert begun() and not begun()
        tools = toolchain.toolchain()
        flags = headers.flags_for("#include <graphweave/pointwise.h>", tools, kernel_cache.directory())
        assert ("clang" in tools.version) or "-include" in flags, "the header was not precompiled"
        builds = counters()["kernel_builds"]
        kernel_cache.forget()
        for name in ("formats.cpp", "checksum.cpp"):
            kernel_cache.library(sources.source(name))
        assert counters()["kernel_builds"] == builds, "a library was compiled again"


def test_without_a_compiler_nothing_is_said(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    with override(cache_dir=tmp_path, cxx="no-such-compiler"):
        assert begun()
    assert not recwarn.list and not list(tmp_path.rglob("*.so"))


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
