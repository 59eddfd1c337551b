"""Builds a message program node by node. Equal nodes become one (hash-consing), and each node is typed when added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from graphweave.core.exact import exact
from graphweave.core.records import values_of
from graphweave.core.sizes import Size
from graphweave.core.types import Space
from graphweave.ir.held import held, with_held
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import Arg, Aten, Node, Operand, Program, Ref, ValueType

_REF, _SPACE = frozenset({"Ref"}), frozenset({"Space"})


class Builder:
    """`add(node, loc)` gives the position of `node`, which is that of an equal node if there is one."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.types: list[ValueType] = []
        self.locs: list[str] = []
        self._seen: dict[Node, Ref] = {}

    @classmethod
    def of(cls, program: Program) -> Builder:
        """A builder that holds `program`'s nodes at their positions."""
        build = cls()
        build.nodes, build.types, build.locs = list(program.nodes), list(program.types), list(program.locs)
        build._seen = {_exact(node): ref for ref, node in reversed(list(enumerate(program.nodes)))}
        return build

    def add(self, node: Node, loc: str = "") -> Ref:
        """The position of `node`. Raises IRError if it is ill typed."""
        key = _exact(node)
        known = self._seen.get(key)
        if known is not None:
            return known
        ref = len(self.nodes)
        self.types.append(infer(node, self.types))
        self.nodes.append(node)
        self.locs.append(loc)
        self._seen[key] = ref
        return ref

    def rollback(self, count: int) -> None:
        """Forgets all nodes but the first `count`."""
        for node in self.nodes[count:]:
            del self._seen[_exact(node)]
        del self.nodes[count:], self.types[count:], self.locs[count:]

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


def _exact(node: Node) -> Any:
    return type(node).__name__, exact(values_of(node))
