"""Measures sizes that data decides on the graph of the first call, for the cost model.

Shapes do not say how many (source, relation) pairs there are, or how many edges a mask keeps. Only index tensors are
read, once for each compilation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class GraphAtHand:
    """Measures rows on the inputs `values` of this call, keyed by their names in the program: `measure(facts, ref)`.

    `rows` are the row counts of spaces that are known already.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values
        self.rows: dict[Space, int] = {}

    def __call__(self, facts: Facts, ref: ir.Ref) -> int | None:
        """The rows of `ref`; None if it depends on more than the graph, or if an input is not known."""
        value = self.value(facts, ref)
        return None if value is None else int(value.shape[0])

    def value(self, facts: Facts, ref: ir.Ref) -> Tensor | None:
        """The tensor `ref`; None as above."""
        program = facts.program
        if ref not in facts.flow.graph_only:
            return None
        needed = ancestors(program, (ref,))
        inputs = [r for r, n in enumerate(program.nodes) if isinstance(n, ir.Input) and r in needed]
        names = [n.name for r in inputs if isinstance(n := program.nodes[r], ir.Input)]
        if not all(name in self.values for name in names):
            return None
        part = extract(program, inputs, [ref]).program
        try:
            with unset_fake_temporarily(), torch.no_grad():
                (value,) = interp(part, {name: self.values[name] for name in names}, self.rows)
        except (GraphweaveError, RuntimeError) as reason:  # an index out of range is refused when the program runs
            _log.info("a value that data decides is not known: %s", reason)
            return None
        return value if isinstance(value, Tensor) else None


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
