"""Facts about one program as a whole. Each fact is computed when it is first asked for, and kept.

    facts.flow          users, seeds, spaces of edges, what depends on tangents or on the graph alone (`flow.py`)
    facts.tiled         products on edges that kernels compute in tiles (`tiles.py`)
    facts.row_products  products that regions may compute for tiles of rows (`row_products.py`)
    facts.cones         what nodes need as kernels see it, and along which map they are computed (`cones.py`)
    facts.stored_rows   values of edges that one walk stores for the others (`stored_rows.py`)
    facts.hoist         graph-only values to keep from call to call, and checks to make once for each graph (`hoist.py`)

Facts that follow from a node and its operands alone are plain functions (`typed.py`, `type_of`, `is_view`).
"""

from __future__ import annotations

from functools import cached_property

from graphweave.analysis.cones import Cones, EdgeWalks
from graphweave.analysis.flow import Flow
from graphweave.analysis.hoist import Hoist
from graphweave.analysis.remembered import remembered
from graphweave.analysis.row_products import row_products
from graphweave.analysis.stored_rows import saved_rows, stored_rows
from graphweave.analysis.tiles import tiled_products
from graphweave.ir.message.nodes import Program, Ref


class Facts:
    """The facts of `program`. Whoever makes a program makes them, and passes them on to every reader of it.

    `operands` are those of its nodes, where its maker knows them.
    """

    def __init__(
        self, program: Program, operands: tuple[tuple[Ref, ...], ...] | None = None, walks: EdgeWalks | None = None
    ) -> None:  # fmt: skip
        self.program, self._operands, self._walks = program, operands, walks or EdgeWalks()

    def __getstate__(self) -> dict[str, object]:
        """The program, and what its maker knows: the facts themselves follow from these."""
        return {"program": self.program, "_operands": self._operands, "_walks": self._walks}

    def walked(self, walks: EdgeWalks) -> Facts:
        """The facts where edges are walked otherwise."""
        return self if walks == self._walks else Facts(self.program, self._operands, walks)

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.program, self._operands)

    @cached_property
    def tiled(self) -> frozenset[Ref]:
        return tiled_products(self.program, self.flow)

    @cached_property
    def row_products(self) -> frozenset[Ref]:
        return row_products(self.program, self.tiled)

    @cached_property
    def cones(self) -> Cones:
        return Cones(self.program, self.flow, self.tiled, self._walks)

    @cached_property
    def stored_rows(self) -> frozenset[Ref]:
        return stored_rows(self.program, self.flow, self.cones)

    @remembered
    def saved_rows(self, tangents: frozenset[Ref]) -> frozenset[Ref]:
        """The values of edges that the forward stores for itself and for the backward, whose inputs are `tangents`."""
        return saved_rows(self.program, self.flow, self.cones, tangents)

    @cached_property
    def hoist(self) -> Hoist:
        return Hoist(self.program, self.flow, self.cones)
