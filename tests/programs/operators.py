"""Operators that are declared for the length of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from graphweave.core.operators import Op, Operator


@contextmanager
def declared(name: str, facts: Operator) -> Iterator[Op]:
    """A member of `Op` as a row of `core/operators.py` would be one, until the block ends."""
    op = object.__new__(Op)
    op._name_, op._value_, op.facts = name, name, facts
    Op._member_map_[name] = Op._value2member_map_[name] = op
    Op._member_names_.append(name)
    try:
        yield op
    finally:
        del Op._member_map_[name], Op._value2member_map_[name]
        Op._member_names_.remove(name)
