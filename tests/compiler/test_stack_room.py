"""Calls below `call_with_room` are equally fast at any depth of Python's stack."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import pytest

from graphweave.core.stack import call_with_room

CALLS = 200
DEPTHS = 300


def leaf() -> int:
    return 1


def new_pages(depth: int) -> int:
    """Pages of memory that calls made at this depth touch for the first time."""
    if depth:
        return new_pages(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        leaf()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def worst(call: Callable[[int], int]) -> int:
    return max(call(depth) for depth in range(DEPTHS))


def test_no_depth_maps_memory_for_each_call() -> None:
    assert call_with_room(worst, new_pages) < CALLS


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are not in chunks")
def test_without_room_some_depth_does() -> None:
    """Once this fails, Python keeps its chunks, and `core/stack.py` can go."""
    assert worst(new_pages) >= CALLS


def test_arguments_results_and_errors_pass_through() -> None:
    assert call_with_room(divmod, 7, 2) == (3, 1)
    assert call_with_room(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        call_with_room(divmod, 1, 0)
