"""Who uses what: users, ancestors, what depends on the graph alone, and the part of a program that outputs need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch

from graphweave.analysis.remembered import remembered
from graphweave.core.calls import facts_of
from graphweave.core.sizes import Size, leaves
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.aten import resolve
from graphweave.ir.message.builder import Builder, operands, with_operands

BETWEEN_RANKS = ir.Exchange | ir.ExchangeBack | ir.AllReduce
"""Nodes in which all ranks take part, so that they must come in the same order on each."""

_MADE_ONCE = (
    ir.Distinct | ir.JoinIndices | ir.RowsOfSegments | ir.NumbersOfSegments | ir.EqualRuns | ir.Rounds
    | ir.EachItem | ir.Places | ir.Inverse | ir.Order | ir.Chosen | ir.AssertIndex
)  # fmt: skip

_Node = TypeVar("_Node")


class Flow:
    """Which nodes of one program use which others, and facts that follow from that.

    `known` are the operands of all nodes, where whoever made the program knows them.
    """

    def __init__(self, program: ir.Program, known: tuple[tuple[ir.Ref, ...], ...] | None = None) -> None:
        self._program, self._known = program, known

    @cached_property
    def operands(self) -> tuple[tuple[ir.Ref, ...], ...]:
        """For every node, the nodes that it uses, in order, repeats included."""
        return tuple(map(operands, self._program.nodes)) if self._known is None else self._known

    @cached_property
    def users(self) -> tuple[tuple[ir.Ref, ...], ...]:
        """For every node, the nodes that use it, in order, each once."""
        out: list[list[ir.Ref]] = [[] for _ in self._program.nodes]
        for ref, refs in enumerate(self.operands):
            for operand in dict.fromkeys(refs):
                out[operand].append(ref)
        return tuple(map(tuple, out))

    @remembered
    def depending(self, roots: frozenset[ir.Ref]) -> frozenset[ir.Ref]:
        """`roots` and every node that needs one of them."""
        found = set(roots)
        for ref, refs in enumerate(self.operands):
            if not found.isdisjoint(refs):
                found.add(ref)
        return frozenset(found)

    @cached_property
    def maps_from(self) -> dict[Space, tuple[ir.Ref, ...]]:
        """The maps of the program by their domain, in order."""
        out: dict[Space, tuple[ir.Ref, ...]] = {}
        for ref, (node, t) in enumerate(zip(self._program.nodes, self._program.types, strict=True)):
            if isinstance(node, ir.MapOf) and isinstance(t, ir.MapType):
                out[t.dom] = (*out.get(t.dom, ()), ref)
        return out

    @cached_property
    def edge_spaces(self) -> frozenset[Space]:
        """The domains of the program's maps: the spaces that can be much larger than the nodes'."""
        return frozenset(self.maps_from)

    @cached_property
    def seeds(self) -> frozenset[ir.Ref]:
        """The nodes that seed random numbers."""
        return frozenset(n.seed for n in self._program.nodes if isinstance(n, ir.Random))

    def is_work(self, ref: ir.Ref) -> bool:
        """Whether `ref` is a call in which PyTorch computes something: no view, no number, no seed, no item of several
        results, and no check."""
        node = self._program.nodes[ref]
        if isinstance(node, _MADE_ONCE | BETWEEN_RANKS):
            return True
        if not isinstance(node, ir.Aten) or is_view(node) or is_scalar(self._program, ref):
            return False
        return ref not in self.seeds and facts_of(node.target).works

    def lies_in_input(self, ref: ir.Ref) -> bool:
        """Whether `ref` is an input, or a view of one by a call of PyTorch's, so it has no memory of its own."""
        while is_view(self._program.nodes[ref]):
            ref = self.operands[ref][0]
        return isinstance(self._program.nodes[ref], ir.Input)

    @cached_property
    def graph_only(self) -> frozenset[ir.Ref]:
        """Nodes computed from index tensors, sizes and constants alone: no parameter, feature or random number.

        A constant or a map on rows whose number only features or random numbers tell is none of them.
        """
        found: set[ir.Ref] = set()
        known, late = set[Size](), set[Size]()  # parts of sizes that the graph tells, and that something else tells
        for ref, node in enumerate(self._program.nodes):
            sizes = self._sizes_in(ref)
            if isinstance(node, ir.Input):
                good = is_integral(self._program, ref) or is_scalar(self._program, ref)
                known.update(sizes)
            else:
                good = not (isinstance(node, ir.Aten) and node.serial) and found.issuperset(self.operands[ref])
                good = good and not (is_structure(node) and not late.isdisjoint(sizes))
                (known if good else late).update(sizes if good else sizes - known)
            if good:
                found.add(ref)
        return frozenset(found)

    def _sizes_in(self, ref: ir.Ref) -> frozenset[Size]:
        """The symbols in the sizes of a value: its rows, the dims of a tensor without a space, or a number itself."""
        match self._program.types[ref]:
            case ir.Type(space=space):
                return self._rows[space]
            case ir.MapType(dom=dom, cod=cod):
                return self._rows[dom] | self._rows[cod]
            case ir.AnyType(dims=dims, size=size):
                return frozenset(part for each in (*(dims or ()), size) for part in leaves(each))
            case _:
                return frozenset()

    @cached_property
    def _rows(self) -> Mapping[Space, frozenset[Size]]:
        """The symbols in the row count of each space."""
        return {UNIT: frozenset(), **{space: frozenset(leaves(size)) for space, size in self._program.spaces}}


