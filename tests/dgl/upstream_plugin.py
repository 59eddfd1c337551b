"""The plugin of pytest with which `tests.dgl.upstream` runs DGL's tests: `import dgl` gets `graphweave.dgl`.

It leaves out the cases of `tests.dgl.upstream_cases`, limits the time of each, and writes what became of every case to
the file named by DGL_SUITE_RESULTS.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import graphweave.dgl
import graphweave.dgl.utils
from tests.dgl import upstream_backend
from tests.dgl.upstream_cases import group_of, reason_to_exclude

IMPORTED_INTERNALS = ("dgl.ndarray", "dgl.graph_index", "dgl.partition", "dgl._ffi", "dgl._ffi.streams")
"""Modules that files of tests import although most of their cases do not use them: empty here."""

SECONDS = 120
"""A case that takes longer has failed."""


class _Empty(ModuleType):
    """A module in which every name is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


_results: dict[str, dict[str, str]] = {}


def pytest_configure(config: Any) -> None:
    graphweave.dgl.install()
    sys.modules["dgl.backend"] = upstream_backend
    graphweave.dgl.backend = upstream_backend
    for name in ("dgl.nn", *IMPORTED_INTERNALS):
        try:
            import_module(name)
        except ModuleNotFoundError:
            sys.modules[name] = _Empty(name)
            if name.count(".") == 1:
                setattr(graphweave.dgl, name.removeprefix("dgl."), sys.modules[name])
    graphweave.dgl.utils.toindex = None  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    kept: list[Any] = []
    left: list[Any] = []
    for item in items:
        reason = reason_to_exclude(item.nodeid)
        (kept if reason is None else left).append(item)
        if reason is not None:
            _note(item.nodeid, "excluded", reason)
    items[:] = kept
    config.hook.pytest_deselected(items=left)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the case took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or report.outcome != "passed":
        kind = {"skipped": "excluded"}.get(report.outcome, report.outcome)
        _note(report.nodeid, kind, _why(report))


def pytest_collectreport(report: Any) -> None:
    if report.outcome == "failed":
        reason = reason_to_exclude(report.nodeid)
        _note(report.nodeid, "failed" if reason is None else "excluded", reason or _why(report))


def pytest_sessionfinish(session: Any) -> None:
    Path(os.environ["DGL_SUITE_RESULTS"]).write_text(json.dumps(_results, indent=1))


def _note(nodeid: str, kind: str, why: str) -> None:
    _results[nodeid] = {"group": group_of(nodeid), "outcome": kind, "why": why}


def _why(report: Any) -> str:
    if report.outcome == "skipped":
        return f"skipped by the test itself: {report.longrepr[2].removeprefix('Skipped: ')}"
    if report.outcome == "passed":
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(report.longrepr).strip().splitlines()[-1] if crash is None else crash.message.splitlines()[0]
