"""Bugs that convolutions and models of PyTorch Geometric have found, each in its smallest form."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support import assert_matches, features, random_graph
from torch import Tensor

import graphweave

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture(autouse=True)
def nothing_left_eager() -> Iterator[None]:
    """A graph that could not be compiled is a bug of its own here."""
    yield
    assert graphweave.counters()["eager_fallbacks"] == 0


def test_checks_of_the_graph_alone_and_nothing_else_to_remember() -> None:
    """A size read from an index is checked once per graph; no other value is."""

    def fn(x: Tensor, group: Tensor) -> Tensor:
        return x.new_zeros(int(group.max()) + 1, x.size(1)).index_add(0, group, x)

    compiled = graphweave.compile(fn)
    for groups, rows in ((3, 8), (5, 20)):
        assert_matches(compiled, fn, features(rows, 4), random_graph(groups, groups, rows)[0])
