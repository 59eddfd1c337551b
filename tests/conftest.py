"""Shared by every test: golden texts, and hypothesis settings that repeat from run to run."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

import graphweave
from graphweave.core.settings import override
from graphweave.frontends.tracing import torch_logs
from graphweave.runtime.triton_kernel import interpreted
from tests import margins, slow_cases, warning_filters

GOLDEN = Path(__file__).parent / "golden"

# derandomize: a change is judged on the same programs each time. No deadline: the first compilation takes seconds.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

# After each compilation PyTorch flushes the processor's caches, to log how long guards take: 0.02 to 0.15 s, which is
# nothing that a test looks at. graphweave.compile leaves it out by itself, other doors do not.
torch_logs._time_guards = lambda manager, scope, times: 0.0

# Collecting garbage after each compilation takes 20 ms, in thousands of compilations.
torch._dynamo.config.run_gc_after_compile = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew instead of comparing")
    parser.addoption("--margins", action="store_true", help="list tests whose errors came close to their tolerance")


_shares = pytest.StashKey[dict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    warning_filters.add(config)
    # Tests look at what the compiler does, so a compilation that an earlier run has stored must not take its place.
    # Those of stored compilations turn them on, and so does a sweep over other tests (docs/design/stored.md).
    if "GRAPHWEAVE_STORE_COMPILATIONS" not in os.environ:
        os.environ["GRAPHWEAVE_STORE_COMPILATIONS"] = "0"  # for processes that tests start
        apart = override(store_compilations=False)
        apart.__enter__()
        config.add_cleanup(lambda: apart.__exit__(None, None, None))
    if interpreted():
        interpreter_products = importlib.import_module("tests.interpreter_products")
        interpreter_products.install()
    if config.getoption("--margins"):
        watching = margins.watched()
        config.stash[_shares] = watching.__enter__()
        config.add_cleanup(lambda: watching.__exit__(None, None, None))


def pytest_report_header() -> list[str]:
    return warning_filters.header()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker hands what it noted to the process that reports."""
    gc.unfreeze()  # otherwise extensions report leaks at the end of the process
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["margins"] = session.config.stash.get(_shares, {})


@pytest.hookimpl(tryfirst=True)  # runs before cases are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    left_out = slow_cases.listed(interpreted=interpreted())
    for item in items:
        if item.nodeid in left_out:
            item.add_marker(pytest.mark.slow)


def pytest_collectstart() -> None:
    """Importing test files and making tests creates objects that stay, and hardly any garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Objects that tests import live as long as the process. Collecting garbage among them took a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash.get(_shares, {}).update(getattr(node, "workeroutput", {}).get("margins", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--margins"):
        terminalreporter.section("share of the tolerance that the largest error took")
        for test, share in margins.listed(config.stash[_shares]):
            terminalreporter.write_line(f"{share:8.2f}  {test}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """golden(name, text): `text` must be what tests/golden/<name> holds."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing: run pytest --update-golden and read what it wrote"
        assert text == path.read_text(), f"{path} differs: if the change is meant, run pytest --update-golden"

    return check


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Forget every capture and count from zero.

    Dynamo keeps at most eight captures of one function before it runs eagerly for good, and layers share theirs.
    """
    torch._dynamo.reset()
    graphweave.reset_counters()
    yield
    torch._dynamo.reset()
