"""`dgl.utils`: what layers written for DGL import from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from graphweave.dgl.graph import DGLGraph

__all__ = ["apply_each", "check_eq_shape", "expand_as_pair", "is_sorted_srcdst"]

from graphweave.core.errors import DataError


def expand_as_pair(input_: Any, g: DGLGraph | None = None) -> tuple[Any, Any]:
    """The features of sources and of destinations from a layer's argument.

    A tuple is taken as it is. For a block, destinations are the first rows of the sources; of a dict, type -> tensor,
    for each type. Otherwise both are the argument.
    """
    if isinstance(input_, tuple):
        return input_
    if g is None or not g.is_block:
        return input_, input_
    if isinstance(input_, Mapping):
        return input_, {t: x[: g.num_dst_nodes(t)] for t, x in input_.items() if t in g.dsttypes}
    return input_, input_[: g.num_dst_nodes()]


def check_eq_shape(input_: object) -> None:
    """DataError if the features of sources and destinations have rows of different shapes."""
    src, dst = expand_as_pair(input_)
    if src.shape[1:] != dst.shape[1:]:
        raise DataError(
            f"expected rows of one shape for sources and destinations (got {list(src.shape[1:])} and"
            f" {list(dst.shape[1:])}). Give them the same features."
        )


def is_sorted_srcdst(src: Tensor, dst: Tensor, num_src: object = None, num_dst: object = None) -> tuple[bool, bool]:
    """Whether sources do not decrease, and whether destinations do not decrease among edges of one source."""
    rows = bool((src[1:] >= src[:-1]).all())
    return rows, rows and bool(((dst[1:] >= dst[:-1]) | (src[1:] != src[:-1])).all())


def apply_each(data: object, fn: Callable[..., object], *args: object, **options: object) -> Any:
    """`fn` of each value of a dict, of each element of a list or tuple, or of a single value."""
    if isinstance(data, Mapping):
        return {key: fn(value, *args, **options) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [fn(value, *args, **options) for value in data]
    return fn(data, *args, **options)
