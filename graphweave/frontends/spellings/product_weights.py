"""Products of rows in any dim with matrices that all rows share, and the sums over rows that are their gradients.

einsum, matmul and PyG's `ARMAConv` have rows behind a dim of heads or stacks, [H, rows, K], or in the last dim, [K,
rows]. On flat rows (`product_shape.py`) each such call is a product with a matrix for each block of a row, or with one
matrix. matmul repeats a matrix for each item of a batch, [batch, K, J], which has all rows of the batch in one product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from graphweave.core.calls import Elements, Lead
from graphweave.frontends.calls.call_facts import facts
from graphweave.frontends.calls.captured_sizes import fixed, is_tensor, rank, same, shape
from graphweave.frontends.calls.row_rules import GRAM, PRODUCT, permutation
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
        case (x, (0,), y) if x == y == (0, 1) and (weights := _repeated_matrix(b)) is not None:
            return FlatCall(lambda w: w.call(aten.mm.default, w.flat(a), weights(w)), (a,))
        case ((), x, y) if x == y == (last,):
            return FlatCall(lambda w: _times(w, w.flat(b), _transposed(w, a)), (b,))
        case (x, y, ()) if x == (last,) and y == (first,) and shapes.names(a) == shapes.names(b):
            return FlatCall(lambda w: _outer(w, w.flat(a), w.flat(b)), (a, b))
        case _:
            return None


def _repeated_matrix(x: fx.Node) -> Callable[[FlatWriter], fx.Node] | None:
    """How to write the one matrix that `x` [batch, K, J] repeats for each item; None if it has several."""
    of: Any = x.args[0] if x.op == "call_function" and x.args else None
    if not is_tensor(of) or rank(of) < 2:
        return None
    known = facts(x.target)
    if known.rows is Lead.permuted and permutation(x)[-2:] == (rank(x) - 1, rank(x) - 2):
        plain = _repeated_matrix(of)
        return None if plain is None else lambda w: w.call(aten.t.default, plain(w))
    if not all(map(same, shape(of)[-2:], shape(x)[-2:])):
        return None
    if known.rows is Lead.repeated and all(fixed(n) == 1 for n in shape(of)[:-2]):
        return lambda w: w.call(aten.reshape.default, of, [int(n) for n in shape(x)[-2:]])
    return _repeated_matrix(of) if known.elements in (Elements.same, Elements.reshaped) else None


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
