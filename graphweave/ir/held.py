"""What a node holds of one kind, found by the annotations of its fields: operands, spaces, expressions, statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

_N = TypeVar("_N")
_FIELDS: dict[tuple[type, frozenset[str]], tuple[str, ...]] = {}


def fields_with(kind: type, words: frozenset[str]) -> tuple[str, ...]:
    """The fields in whose annotation one of `words` stands."""
    if (kind, words) not in _FIELDS:
        annotations = {f.name: re.findall(r"\w+", str(f.type)) for f in fields(kind)}
        _FIELDS[kind, words] = tuple(name for name, said in annotations.items() if not words.isdisjoint(said))
    return _FIELDS[kind, words]


def held(node: Any, words: frozenset[str]) -> Iterator[Any]:
    """What these fields hold, in order, of tuples the items; None is left out."""
    for name in fields_with(type(node), words):
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value


def with_held(node: _N, words: frozenset[str], new: Callable[[Any], Any]) -> _N:
    """`node` with new(x) for each x that these fields hold, called in their order; itself where there is none."""
    changes: dict[str, Any] = {}
    for name in fields_with(type(node), words):
        value = getattr(node, name)
        if value is not None:
            changes[name] = tuple(map(new, value)) if isinstance(value, tuple) else new(value)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]
