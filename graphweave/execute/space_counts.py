"""The rows of spaces, as a tape counts them: by a tensor on the space, or by what is known of its size."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphweave.analysis.flow import ancestors, is_tensor
from graphweave.core.errors import IRError
from graphweave.core.sizes import Size, Symbol, leaves, show
from graphweave.core.types import Space
from graphweave.ir.message import nodes as ir
from graphweave.ir.tape import nodes as tape
from graphweave.ir.tape.types import Given


class SpaceCounts:
    """Finds how a tape counts the rows of each space of a program. `there` are the values that exist at the moment.
    `make` adds the steps that make another one, for which the rows of `spaces_of_call` are needed.

    With `asks`, a space may have rows that no value tells; otherwise that is an error.
    """

    def __init__(
        self, program: ir.Program, there: Mapping[ir.Ref, Given], make: Callable[[ir.Ref], object],
        spaces_of_call: Callable[[ir.Ref], tuple[Space, ...]], *, asks: bool,
    ) -> None:  # fmt: skip
        self._program, self._there, self._make = program, there, make
        self._spaces_of_call, self._asks = spaces_of_call, asks

    def number(self, space: Space) -> tape.Number | None:
        """How the rows of `space` are counted; None if no value tells. It uses a number, a tensor on the space that
        exists, or known sizes; otherwise it makes a value."""
        size = dict(self._program.spaces).get(space)
        if isinstance(size, int):
            return tape.Fixed(size)
        for ref, value in self._there.items():
            t = self._program.types[ref]
            if isinstance(t, ir.Type) and t.space == space and value is not None:
                return tape.DimOf(value, 0)
        known = self._known()
        parts = list(dict.fromkeys(leaves(size, known)))
        if size is not None and all(p in known for p in parts):
            return tape.Computed(size, tuple(tape.Known(p, known[p]) for p in parts))
        return self._by_making(space, size)

    def _by_making(self, space: Space, size: Size | None) -> tape.Number | None:
        """Make a value on the space, or a symbol of the space's size, and count with that."""
        symbols = set(leaves(size))
        for ref, node in enumerate(self._program.nodes):
            t = self._program.types[ref]
            on_space = isinstance(t, ir.Type) and t.space == space and isinstance(node, ir.Opaque)
            is_size = isinstance(t, ir.AnyType) and t.size in symbols
            if (on_space or is_size) and ref not in self._there and not self._needs_rows(ref, space):
                self._make(ref)
                return self.number(space)
            if isinstance(t, ir.DistinctType) and t.space == space:
                self._make(ref)
                return tape.DistinctOf(ref)
        if self._asks:
            return None
        raise IRError(f"no value tells how many rows {space} has ({'no expression' if size is None else show(size)})")

    def _needs_rows(self, ref: ir.Ref, space: Space) -> bool:
        """Whether making `ref` at this moment takes the row count of `space`."""
        there = frozenset(self._there)
        inside = [r for r in ancestors(self._program, [ref], there) - there if is_tensor(self._program, r)]
        return any(space in self._spaces_of_call(r) for r in inside)

    def _known(self) -> dict[Size, tape.Number]:
        """Symbols and numbers that are known at this step.

        Only plain symbols are read from dims of tensors: for a compound size, tensors would have to live longer.
        """
        out: dict[Size, tape.Number] = {}
        rows = dict(self._program.spaces)
        for ref, value in self._there.items():
            t = self._program.types[ref]
            dims: tuple[Size | None, ...] = ()
            if value is None:
                continue
            if isinstance(t, ir.Type):
                dims = (rows.get(t.space),)
            elif isinstance(t, ir.AnyType):
                dims = t.dims or ()
                if t.size is not None:
                    out.setdefault(t.size, tape.NumberOf(value))
            for d, size in enumerate(dims):
                if isinstance(size, Symbol):
                    out.setdefault(size, tape.DimOf(value, d))
        return out
