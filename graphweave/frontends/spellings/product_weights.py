"""Products of rows in any dim with matrices that all rows share, and the sums over rows that are their gradients.

einsum, matmul and PyG's `ARMAConv` have rows behind a dim of heads or stacks, [H, rows, K], or in the last dim, [K,
rows]. On flat rows (`product_shape.py`) each such call is a product with a matrix for each block of a row, or with one
matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from graphweave.frontends.calls.captured_sizes import rank
from graphweave.frontends.calls.row_rules import GRAM, PRODUCT
from graphweave.frontends.spellings.product_moves import FlatCall, FlatWriter
from graphweave.frontends.spellings.product_shape import ProductShape

aten = torch.ops.aten


def flat_product(node: fx.Node, shapes: ProductShape) -> FlatCall | None:
    """How to write a product of rows and shared matrices with flat forms."""
    if node.target not in (aten.bmm.default, aten.mm.default):
        return None
    a: Any
    b: Any
    a, b = node.args[:2]
    first, last = rank(node) - 2, rank(node) - 1
    match tuple(map(shapes.rows, (a, b, node))):
        case (x, (), y) if x == y == (first,):
            return FlatCall(lambda w: _times(w, w.flat(a), b), (a,))
        case ((), x, y) if x == y == (last,):
            return FlatCall(lambda w: _times(w, w.flat(b), _transposed(w, a)), (b,))
        case (x, y, ()) if x == (last,) and y == (first,) and shapes.names(a) == shapes.names(b):
            return FlatCall(lambda w: _outer(w, w.flat(a), w.flat(b)), (a, b))
        case _:
            return None


def _transposed(w: FlatWriter, x: fx.Node) -> fx.Node:
    return w.call(aten.t.default, x) if rank(x) == 2 else w.call(aten.permute.default, x, [0, 2, 1])


def _times(w: FlatWriter, rows: fx.Node, weights: fx.Node) -> fx.Node:
    """Rows times a matrix, or each of their blocks times its matrix."""
    if rank(weights) == 2:
        return w.call(aten.mm.default, rows, weights)
    return w.call(aten.einsum.default, PRODUCT, [rows, weights])


def _outer(w: FlatWriter, x: fx.Node, y: fx.Node) -> fx.Node:
    """The sum over rows of the outer products of two rows, or of their blocks."""
    if rank(x) == 2:
        return w.call(aten.mm.default, w.call(aten.t.default, x), y)
    return w.call(aten.einsum.default, GRAM, [x, y])
