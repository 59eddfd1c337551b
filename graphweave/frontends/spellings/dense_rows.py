"""Writes what is computed row by row between products of batches of matrices on flat rows: [graphs * nodes, features].

Dense batches, [graphs, nodes, features] with a mask, have no index that moves rows. Their rows are known from the
products. Only calls whose flat forms are views, and that need no numbers of rows, are written so.
"""

from __future__ import annotations

from torch import fx

from graphweave.frontends.spellings.product_rows import on_flat_rows
from graphweave.frontends.spellings.product_shape import multiplies_batches


def dense_to_rows(gm: fx.GraphModule) -> fx.GraphModule:
    """`gm`, or a copy in which what is computed row by row for batches of matrices works on flat rows."""
    return on_flat_rows(gm, dense=True) if any(map(multiplies_batches, gm.graph.nodes)) else gm
