"""Which values have as many rows as edges, and which no more than nodes: a call on few rows costs little anywhere."""

from __future__ import annotations

from functools import cached_property

from graphweave.analysis.maps import is_injective
from graphweave.core.sizes import Applied, Size, SizeOp, Symbol
from graphweave.core.types import UNIT, Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.builder import operands


class EdgeRows:
    """Sizes as the maps of `program` tell them: a space is of nodes, or smaller, if several rows of another space may
    lead to one of its rows, and it has no two such maps of its own, as the edges have.

    A space with a map into such a space that sends no two rows to one is no larger. What nothing is known about counts
    as edges.
    """

    def __init__(self, program: ir.Program) -> None:
        self._program = program

    def on_edges(self, ref: ir.Ref) -> bool:
        """Whether node `ref`, or an operand of it, may have as many rows as there are edges, or more than one dim that
        varies."""
        types = self._program.types
        return any(self._large(types[r]) for r in (ref, *operands(self._program.nodes[ref])))

    @cached_property
    def few(self) -> frozenset[Space]:
        """The spaces of nodes, and those that are no larger."""
        out: dict[Space, set[ir.Ref]] = {}
        reached, within = set[Space](), dict[Space, set[Space]]()
        for ref, (node, t) in enumerate(zip(self._program.nodes, self._program.types, strict=True)):
            if not isinstance(node, ir.MapOf) or not isinstance(t, ir.MapType):
                continue
            if is_injective(self._program.nodes, ref):
                within.setdefault(t.dom, set()).add(t.cod)
            else:
                out.setdefault(t.dom, set()).add(node.index)
                reached.add(t.cod)
        found = {UNIT} | {s for s in reached if len(out.get(s, ())) < 2}
        counts = [(space, size) for space, size in self._program.spaces if size is not None]
        while True:
            sizes = frozenset(s for space, size in counts if space in found for s in _symbols(size))
            more = {s for s, into in within.items() if into & found and len(out.get(s, ())) < 2}
            more |= {space for space, size in counts if _linear(size, sizes) and len(out.get(space, ())) < 2}
            if more <= found:
                return frozenset(found)
            found |= more

    @cached_property
    def _symbols_of_few(self) -> frozenset[Symbol]:
        return frozenset(
            s for space, size in self._program.spaces if space in self.few and size is not None for s in _symbols(size)
        )

    def _large(self, t: ir.ValueType) -> bool:
        match t:
            case ir.Type(space):
                return space not in self.few
            case ir.AnyType(dims=dims, items=items):
                varying = [d for d in dims or () if not isinstance(d, int)]
                many = len(varying) > 1 or not all(_linear(d, self._symbols_of_few) for d in varying)
                return many or any(map(self._large, items or ()))
            case _:
                return False


def _symbols(size: Size) -> frozenset[Symbol]:
    if isinstance(size, Symbol):
        return frozenset({size})
    return frozenset(s for a in size.args for s in _symbols(a)) if isinstance(size, Applied) else frozenset()


def _linear(size: Size, known: frozenset[Symbol]) -> bool:
    """Whether `size` is a number, one of `known`, or a sum of multiples of these."""
    match size:
        case int():
            return True
        case Symbol():
            return size in known
        case Applied(SizeOp.sum, args):
            return all(_linear(a, known) for a in args)
        case Applied(SizeOp.product, args):
            return sum(not isinstance(a, int) for a in args) < 2 and all(_linear(a, known) for a in args)
        case _:
            return False
