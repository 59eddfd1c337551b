"""Operators that are declared for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphweave.core.declared import declare, withdraw
from graphweave.core.operators import Op, Operator


@contextmanager
def declared(name: str, facts: Operator) -> Iterator[Op]:
    """Declares a member of `Op`, like a row of `core/operators.py`, until the block ends."""
    op = declare(name, facts)
    try:
        yield op
    finally:
        withdraw(op)
