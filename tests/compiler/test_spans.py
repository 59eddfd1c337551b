"""Where the seconds of a first call go."""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import graphweave
from graphweave.core import spans
from graphweave.core.settings import override
from graphweave.core.spans import FirstCall, Span, at_once, span, time_text, timed
from graphweave.runtime import kernel_cache, toolchain

needs_cxx = pytest.mark.skipif(toolchain.available() is None, reason="no C++ compiler")


def summed(x: torch.Tensor, src: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, dst, torch.relu(x[src]))


def arguments() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(10, 4, requires_grad=True), torch.arange(10), torch.arange(10).flip(0)


def test_own_seconds_leave_out_what_lies_within() -> None:
    with timed() as call, span(spans.PLAN) as outer:
        time.sleep(0.02)
        with span(spans.PRINT) as inner:
            time.sleep(0.03)
    assert call.spans == [inner, outer]
    assert inner.own == inner.seconds >= 0.03
    assert outer.own == pytest.approx(outer.seconds - inner.seconds) and outer.own >= 0.02
    assert sum(s.own for s in call.spans) == pytest.approx(outer.seconds) and outer.seconds <= call.seconds


def test_spans_are_kept_by_timed_calls_alone_and_survive_an_error() -> None:
    with span(spans.PLAN) as before:
        pass
    with timed() as call, pytest.raises(ValueError, match="bad"), span(spans.PLAN) as failed:
        raise ValueError("bad")
    with span(spans.PLAN):
        pass
    assert call.spans == [failed] and before.seconds >= 0


def test_work_in_another_thread_is_not_time_of_the_call() -> None:
    def compile_kernel() -> None:
        with span(spans.COMPILER, "kernel a"):
            time.sleep(0.02)

    with timed() as call:
        worker = threading.Thread(target=compile_kernel)
        worker.start()
        worker.join()
    (run,) = call.spans
    assert run.thread != call.thread
    text = time_text(call)
    assert "the C++ compiler ran 1 times" in text and "up to 1 at once; the longest: kernel a" in text
    assert spans.COMPILER + " " not in text.replace("the C++ compiler ran", "")


def test_how_many_ran_at_once() -> None:
    def ran(begun: float, ended: float) -> Span:
        return Span(spans.COMPILER, "", 0, begun, ended)

    assert at_once([]) == (0, 0.0)
    assert at_once([ran(0, 2), ran(1, 3), ran(5, 6)]) == (2, 4.0)
    assert at_once([ran(0, 1), ran(1, 2)]) == (1, 2.0)  # one after the other


def test_the_text_adds_up_to_the_call() -> None:
    traced, merged = Span(spans.DYNAMO, "", 1, 0.0, 3.0, inner=1.0), Span(spans.PASSES, "merge", 1, 1.0, 2.0)
    call = FirstCall(1, [traced, merged])
    text = time_text(replace(call, seconds=4.0))
    assert "== time of the first call: 4.000 s" in text
    assert re.search(r"Dynamo +2.000 s +50 %", text) and re.search(r"merge +1.000 s", text)
    assert re.search(r"and the rest +1.000 s +25 %", text)


@needs_cxx
def test_explain_says_where_the_seconds_went() -> None:
    told = graphweave.explain(summed, *arguments())
    text = told.text("time")
    for stage in (spans.DYNAMO, spans.AOT_AUTOGRAD, spans.IMPORT, spans.PASSES, spans.PLAN, spans.PRINT, spans.WAIT):
        assert f"-- {stage}" in text, stage
    assert "rewrite" in {s.what for s in told.time.spans if s.stage == spans.PASSES}
    assert told.text("all").count("== time of the first call") == 1
    assert sum(s.own for s in told.time.spans if s.thread == told.time.thread) <= told.time.seconds
    assert "== time" not in told.text()


@needs_cxx
def test_each_run_of_the_compiler_is_told(tmp_path: Path) -> None:
    with override(cache_dir=tmp_path), timed() as call:
        kernel_cache.library('extern "C" int seven() { return 7; }')
    own = [s for s in call.spans if s.thread == call.thread]  # others may compile a backward of an earlier test
    runs = [s for s in own if s.stage == spans.COMPILER]
    loads = [s for s in own if s.stage == spans.LOAD]
    assert len(loads) == 1 and runs and runs[-1].what.startswith("kernel ")
    assert loads[0].own <= loads[0].seconds - runs[-1].seconds + 1e-9


@needs_cxx
def test_the_log_tells_the_first_call_and_no_later_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "graphweave.time")
    compiled = graphweave.compile(summed)
    for _ in range(2):
        compiled(*arguments())
    (said,) = [r.getMessage() for r in caplog.records if r.name == "graphweave.time"]
    assert said.startswith("summed\n== time of the first call") and spans.DYNAMO in said
