"""Names for a kernel that depend on nothing but what it does, so that equal kernels of different layers are equal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from graphweave.core.records import values_of
from graphweave.ir.loop.nodes import Buffer, Comment, Kernel

_NAMES = frozenset({"str", "Lane", "Term", "Place"})
"""Words in the annotations of fields that hold names."""

_OF_VALUE = re.compile(r"(.*?)((?:_\d+)+)(_[a-z]\w*)?", re.ASCII)
"""A name that a value of the program gives: its operator, its number, and what the kernel keeps of it."""


def canonical(kernel: Kernel, name: str) -> Kernel:
    """`kernel` under the name `name`, with other names and without comments.

    Buffers are named by their roles, and values by numbers of their own in the order in which the kernel has them.
    Kernels that differ only by where their values stand in their programs, by the names of inputs and by the user's
    lines become equal. Names that lowering gives anew in each kernel stay.
    """
    renamed = _Renamed(kernel, name)
    made = renamed.node(replace(kernel, name=name, header=()))
    assert isinstance(made, Kernel)
    return made


class _Renamed:
    def __init__(self, kernel: Kernel, name: str) -> None:
        self._new: dict[str, str] = {name: name}
        self._numbers: dict[str, int] = {}
        given = [*kernel.sizes, *(b.name for b in kernel.buffers)]
        fresh = [*(f"size_{i}" for i in range(len(kernel.sizes))), *_by_role(kernel.buffers)]
        kept = {n for n in _names_in(kernel) if n not in given and _OF_VALUE.fullmatch(n) is None}
        self._taken = kept | {name}
        for old, new in zip(given, fresh, strict=True):
            self._new[old] = self._fresh(new)

    def _fresh(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def name(self, old: str) -> str:
        new = self._new.get(old)
        if new is None:
            of_value = _OF_VALUE.fullmatch(old)
            new = old
            if of_value is not None:
                kind, number, kept = of_value.groups(default="")
                own = self._numbers.setdefault(number, len(self._numbers))
                new = self._fresh(f"{kind}_{own}{kept}")
            self._new[old] = new
        return new

    def node(self, node: object) -> object:
        kind: Any = type(node)
        made = [
            value if how is None else _mapped(value, self.name, self.node, names=how)
            for value, how in zip(values_of(node), _kinds(kind), strict=True)
        ]
        return kind(*made)


def _mapped(value: object, name: Callable[[str], str], node: Callable[[object], object], *, names: bool) -> object:
    """`value` with `name` of each name in it, if it holds `names`, and `node` of each node, without comments."""
    if isinstance(value, tuple):
        return tuple([_mapped(v, name, node, names=names) for v in value if type(v) is not Comment])
    if type(value) is str:
        return name(value) if names else value
    return node(value) if is_dataclass(value) else value


@cache
def _kinds(kind: Any) -> tuple[bool | None, ...]:
    """For each field of a node whether it holds names; None where it holds neither names nor nodes."""
    words = [frozenset(re.findall(r"\w+", str(f.type))) for f in fields(kind)]
    return tuple(None if own <= _PLAIN else not own.isdisjoint(_NAMES) for own in words)


_PLAIN = frozenset({"int", "float", "bool", "tuple", "None", "DType", "Op", "Fold", "AnyFold", "Role", "Text"})
"""Words in the annotations of fields that hold neither names nor nodes."""


def _names_in(value: Kernel) -> Iterator[str]:
    found: list[str] = []

    def node(inner: object) -> object:
        kind: Any = type(inner)
        for item, how in zip(values_of(inner), _kinds(kind), strict=True):
            if how is not None:
                _mapped(item, keep, node, names=how)
        return inner

    def keep(name: str) -> str:
        found.append(name)
        return name

    node(value)
    return iter(found)


def _by_role(buffers: tuple[Buffer, ...]) -> Iterator[str]:
    """A name for each buffer."""
    return (f"{buffer.role.value}_{i}" for i, buffer in enumerate(buffers))
