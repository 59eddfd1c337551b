"""Measures sizes that data decides on the graph of the first call, for the cost model.

Shapes do not say how many (source, relation) pairs there are, or how many edges a mask keeps. Only index tensors are
read, once for each compilation. How a space was counted is kept as a program, so that the rows of other graphs can be
counted in the same way (`RowCount`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphweave.analysis.facts import Facts
from graphweave.analysis.flow import ancestors, extract
from graphweave.core.errors import GraphweaveError
from graphweave.core.log import logger
from graphweave.core.types import Space
from graphweave.frontends.calls.captured_sizes import Size, hint
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.interp import interp

_log = logger(__name__)

_COUNTED_EXACTLY = 1 << 14
"""Up to this many rows, different ones are counted by sorting all. Of more, about this many are looked at."""
_ODD = -7046029254386353131
"""A 64-bit number whose multiples are spread evenly: 2^64 divided by the golden ratio, as a signed number."""


@dataclass(frozen=True, slots=True)
class RowCount:
    """A program of index tensors alone that counts the rows of a space: they are the rows of its only output or, with
    `distinct`, the different rows of its outputs together. There are at most as many as rows of `most` (None: no space
    with more rows is known)."""

    program: ir.Program
    distinct: bool
    most: Space | None

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that it reads."""
        return tuple(n.name for n in self.program.nodes if isinstance(n, ir.Input))

    def rows(self, values: Mapping[str, object], known: Mapping[Space, int]) -> int | None:
        """The number of rows in the graph of `values`; None if it cannot be counted."""
        found = _computed(self.program, values, known)
        tensors = [value for value in found or () if isinstance(value, Tensor)]
        if found is None or len(tensors) != len(found):
            return None
        return count_distinct(tensors) if self.distinct else int(tensors[0].shape[0])

    @staticmethod
    def of(facts: Facts, ref: ir.Ref) -> RowCount:
        """The rows of a value that depends on the graph alone."""
        node, t = facts.program.nodes[ref], facts.program.types[ref]
        made = facts.program.nodes[node.distinct] if isinstance(node, ir.DistinctKey) else None
        if isinstance(made, ir.Distinct):
            key = facts.program.types[made.keys[0]]
            return RowCount(_alone(facts.program, made.keys), True, key.space if isinstance(key, ir.Type) else None)
        assert isinstance(t, ir.Type)
        return RowCount(_alone(facts.program, (ref,)), False, None)


class GraphAtHand:
    """Measures rows on the inputs `values` of this call, keyed by their names in the program: `measure(facts, ref)`.

    `rows` are the row counts of spaces that are known already. `counted` are those of other spaces that were asked for,
    and `counts` says how.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.rows: dict[Space, int] = {}
        self.counted: dict[Space, int] = {}
        self.counts: dict[Space, RowCount] = {}

    def __call__(self, facts: Facts, ref: ir.Ref) -> int | None:
        """The rows of `ref`; None if it depends on more than the graph, or if an input is not known."""
        value = self.value(facts, ref)
        if value is None:
            return None
        t, rows = facts.program.types[ref], int(value.shape[0])
        if isinstance(t, ir.Type):
            self.counts[t.space], self.counted[t.space] = RowCount.of(facts, ref), rows
        return rows

    def value(self, facts: Facts, ref: ir.Ref) -> Tensor | None:
        """The tensor `ref`; None as above."""
        if ref not in facts.flow.graph_only:
            return None
        found = _computed(_alone(facts.program, (ref,)), self.values, self.rows)
        value = None if found is None else found[0]
        return value if isinstance(value, Tensor) else None


def _alone(program: ir.Program, refs: Sequence[ir.Ref]) -> ir.Program:
    """The part of `program` that computes `refs`, with the inputs that these need."""
    needed = ancestors(program, refs)
    inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, ir.Input) and r in needed]
    return extract(program, inputs, refs).program


def _computed(program: ir.Program, values: Mapping[str, object], rows: Mapping[Space, int]) -> Sequence[object] | None:
    """The outputs of a program; None if one of its inputs is not known, or does not fit."""
    names = [n.name for n in program.nodes if isinstance(n, ir.Input)]
    if not all(name in values for name in names):
        return None
    try:
        with unset_fake_temporarily(), torch.no_grad():
            return interp(program, {name: values[name] for name in names}, dict(rows))
    except (GraphweaveError, RuntimeError) as reason:  # an index out of range is refused when the program runs
        _log.info("a value that data decides is not known: %s", reason)
        return None


def count_distinct(keys: Sequence[Tensor]) -> int:
    """About the number of different rows of index tensors, which have one row for each edge.

    The rows are hashed, and those whose hash falls into one of 2^k equal parts are counted, of which there are about
    _COUNTED_EXACTLY. All copies of a row have one hash, so the count times 2^k is right but for a hundredth. One pass
    over the edges costs less than the sort that a space of pairs takes.
    """
    mixed = torch.zeros_like(keys[0], dtype=torch.int64)
    for key in keys:
        mixed = (mixed + key.long()) * _ODD
        mixed ^= mixed >> 31
    parts = 1
    while mixed.numel() // parts > _COUNTED_EXACTLY:
        parts *= 2
    if parts > 1:
        mixed = mixed[((mixed * _ODD) >> 40) & (parts - 1) == 0]
    return int(torch.unique(mixed).numel()) * parts


def example_values(names: Sequence[str], fakes: Sequence[Any], examples: Sequence[Any]) -> dict[str, Tensor | int]:
    """The first call's inputs by name, for those that certainly belong to the placeholders `names`."""
    out: dict[str, Any] = {}
    for name, fake, real in zip(names, fakes, examples, strict=False):
        if isinstance(fake, torch.SymInt) and isinstance(real, int | torch.SymInt):
            known = hint(fake)
            out[name] = int(real) if known is None else known
            continue
        plain = isinstance(fake, torch.Tensor) and type(real) in (torch.Tensor, torch.nn.Parameter)
        if plain and fake.dtype == real.dtype and fake.dim() == real.dim():
            out[name] = real
    return out


def known_rows(program: ir.Program, sizes: Mapping[Space, Size], measure: GraphAtHand) -> dict[Space, int]:
    """The row counts in this call: given by shapes, or measured where data decides them."""
    rows = {space: known for space, size in sizes.items() if (known := hint(size)) is not None}
    measure.rows, facts = rows, Facts(program)
    for space in sizes:
        on = (r for r, t in enumerate(program.types) if isinstance(t, ir.Type) and t.space == space)
        known = next((n for r in on if (n := measure(facts, r)) is not None), None) if space not in rows else None
        if known is not None:
            rows[space] = known
    return rows
