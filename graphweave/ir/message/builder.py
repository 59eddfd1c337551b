"""Builds a message program node by node. Equal nodes become one (hash-consing), and each node is typed when added."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import cache
from typing import Any

from graphweave.core.exact import exact
from graphweave.core.lines import NOWHERE, Location
from graphweave.core.records import values_of
from graphweave.core.sizes import Size
from graphweave.core.types import Space
from graphweave.ir.held import held, with_held
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import Arg, Aten, Node, Operand, Program, Ref, ValueType

_REF, _SPACE = frozenset({"Ref"}), frozenset({"Space"})


class Builder:
    """`add(node, loc)` gives the position of `node`, which is that of an equal node if there is one.

    `operands` has for each node the nodes that it uses, as the function `operands` gives them.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.types: list[ValueType] = []
        self.locs: list[Location] = []
        self.operands: list[tuple[Ref, ...]] = []
        self._keys: list[Any] = []
        self._seen: dict[Any, Ref] = {}

    @classmethod
    def of(cls, program: Program) -> Builder:
        """A builder that holds `program`'s nodes at their positions."""
        build = cls()
        build.nodes, build.types, build.locs = list(program.nodes), list(program.types), list(program.locs)
        build.operands, build._keys = list(map(operands, program.nodes)), list(map(exact_key, program.nodes))
        build._seen = {key: ref for ref, key in reversed(list(enumerate(build._keys)))}
        return build

    def add(self, node: Node, loc: Location = NOWHERE) -> Ref:
        """The position of `node`. Raises IRError if it is ill typed."""
        key = exact_key(node)
        known = self._seen.get(key)
        if known is not None:
            return known
        return self._append(key, node, infer(node, self.types), loc, operands(node))

    def copy(self, build: Builder, ref: Ref, used: tuple[Ref, ...]) -> Ref:
        """The position of node `ref` of `build`, with the nodes `used` of this builder as its operands.

        The node is typed anew only if the type of an operand is another object.
        """
        node, before, known, key = build.nodes[ref], build.operands[ref], build.types[ref], build._keys[ref]
        if used != before:
            renamed = dict(zip(before, used, strict=True))
            node = with_operands(node, renamed.__getitem__)
            key = exact_key(node)
        seen = self._seen.get(key)
        if seen is not None:
            return seen
        types = self.types
        for old, new in zip(before, used, strict=True):
            if build.types[old] is not types[new]:
                found = infer(node, types)
                known = known if found == known else found
                break
        return self._append(key, node, known, build.locs[ref], used)

    def _append(self, key: object, node: Node, node_type: ValueType, loc: Location, used: tuple[Ref, ...]) -> Ref:
        ref = len(self.nodes)
        self.types.append(node_type)
        self.nodes.append(node)
        self.locs.append(loc)
        self.operands.append(used)
        self._keys.append(key)
        self._seen[key] = ref
        return ref

    def rollback(self, count: int) -> None:
        """Forgets all nodes but the first `count`."""
        if count == len(self.nodes):
            return
        for key in self._keys[count:]:
            del self._seen[key]
        for column in (self.nodes, self.types, self.locs, self.operands, self._keys):
            del column[count:]

    def program(self, outputs: Iterable[Ref | None], spaces: Iterable[tuple[Space, Size | None]]) -> Program:
        return Program(tuple(self.nodes), tuple(self.types), tuple(self.locs), tuple(outputs), tuple(spaces))


def operands(node: Node) -> tuple[Ref, ...]:
    """The nodes that `node` uses, in order, repeats included."""
    if isinstance(node, Aten):
        return (*_arg_refs(node.args), *(r for _, a in node.kwargs for r in _arg_refs(a)))
    return held(node, _REF)


def with_operands(node: Node, rename: Callable[[Ref], Ref]) -> Node:
    """`node` with every operand replaced by rename(operand), which is called in the order of `operands`."""
    if isinstance(node, Aten):
        new_args = tuple(_rename_arg(a, rename) for a in node.args)
        return replace(node, args=new_args, kwargs=tuple((k, _rename_arg(a, rename)) for k, a in node.kwargs))
    return with_held(node, _REF, rename)


def spaces_in(said: Node | ValueType) -> tuple[Space, ...]:
    """The spaces in the fields of a node or a type."""
    return held(said, _SPACE)


def with_spaces(node: Node, rename: Callable[[Space], Space]) -> Node:
    """`node` with every space in its fields replaced by rename(space)."""
    return with_held(node, _SPACE, rename)


def _arg_refs(arg: Arg) -> tuple[Ref, ...]:
    if isinstance(arg, Operand):
        return (arg.ref,)
    if isinstance(arg, tuple):
        return tuple(r for a in arg for r in _arg_refs(a))
    return ()


def _rename_arg(arg: Arg, rename: Callable[[Ref], Ref]) -> Arg:
    if isinstance(arg, Operand):
        return Operand(rename(arg.ref))
    if isinstance(arg, tuple):
        return tuple(_rename_arg(a, rename) for a in arg)
    return arg


_EXACT = frozenset("AnyType DType Fold LinkName None Op Ref Size Space Type bool int str tuple".split())  # noqa: SIM905
"""Words in annotations of fields whose values are exactly the same if they are equal; 0.0 and -0.0 are not."""


@cache
def _is_plain(kind: Any) -> bool:
    """Whether equal fields of nodes of the class `kind` are exactly the same."""
    words = [frozenset(re.findall(r"\w+", str(f.type))) for f in fields(kind)]
    return all(own <= _EXACT and not {"bool", "int"} <= own for own in words)


def exact_key(node: Node) -> Any:
    """A key that two nodes share only if they are exactly the same."""
    kind: Any = type(node)
    values = values_of(node)
    return kind.__name__, values if _is_plain(kind) else exact(values)
