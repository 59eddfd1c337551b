"""Who uses what: users, ancestors, and the part of a program that some outputs need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from graphweave.core.types import Space
from graphweave.ir.message.aten import resolve
from graphweave.ir.message.builder import Builder, operands, with_operands
from graphweave.ir.message.nodes import (
    AnyType,
    AssertIndex,
    Aten,
    Const,
    Input,
    JoinIndices,
    MapOf,
    MapType,
    Node,
    NumbersOfSegments,
    PairsType,
    Program,
    Random,
    Ref,
    RowsOfSegments,
    ToUnit,
    Type,
    UniquePairs,
)


def users(program: Program) -> list[list[Ref]]:
    """For every node, the nodes that use it, in order, each once."""
    out: list[list[Ref]] = [[] for _ in program.nodes]
    for ref, node in enumerate(program.nodes):
        for operand in dict.fromkeys(operands(node)):
            out[operand].append(ref)
    return out


def reached(
    roots: Iterable[Ref], below: Callable[[Ref], Iterable[Ref]], stop: frozenset[Ref] = frozenset()
) -> set[Ref]:
    """`roots`, what is `below` each of them, and so on; what lies behind `stop` is not followed."""
    seen: set[Ref] = set()
    todo = list(roots)
    while todo:
        ref = todo.pop()
        if ref in seen:
            continue
        seen.add(ref)
        if ref not in stop:
            todo.extend(below(ref))
    return seen


def ancestors(program: Program, roots: Iterable[Ref], stop: frozenset[Ref] = frozenset()) -> set[Ref]:
    """Every node that `roots` need, themselves included; what lies behind `stop` is not followed."""
    return reached(roots, lambda ref: operands(program.nodes[ref]), stop)


def depending(program: Program, roots: Iterable[Ref]) -> frozenset[Ref]:
    """`roots` and every node that needs one of them."""
    found = set(roots)
    for ref, node in enumerate(program.nodes):
        if not found.isdisjoint(operands(node)):
            found.add(ref)
    return frozenset(found)


def edge_spaces(program: Program) -> frozenset[Space]:
    """The domains of the program's maps: the spaces that can be much larger than the nodes'."""
    return frozenset(
        t.dom
        for t, n in zip(program.types, program.nodes, strict=True)
        if isinstance(n, MapOf) and isinstance(t, MapType)
    )


def is_view(node: Node) -> bool:
    """An ATen call whose result shares its operand's memory: free to repeat."""
    if not isinstance(node, Aten) or node.target.startswith("builtin."):
        return False
    overload = resolve(node.target)
    if not isinstance(overload, torch._ops.OpOverload):
        return False
    returns = overload._schema.returns
    alias = returns[0].alias_info if len(returns) == 1 else None
    return alias is not None and not alias.is_write


def is_scalar(program: Program, ref: Ref) -> bool:
    """A symbolic size or other Python number: costs nothing, is never a tensor."""
    t = program.types[ref]
    return isinstance(t, AnyType) and t.size is not None


_NO_WORK = frozenset({"builtin.getitem", "aten._assert_scalar.default", "aten.scalar_tensor.default"})


def is_work(program: Program, ref: Ref) -> bool:
    """A call that PyTorch computes something with: no view, number, seed or item of several results, and no copy that
    is made for its strides or to be kept."""
    node = program.nodes[ref]
    if isinstance(node, UniquePairs | JoinIndices | RowsOfSegments | NumbersOfSegments | AssertIndex):
        return True
    if not isinstance(node, Aten) or is_view(node) or is_scalar(program, ref):
        return False
    if any(isinstance(n, Random) and n.seed == ref for n in program.nodes):
        return False
    return node.target not in _NO_WORK


def is_integral(program: Program, ref: Ref) -> bool:
    """An integer or bool tensor: an index, a mask or a type, which carries no gradient."""
    t = program.types[ref]
    return isinstance(t, Type | AnyType) and t.dtype is not None and not t.dtype.is_float


def is_structure(node: Node) -> bool:
    """Nodes that hold no data of their own."""
    return isinstance(node, MapOf | ToUnit | Const)


@dataclass(frozen=True, slots=True)
class Extract:
    """`program` computes `outputs` of another program from some of its values; `where[old] = new` position."""

    program: Program
    where: dict[Ref, Ref]


def extract(program: Program, inputs: Iterable[Ref], outputs: Iterable[Ref | None]) -> Extract:
    """The part of `program` that computes `outputs` from `inputs`, which become Input nodes in the given order."""
    build = Builder()
    where: dict[Ref, Ref] = {}
    inputs, outputs = list(inputs), list(outputs)
    taken = {n.name for r in inputs if isinstance(n := program.nodes[r], Input)}
    for ref in inputs:
        node, t = program.nodes[ref], program.types[ref]
        if not isinstance(node, Input):
            assert not isinstance(t, MapType | PairsType)
            name = f"saved_{ref}"
            while name in taken:  # by what another extract has named
                name += "_"
            node = Input(name, t)
        where[ref] = build.add(node, program.locs[ref])
    needed = ancestors(program, (r for r in outputs if r is not None), frozenset(inputs))
    for ref in sorted(needed):
        if ref not in where:
            where[ref] = build.add(with_operands(program.nodes[ref], where.__getitem__), program.locs[ref])
    new_outputs = [None if r is None else where[r] for r in outputs]
    return Extract(build.program(new_outputs, program.spaces), where)
