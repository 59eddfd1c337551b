"""Products of rows in a kernel: loops over the rows of a tile, the products between them, and the arrays they share.

    tile t < 64
      array a: f32[t; 64]
      rows of t { passes over the edges of a row, row-wise members; a[v, c] = the product's operand }
      array h: f32[t; 64]
      matmul h = a, w of t
      rows of t { y[v, c] = relu(add(h[v, c], b[c])) }
      gram g = x, h of t

Edges come before all products of a row (`lower/grouping.py`). After them come stages: members with equally many
products on the longest path to them are computed in one loop. A value that a product or a later stage reads is copied
to an array of the tile, unless it is in memory with a row for each of the kernel's: products read it there.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from graphweave.analysis.cones import type_of
from graphweave.analysis.typed import below
from graphweave.core.types import Fold
from graphweave.ir.loop import nodes as loop
from graphweave.ir.message import nodes as ir
from graphweave.ir.message.infer import numel
from graphweave.lower.draft import Draft
from graphweave.lower.expressions import ValueScope
from graphweave.lower.online import passes_of
from graphweave.lower.parameters import value_name
from graphweave.lower.row_body import RowBody

TILE = "near"
_MIN_ROWS, _MAX_ROWS = 16, 64
"""Bounds on the rows of a tile. With 8 rows, six products of 128 x 128 in a kernel took a tenth longer than with 16."""
_STEP = 8
"""The rows of a tile are a multiple of this."""


class RowTiles:
    """The work of a kernel for each tile of rows."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._program, self._products = draft, draft.program, draft.region.products
        self._level: dict[ir.Ref, int] = {}  # of members and operands: the products on the longest path to them
        self._ready: dict[ir.Ref, int] = {}  # of products: the level of their operands
        self._place: dict[ir.Ref, str] = {}  # arrays of the tile that hold a value
        self._arrays: dict[str, loop.TileArray] = {}
        for r in draft.region.members:
            self._level[r] = max((self._level[d] for d in draft.local(r)), default=0)
            if r in self._products:
                self._ready[r] = self._level[r]
                self._level[r] += not isinstance(self._program.nodes[r], ir.Gram)
        self._made = self._recomputed_operands()
        self._multiplied = Counter(x for p in self._products for x in self._operands(p))
        self._readers: dict[ir.Ref, list[ir.Ref]] = defaultdict(list)  # of members: readers other than products
        for r in (*draft.region.members, *self._made):
            for d in draft.local(r) if r not in self._products else ():
                self._readers[d].append(r)
        self._sink()

    def _recomputed_operands(self) -> list[ir.Ref]:
        """Operands that are recomputed wherever they are read, and so are not in memory."""
        draft, found = self._draft, []
        for x in sorted({x for p in self._products for x in self._operands(p)}):
            if x not in draft.members and all(x not in draft.needs[p].same for p in self._products):
                draft.needs[x] = draft.cones.leaves([x], draft.stored)
                self._level[x] = max((self._level[d] for d in draft.local(x)), default=0)
                found.append(x)
        return found

    def _sink(self) -> None:
        """Move members computed from memory alone to the level that first reads them, so that they need no array."""
        draft = self._draft
        pure: set[ir.Ref] = set()
        for r in draft.region.members:
            if r not in draft.on_edges and r not in self._products and pure.issuperset(draft.local(r)):
                pure.add(r)
        for r in sorted(pure - self._multiplied.keys(), reverse=True):
            self._level[r] = min((self._level[m] for m in self._readers[r]), default=self._level[r])

    def _operands(self, product: ir.Ref) -> list[ir.Ref]:
        """The values that a product reads for each row; for a view, the value of which it is a view."""
        match self._program.nodes[product]:
            case ir.MatMul(x):
                refs = [x]
            case ir.AddMatMul(a, x):
                refs = [x, a]
            case ir.Gram(x, y):
                refs = [x, y]
            case node:
                raise AssertionError(f"{node} is no product")
        return [below(self._program, r) for r in refs]

    # -------------------------------------------------------- statements

    def statements(self) -> list[loop.Stmt]:
        draft, passes = self._draft, passes_of(self._draft)
        out: list[loop.Stmt] = []
        for level in range(max(self._level.values()) + 1):
            here = [r for r in (*draft.region.members, *self._made) if self._level[r] == level]
            kept = {r: self._array(r) for r in here if r not in self._products and self._is_kept(r)}
            members = [r for r in here if r in draft.members and not self._is_written(r)]
            body = RowBody(draft, members, passes, kept).statements()
            out += [self._arrays[name] for name in kept.values()]
            out += [loop.TileRows(TILE, tuple(body))] if body else []
            self._place |= kept
            draft.row = ValueScope(self._program)
            draft.row.at.update((r, (name, (loop.Var("v"),))) for r, name in self._place.items())
            for p in draft.region.members:
                if self._ready.get(p) == level:
                    out += self._product(p)
        return out

    def tile(self) -> tuple[str, int]:
        """The name of the tile and the most rows that it may have for its arrays to stay in a near cache."""
        row = sum(numel(a.shape) * a.dtype.itemsize for a in self._arrays.values())
        if self._draft.options.row_tile is not None:
            return TILE, self._draft.options.row_tile
        rows = self._draft.options.tile_bytes // max(row, 1)
        return TILE, max(_MIN_ROWS, min(_MAX_ROWS, rows - rows % _STEP))

    def _is_kept(self, ref: ir.Ref) -> bool:
        """Whether products or later stages read the value."""
        return ref in self._multiplied or any(self._level[m] > self._level[ref] for m in self._readers[ref])

    def _is_written(self, ref: ir.Ref) -> bool:
        """Whether the product `ref` writes straight to its tensor, since nothing in the kernel reads its result."""
        return ref in self._products and ref not in self._multiplied and not self._readers[ref]

    def _product(self, ref: ir.Ref) -> list[loop.Stmt]:
        draft, node = self._draft, self._program.nodes[ref]
        first, *others = (self._rows_of(r) for r in self._operands(ref))
        if isinstance(node, ir.Gram):
            total = draft.parameters.tensor(ref, loop.Role.total, Fold.sum)
            return [*draft.comment(ref), loop.TileGram(TILE, total, first, others[0])]
        assert isinstance(node, ir.MatMul | ir.AddMatMul)
        draft.read_at_row(node.w)
        weight, _ = draft.row.at[node.w]
        out: list[loop.Stmt] = draft.comment(ref)
        if self._is_written(ref):
            to = draft.parameters.tensor(ref, loop.Role.output)
        elif isinstance(node, ir.AddMatMul) and self._is_free(below(self._program, node.a)):
            to = self._place[ref] = others[0]
        else:
            to = self._place[ref] = self._array(ref)
            out.append(self._arrays[to])
        if ref in self._place:
            draft.row.at[ref] = (to, (loop.Var("v"),))
        return [*out, loop.TileMatMul(TILE, to, first, weight, others[0] if others else None)]

    def _is_free(self, added: ir.Ref) -> bool:
        """Whether only the product that adds to `added` reads it, so that the product may use its array."""
        return added in self._place and self._multiplied[added] == 1 and not self._readers[added]

    def _rows_of(self, ref: ir.Ref) -> str:
        return self._place[ref] if ref in self._place else self._draft.parameters.tensor(ref)

    def _array(self, ref: ir.Ref) -> str:
        t = type_of(self._program, ref)
        array = loop.TileArray(f"{value_name(self._program, ref)}_tile", TILE, t.dtype, (numel(t.shape),))
        self._arrays[array.name] = array
        return array.name
