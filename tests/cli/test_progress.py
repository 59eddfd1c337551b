"""The progress line that a terminal shows during a long compilation."""

from __future__ import annotations

import io
import sys
import time

import pytest
import torch

import graphweave
from graphweave.core.settings import override
from graphweave.frontends.dynamo import progress
from tests import patience


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, error: io.StringIO, *, seconds: float, after: float = 0.0) -> str:
    """The text written to `error` during work of so many seconds, if a line appears after `after` seconds."""
    monkeypatch.setattr(progress, "AFTER", after)
    monkeypatch.setattr(sys, "stderr", error)
    with progress.shown("compiling Net"), progress.shown("compiling a graph"):
        time.sleep(seconds)
    return error.getvalue()


def test_a_long_compilation_is_told_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = written(monkeypatch, Terminal(), seconds=patience.seconds(0.3))
    assert "graphweave: compiling Net" in text and "compiling a graph" not in text
    assert text.endswith("\x1b[2K"), "the line is still there"


def test_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(monkeypatch, Terminal(), seconds=0.0, after=patience.seconds(3.0)).strip() == ""


def test_nothing_is_written_to_a_pipe_or_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(monkeypatch, io.StringIO(), seconds=0.1) == ""
    with override(progress=False):
        assert written(monkeypatch, Terminal(), seconds=0.1) == ""


def test_a_first_call_is_told_and_a_second_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "AFTER", 0.0)

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    compiled = graphweave.compile(doubled)
    for said in (True, False):
        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        compiled(torch.ones(3))
        assert ("compiling doubled" in terminal.getvalue()) == said
