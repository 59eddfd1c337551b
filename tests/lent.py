"""The fixture `lent` for tests of what `graphweave.pyg` lends: afterwards, PyG is as it was."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def lent() -> Iterator[None]:
    lending = importlib.import_module("graphweave.pyg.lending")  # the package lends when it is first imported
    lending.lend()
    yield
    lending.take_back()
