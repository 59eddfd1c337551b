"""The parts of one kind that a node holds (operands, spaces, expressions, statements), by its fields' annotations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from graphweave.core.records import reader, values_of

_N = TypeVar("_N")


@cache
def _positions(kind: Any, words: frozenset[str]) -> tuple[int, ...]:
    """The fields whose annotation contains one of `words`."""
    return tuple(i for i, f in enumerate(fields(kind)) if not words.isdisjoint(re.findall(r"\w+", str(f.type))))


@cache
def _reader(kind: Any, words: frozenset[str]) -> Callable[[object], tuple[object, ...]]:
    chosen = [fields(kind)[i] for i in _positions(kind, words)]
    read = reader([f.name for f in chosen])
    if all(f.type in words for f in chosen):
        return read

    def read_items(node: object) -> tuple[int | None, ...]:
        out: list[Any] = []
        for value in read(node):
            if isinstance(value, tuple):
                out += value
            elif value is not None:
                out.append(value)
        return tuple(out)

    return read_items


def held(node: object, words: frozenset[str]) -> tuple[Any, ...]:
    """The parts of `node` in fields whose annotation contains one of `words`, in order. A tuple gives its items, None
    gives nothing."""
    kind: Any = type(node)
    return _reader(kind, words)(node)


def with_held(node: _N, words: frozenset[str], new: Callable[[Any], object]) -> _N:
    """`node` with new(x) in place of each x of `held(node, words)`; `new` is called in that order. The same object if
    there is no such field."""
    kind: Any = type(node)
    positions = _positions(kind, words)
    if not positions:
        return node
    values = list(values_of(node))
    for i in positions:
        if (value := values[i]) is not None:
            values[i] = tuple(map(new, value)) if isinstance(value, tuple) else new(value)
    made: _N = kind(*values)
    return made
