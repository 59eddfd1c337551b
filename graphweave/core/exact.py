"""Equality of numbers as tensor programs need it: 1, 1.0 and True differ, as do 0.0 and -0.0; NaN equals itself."""

from __future__ import annotations

from graphweave.core.records import values_of


def exact(value: object) -> object:
    """A key that is equal for two values only if their numbers are exactly the same, also inside tuples."""
    if isinstance(value, tuple):
        return tuple([exact(item) for item in value])
    if isinstance(value, bool | float):
        return type(value).__name__, repr(value)
    return value


class Exact:
    """A base of dataclasses that are equal only if their numbers are exactly the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and exact(values_of(other)) == exact(values_of(self))

    def __hash__(self) -> int:
        return hash(exact(values_of(self)))
