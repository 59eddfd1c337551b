"""Hypothesis strategies, in a file of their own so that only property tests need hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st

from graphweave.core.types import DType
from graphweave.ir.message.nodes import Program
from tests.programs.graphs import EdgeList, zoo
from tests.programs.random_programs import grow

_T = TypeVar("_T")


@st.composite
def programs(draw: st.DrawFn, dtype: DType = DType.f32) -> Program:
    """Well-typed message programs, which shrink towards few and simple moves."""

    def choose(options: Sequence[_T]) -> _T:
        return options[draw(st.integers(0, len(options) - 1))]

    return grow(choose, dtype)


def graphs(seed: int = 0) -> st.SearchStrategy[EdgeList]:
    """Members of the awkward zoo."""
    return st.sampled_from(zoo(seed))
