"""Equality of numbers as tensor programs need it: 1, 1.0 and True differ, as do 0.0 and -0.0; NaN equals itself."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


def exact(value: Any) -> Any:
    """A key that is equal for two values only if their numbers are exactly the same, inside of tuples too."""
    if isinstance(value, tuple):
        return tuple(map(exact, value))
    if isinstance(value, bool | int | float):
        return type(value).__name__, repr(value)
    return value


class Exact:
    """A base of dataclasses that are equal only if their numbers are exactly the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _key(other) == _key(self)

    def __hash__(self) -> int:
        return hash(_key(self))


def _key(x: Any) -> tuple[Any, ...]:
    return tuple(exact(getattr(x, f.name)) for f in fields(x))
