"""Numbers told apart as tensor programs tell them apart: 1, 1.0 and True differ, as do 0.0 and -0.0; NaN is itself."""

from __future__ import annotations

from typing import Any

from graphweave.core.records import values_of


def exact(value: Any) -> Any:
    """A key of `value`, in tuples too, under which numbers differ that are equal in Python and not in programs."""
    if isinstance(value, tuple):
        return tuple([exact(item) for item in value])
    if isinstance(value, bool | float):
        return type(value).__name__, repr(value)
    return value


class Exact:
    """A dataclass with numbers that is equal to another only if they are exactly the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and exact(values_of(other)) == exact(values_of(self))

    def __hash__(self) -> int:
        return hash(exact(values_of(self)))
