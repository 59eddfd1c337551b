"""The parts of one kind that a node holds (operands, spaces, expressions, statements), by its fields' annotations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, TypeVar

_N = TypeVar("_N")
_FIELDS: dict[tuple[type, frozenset[str]], tuple[str, ...]] = {}


def fields_with(kind: type, words: frozenset[str]) -> tuple[str, ...]:
    """The fields whose annotation contains one of `words`."""
    if (kind, words) not in _FIELDS:
        annotations = {f.name: re.findall(r"\w+", str(f.type)) for f in fields(kind)}
        _FIELDS[kind, words] = tuple(name for name, said in annotations.items() if not words.isdisjoint(said))
    return _FIELDS[kind, words]


def held(node: Any, words: frozenset[str]) -> Iterator[Any]:
    """The values of the fields with `words`, in order; for a tuple its items. None is left out."""
    for name in fields_with(type(node), words):
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value


def with_held(node: _N, words: frozenset[str], new: Callable[[Any], Any]) -> _N:
    """`node` with new(x) in place of each x of `held(node, words)`, called in that order; `node` itself if there is
    none."""
    changes: dict[str, Any] = {}
    for name in fields_with(type(node), words):
        value = getattr(node, name)
        if value is not None:
            changes[name] = tuple(map(new, value)) if isinstance(value, tuple) else new(value)
    return replace(node, **changes) if changes else node  # type: ignore[type-var]
