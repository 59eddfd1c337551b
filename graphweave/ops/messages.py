"""Functions of one edge called on the rows of all edges."""

from __future__ import annotations

from torch import Tensor

from graphweave.core.edge_functions import EdgeFunction, Features, NamedMessage
from graphweave.core.errors import DataError
from graphweave.ops.ends import differ


def evaluated(what: str, function: EdgeFunction, src: Features, dst: Features, edge: Features) -> Tensor:
    """`function` of rows that are gathered already; plain PyTorch."""
    out = function(src, dst, edge)
    if not isinstance(out, Tensor):
        raise DataError(f"{what} must return a tensor (got {type(out).__name__}). Return one row for each edge.")
    return out


def is_built_in(function: EdgeFunction) -> bool:
    return isinstance(function, NamedMessage)


def gathered(x: Features, index: Tensor) -> Features:
    """One row for each edge, in the form of `x`."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    return {name: field.index_select(0, index) for name, field in x.items()}


def on_edges(
    what: str, function: EdgeFunction, src_index: Tensor, dst_index: Tensor, src: Features, dst: Features,
    edge: Features,
) -> Tensor:  # fmt: skip
    """`function` of all edges, [edges, ...]. DataError for a result that has not one row for each edge."""
    out = evaluated(what, function, gathered(src, src_index), gathered(dst, dst_index), edge)
    if out.dim() == 0 or differ(out.shape[0], src_index.shape[0]):
        raise DataError(
            f"{what} returned a tensor of shape {list(out.shape)}, but there are {src_index.shape[0]} edges."
            " Return one row for each edge."
        )
    return out
