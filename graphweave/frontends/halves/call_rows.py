"""The row counts of a program's spaces in one call, read off the arguments of that call."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors
from graphweave.core.sizes import Applied, Size, SizeOp, Symbol, as_python, leaves, number
from graphweave.core.types import UNIT, Space
from graphweave.frontends.calls.captured_sizes import expression, unbacked
from graphweave.frontends.importing.importer import Imported
from graphweave.frontends.importing.measure import RowCount
from graphweave.ir.message import nodes as ir

Numbers: TypeAlias = tuple[int, ...]
"""The values of a call's symbolic sizes, in the order of `CallRows.symbols`."""


@dataclass(frozen=True, slots=True)
class CallRows:
    """`names` are those of the arguments. `symbols` says for each symbolic size which argument has it, and in which dim
    (None: the argument is the number). `sizes` are the rows of spaces that are known before a call, and `counts` says
    how to count those that data decides. `indices` are the arguments from which maps are made."""

    names: tuple[str, ...]
    symbols: tuple[tuple[Symbol, int, int | None], ...]
    sizes: tuple[tuple[Space, Size], ...]
    counts: tuple[tuple[Space, RowCount], ...]
    indices: tuple[str, ...]

    @staticmethod
    def of(
        imported: Imported,
        names: Sequence[str],
        counts: Mapping[Space, RowCount],
        made: Iterable[tuple[Space, Size | None]] = (),
    ) -> CallRows:
        """The rows of an import's spaces, and of those that passes have `made`, by its first arguments, which have
        these `names`."""
        places: dict[Size, tuple[int, int | None]] = {}
        for at, ref in enumerate(imported.inputs[: len(names)]):
            value = imported.vals.get(ref)
            dims: list[tuple[int | None, Any]] = [(None, value)] if isinstance(value, torch.SymInt) else []
            if isinstance(value, Tensor):
                dims += enumerate(value.shape)
            for dim, size in dims:
                if isinstance(size, torch.SymInt):
                    places.setdefault(expression(size), (at, dim))
        known = {s: expression(n) for s, n in imported.space_rows.items() if not unbacked(n)}
        known.update({s: n for s, n in made if n is not None and s not in imported.space_rows and s not in counts})
        sizes = tuple((s, n) for s, n in known.items() if all(part in places for part in leaves(n)))
        used = dict.fromkeys(part for _, n in sizes for part in leaves(n) if isinstance(part, Symbol))
        symbols = tuple((symbol, *places[symbol]) for symbol in used)
        return CallRows(tuple(names), symbols, sizes, tuple(counts.items()), _indices(imported.program))

    def read(self, *, indices: bool) -> tuple[int, ...]:
        """The positions of the arguments that are read to count rows, and of all `indices` where these are measured."""
        names = {name for _, count in self.counts for name in count.names}.union(self.indices if indices else ())
        return tuple(at for at, name in enumerate(self.names) if name in names)

    def numbers(self, args: Sequence[Any]) -> Numbers:
        return tuple([args[at] if dim is None else args[at].shape[dim] for _, at, dim in self.symbols])

    def known_of(self) -> Callable[[Numbers], dict[Space, int]]:
        """A function of a call's numbers that gives the rows that sizes alone tell. It is asked for each graph of other
        sizes, and to walk the expressions of 400 sizes would take as long as the kernels, so those without a division
        are compiled."""
        symbols = [symbol for symbol, _, _ in self.symbols]
        names: dict[Size, str] = {symbol: f"n[{at}]" for at, symbol in enumerate(symbols)}
        compiled = {space: size for space, size in self.sizes if _is_number(size, names)}
        others = [(space, size) for space, size in self.sizes if space not in compiled]
        texts = [as_python(size, names) for size in compiled.values()]
        of_compiled: Callable[[Numbers], Numbers] = eval(f"lambda n: ({''.join(f'{text}, ' for text in texts)})")

        def known(numbers: Numbers) -> dict[Space, int]:
            rows = {UNIT: 1, **dict(zip(compiled, of_compiled(numbers), strict=True))}
            if others:
                values: dict[Size, int] = dict(zip(symbols, numbers, strict=True))
                rows.update((space, n) for space, size in others if (n := number(size, values)) is not None)
            return rows

        return known

    def most(self, known: Mapping[Space, int]) -> dict[Space, int]:
        """The most rows that each space may have whose rows data decides. Where that is not known, as many as the
        largest space that is."""
        largest = max(known.values(), default=0)
        return {
            space: largest if count.most is None else known.get(count.most, largest) for space, count in self.counts
        }

    def counted(self, args: Sequence[object], known: Mapping[Space, int]) -> dict[Space, int]:
        """`known` with the rows of spaces that data decides, of those that can be counted."""
        values, rows = dict(zip(self.names, args, strict=True)), dict(known)
        for space, count in self.counts:
            if (n := count.rows(values, rows)) is not None:
                rows[space] = n
        return rows


def _is_number(size: Size, names: Container[Size]) -> bool:
    """Whether `size` is a number whatever numbers the sizes with `names` are."""
    if size in names or isinstance(size, int):
        return True
    divides = (SizeOp.floor_div, SizeOp.modulo)
    return isinstance(size, Applied) and size.op not in divides and all(_is_number(part, names) for part in size.args)


def _indices(program: ir.Program) -> tuple[str, ...]:
    """The inputs from which the maps of a program are made that depend on the graph alone."""
    only = Facts(program).flow.graph_only
    needed = ancestors(program, [n.index for n in program.nodes if isinstance(n, ir.MapOf) and n.index in only])
    return tuple(n.name for r in sorted(needed) if isinstance(n := program.nodes[r], ir.Input))
