"""Which nodes are alike: operator, parameters and shapes agree, and so do those of operands a few steps up.

Names and values of tensors never count.
"""

from __future__ import annotations

from collections.abc import Hashable

from graphweave.core.types import UNIT
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import with_operands, with_spaces
from graphweave.passes.horizontal.node_graph import NodeGraph, Tree

_STEPS = 5
"""A node's colour takes in operands at most this many steps up."""


class Colours:
    """`signature(i)`: operator and parameters of a node, the types of it and its operands without their spaces, and
    whether it belongs to the backward.

    `seed(i)`: what must agree, besides the signature, before a pull or push is packed with those of other relations.
    """

    def __init__(self, graph: NodeGraph) -> None:
        self._graph = graph
        self._only = graph.facts.flow.graph_only
        self._level = self._levels()
        self._names: dict[Hashable, int] = {}
        self._colour = self._coloured()

    def signature(self, i: ir.Ref) -> Hashable:
        graph = self._graph
        node = graph.nodes[i]
        parameters = repr(node) if isinstance(node, Tree) else _parameters(node)
        kinds = tuple(_kind(graph.types[r]) for r in graph.ops[i])
        return type(node).__name__, i in graph.late, parameters, _kind(graph.types[i]), kinds

    def seed(self, i: ir.Ref) -> Hashable:
        """The key that pulls or pushes must share to be packed: the number of pulls and pushes before it, the origin of
        its index, and the colour of what it pushes.

        Nodes of equal seeds do not need each other.
        """
        node = self._graph.nodes[i]
        assert isinstance(node, ir.Pull | ir.Push)
        index = self._graph.ops[node.map][0]
        moved = self._colour[node.x] if isinstance(node, ir.Push) else 0
        return i in self._only, self._level[i], self._colour[index], moved

    def _levels(self) -> list[int]:
        """Pulls and pushes on the longest path to each node; values of the graph alone are counted by themselves."""
        graph = self._graph
        level = [0] * len(graph.nodes)
        for i, node in enumerate(graph.program.nodes):
            behind = [level[r] for r in graph.ops[i] if (r in self._only) == (i in self._only)]
            level[i] = max(behind, default=0) + isinstance(node, ir.Pull | ir.Push)
        return level

    def _coloured(self) -> list[int]:
        graph = self._graph
        own = [self._named((_static(graph, i),)) for i in range(len(graph.nodes))]
        colour = own
        for _ in range(_STEPS):
            colour = [self._named((own[i], *(colour[r] for r in self._seen(i)))) for i in range(len(own))]
        return colour

    def _seen(self, i: ir.Ref) -> tuple[ir.Ref, ...]:
        """Operands that count in a colour. What is pulled does not: types of nodes are computed in different ways."""
        node = self._graph.nodes[i]
        if isinstance(node, ir.Pull) and i not in self._only:
            return ()
        if isinstance(node, Tree | ir.MapOf):
            return ()
        return tuple(r for r in self._graph.ops[i] if not self._graph.is_unit(r))

    def _named(self, key: Hashable) -> int:
        return self._names.setdefault(key, len(self._names))


def _kind(t: ir.ValueType) -> Hashable:
    match t:
        case ir.Type(space, shape, dtype):
            return space == UNIT, shape, dtype
        case ir.MapType(_, cod):
            return "to unit" if cod == UNIT else "map"
        case ir.AnyType(dtype, dims, size, items, other):
            return dtype, other, *(None if x is None else len(x) for x in (dims, items)), size is None
        case ir.DistinctType():
            return "distinct"


def _static(graph: NodeGraph, i: ir.Ref) -> Hashable:
    node = graph.nodes[i]
    match node:
        case ir.Aten(target, args, kwargs):
            return target, repr(_blank(args)), repr(_blank(kwargs)), _kind(node.type)
        case ir.Input():
            return "input", _kind(node.type)
        case ir.Const(value):
            # An integer constant may be the number of a relation, so its value must not count.
            return "const", repr(value) if graph.value(i).dtype.is_float else "", _kind(node.type)
        case Tree(op):
            return "tree", op, _kind(graph.types[i])
        case ir.MapOf() | ir.ToUnit():
            return "map", _kind(graph.types[i])
        case ir.Random(_, t):
            return "random", _kind(t)
        case _:
            return _parameters(node), _kind(graph.types[i])


def _parameters(node: ir.Node) -> str:
    """The fields of a node that are neither operands nor spaces."""
    return repr(with_spaces(with_operands(node, lambda _: 0), lambda _: UNIT))


def _blank(arg: ir.Arg | object) -> object:
    if isinstance(arg, ir.Operand):
        return "%"
    return tuple(map(_blank, arg)) if isinstance(arg, tuple) else arg