def reached(
    roots: Iterable[_Node], below: Callable[[_Node], Iterable[_Node]], stop: frozenset[_Node] = frozenset()
) -> set[_Node]:
    """`roots`, the nodes `below` each of them, the nodes below those, and so on; nodes of `stop` are not followed."""
    seen: set[_Node] = set()
    todo = list(roots)
    while todo:
        ref = todo.pop()
        if ref in seen:
            continue
        seen.add(ref)
        if ref not in stop:
            todo.extend(below(ref))
    return seen


def ancestors(program: ir.Program, roots: Iterable[ir.Ref], stop: frozenset[ir.Ref] = frozenset()) -> set[ir.Ref]:
    """Every node that `roots` need, themselves included; nodes of `stop` are not followed."""
    return reached(roots, lambda ref: operands(program.nodes[ref]), stop)


def is_view(node: ir.Node) -> bool:
    """Whether the node is an ATen call whose result shares its operand's memory, so that repeating it costs nothing."""
    if not isinstance(node, ir.Aten) or node.target.startswith("builtin."):
        return False
    overload = resolve(node.target)
    if not isinstance(overload, torch._ops.OpOverload):
        return False
    returns = overload._schema.returns
    alias = returns[0].alias_info if len(returns) == 1 else None
    return alias is not None and not alias.is_write


def shares_memory(node: ir.Node) -> bool:
    """Whether the value of the node, if PyTorch makes it, lies in the memory of its first operand."""
    return is_view(node) or isinstance(node, ir.Reshape | ir.Permute | ir.Broadcast | ir.Slice | ir.After)


def may_view(node: ir.Node) -> bool:
    """Whether the value of the node may lie in the memory of its first operand."""
    return shares_memory(node) or isinstance(node, ir.Part | ir.LaidOut)


def with_viewed(program: ir.Program, refs: Iterable[ir.Ref]) -> set[ir.Ref]:
    """`refs` and the values in whose memory they may lie."""
    found, todo = set[ir.Ref](), list(refs)
    while todo:
        ref = todo.pop()
        node = program.nodes[ref]
        if (may_view(node) or isinstance(node, ir.Cast)) and ref not in found:
            todo += operands(node)
        found.add(ref)
    return found


def is_tensor(program: ir.Program, ref: ir.Ref) -> bool:
    t = program.types[ref]
    return isinstance(t, ir.Type) or (isinstance(t, ir.AnyType) and t.dims is not None)


def is_scalar(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether the value is a symbolic size or another Python number, which costs nothing and is never a tensor."""
    t = program.types[ref]
    return isinstance(t, ir.AnyType) and t.size is not None


def has_effects(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether the node is a call that draws or writes something, or is made for its effect, or takes part in something
    that all ranks do. Such calls keep their order."""
    node = program.nodes[ref]
    if isinstance(node, BETWEEN_RANKS):
        return True
    return isinstance(node, ir.Aten) and (node.serial > 0 or program.types[ref] == ir.NOTHING)


def is_integral(program: ir.Program, ref: ir.Ref) -> bool:
    """Whether the value is an integer or bool tensor (an index, a mask or types), which carries no gradient."""
    t = program.types[ref]
    return isinstance(t, ir.Type | ir.AnyType) and t.dtype is not None and not t.dtype.is_float


def is_structure(node: ir.Node) -> bool:
    """Whether the node holds no data of its own."""
    return isinstance(node, ir.MapOf | ir.ToUnit | ir.Const)


@dataclass(frozen=True, slots=True)
class Extract:
    """`program` computes some values of another program from others; `where` gives each node's position in it."""

    program: ir.Program
    where: dict[ir.Ref, ir.Ref]


def extract(program: ir.Program, inputs: Iterable[ir.Ref], outputs: Iterable[ir.Ref | None]) -> Extract:
    """The part of `program` that computes `outputs` from `inputs`, which become Input nodes in the given order."""
    build = Builder()
    where: dict[ir.Ref, ir.Ref] = {}
    inputs, outputs = list(inputs), list(outputs)
    taken = {n.name for r in inputs if isinstance(n := program.nodes[r], ir.Input)}
    for ref in inputs:
        node, t = program.nodes[ref], program.types[ref]
        if not isinstance(node, ir.Input):
            assert not isinstance(t, ir.MapType | ir.DistinctType)
            name = f"saved_{ref}"
            while name in taken:  # an input of `program` may come from another extract, which named it
                name += "_"
            node = ir.Input(name, t)
        where[ref] = build.add(node, program.locs[ref])
    needed = ancestors(program, (r for r in outputs if r is not None), frozenset(inputs))
    for ref in sorted(needed):
        if ref not in where:
            where[ref] = build.add(with_operands(program.nodes[ref], where.__getitem__), program.locs[ref])
    new_outputs = [None if r is None else where[r] for r in outputs]
    return Extract(build.program(new_outputs, program.spaces), where)
