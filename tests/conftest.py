"""Shared by every test: golden texts, and hypothesis settings that repeat from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import graphweave

GOLDEN = Path(__file__).parent / "golden"

# derandomize: a change is judged on the same programs each time. No deadline: the first compilation takes seconds.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew instead of comparing")


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
