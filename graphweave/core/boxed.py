"""Functions that take their arguments in one list, which they empty, so that each is freed after its last use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Boxed: TypeAlias = Callable[[list[Any]], list[Any]]
"""A function that takes a list of arguments, which it empties, and returns a list of results."""


def boxed(run: Boxed) -> Boxed:
    """`run`, marked for AOTAutograd, which gives other functions their arguments one by one."""
    run._boxed_call = True  # type: ignore[attr-defined]
    return run
