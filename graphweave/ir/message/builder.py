"""Growing a message program node by node; equal nodes become one (hash-consing), each node is typed as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any

from graphweave.core.exact import exact
from graphweave.core.types import Space
from graphweave.ir.message.infer import infer
from graphweave.ir.message.nodes import (
    After,
    Arg,
    Aten,
    Concat,
    Join,
    JoinIndices,
    Node,
    Operand,
    Pointwise,
    Program,
    Ref,
    ValueType,
)


class Builder:
    """`add(node, loc)` gives the position of `node`, an earlier one where an equal node exists."""

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
        """Position of `node`. Raises IRError where it is ill typed."""
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
        """Forget all nodes but the first `count`."""
        for node in self.nodes[count:]:
            del self._seen[_exact(node)]
        del self.nodes[count:], self.types[count:], self.locs[count:]

    def program(self, outputs: Iterable[Ref | None], spaces: Iterable[tuple[Space, str]]) -> Program:
        return Program(tuple(self.nodes), tuple(self.types), tuple(self.locs), tuple(outputs), tuple(spaces))


def operands(node: Node) -> tuple[Ref, ...]:
    """The nodes that `node` uses, in order, repeats included."""
    match node:
        case Pointwise(_, args):
            return args
        case Concat(xs, _) | Join(xs, _) | JoinIndices(xs):
            return xs
        case After(x, others):
            return x, *others
        case Aten(_, args, kwargs):
            return (*_arg_refs(args), *(r for _, a in kwargs for r in _arg_refs(a)))
        case _:
            refs = (getattr(node, f) for f in _REF_FIELDS.get(type(node).__name__, ()))
            return tuple(r for r in refs if r is not None)


def with_operands(node: Node, rename: Callable[[Ref], Ref]) -> Node:
    """`node` with every operand replaced by rename(operand)."""
    match node:
        case Pointwise(op, args):
            return Pointwise(op, tuple(map(rename, args)))
        case Concat(xs, dim):
            return Concat(tuple(map(rename, xs)), dim)
        case Join(xs, space):
            return Join(tuple(map(rename, xs)), space)
        case JoinIndices(indices):
            return replace(node, indices=tuple(map(rename, indices)))
        case After(x, others):
            return After(rename(x), tuple(map(rename, others)))
        case Aten(_, args, kwargs):
            # in the order of `operands`, which a caller's `rename` may count on
            new_args = tuple(_rename_arg(a, rename) for a in args)
            return replace(node, args=new_args, kwargs=tuple((k, _rename_arg(a, rename)) for k, a in kwargs))
        case _:
            names = _REF_FIELDS.get(type(node).__name__, ())
            changes: dict[str, Any] = {f: rename(r) for f in names if (r := getattr(node, f)) is not None}
            return replace(node, **changes) if changes else node


_REF_FIELDS: dict[str, tuple[str, ...]] = {
    "Random": ("seed",), "MapOf": ("index",), "Pull": ("x", "map"), "Push": ("x", "map"), "Cast": ("x",),
    "Reduce": ("x",), "Reshape": ("x",), "Broadcast": ("x",), "Permute": ("x",), "Slice": ("x",), "Pad": ("x",),
    "MatMul": ("x", "w", "map"), "AddMatMul": ("a", "x", "w", "map"), "Gram": ("x", "y", "map"),
    "Part": ("x",), "UniquePairs": ("a", "b"), "PairIndex": ("pairs",), "AssertIndex": ("index",),
}  # fmt: skip


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
    return type(node).__name__, tuple(exact(getattr(node, f.name)) for f in fields(node))
