"""Replaces torch.sparse tensors by SparseMatrices before a call, and SparseMatrices by sparse tensors after it. An
index without edges is replaced by one with the strides of an index with edges."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, strided

from graphweave.frontends.sparse.sparse_indices import Indices
from graphweave.frontends.sparse.sparse_matrix import LAYOUTS, SparseMatrix, as_sparse, stand_in

Place = tuple[Any, Any]
"""A dict, a list or an object with its interface, and the key under which it holds a value that is replaced."""


def is_sparse(x: object) -> bool:
    return isinstance(x, Tensor) and type(x) is not SparseMatrix and x.layout in LAYOUTS


def is_without_edges(x: object) -> bool:
    """Whether `x` is a dense tensor of integers without elements, in which strides have no meaning."""
    return (
        isinstance(x, Tensor)
        and x.layout is strided
        and not x.numel()
        and not x.is_floating_point()
        and x.is_contiguous()
    )


def with_strides_of_edges(index: Tensor) -> Tensor:
    """`index`, which is without edges, with the strides that the formula for edges gives: 0 where PyTorch writes 1.
    Compiled code has guards on strides, and PyTorch does not trace a symbolic size of 0 between other strides. A view
    would have guards on what it is a view of."""
    strides = tuple(math.prod(index.shape[d + 1 :]) for d in range(index.dim()))
    return index if index.stride() == strides else index.new_empty_strided(index.shape, strides)


def taken_apart(x: Any) -> Any:
    """`x`, a tensor, list, tuple or dict, with a SparseMatrix for each sparse tensor, and other strides for each index
    without edges. A changed container is a copy."""
    if is_sparse(x):
        return stand_in(x)
    if is_without_edges(x):
        return with_strides_of_edges(x)
    if isinstance(x, list | tuple):
        items = [taken_apart(item) for item in x]
        if all(new is old for new, old in zip(items, x, strict=True)):
            return x
        return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
    if type(x) is dict:
        values = {key: taken_apart(item) for key, item in x.items()}
        return x if all(values[key] is x[key] for key in x) else values
    return x


def given_back(out: Any) -> Any:
    """The results of a compiled function, with sparse tensors in place of SparseMatrices."""
    if type(out) is SparseMatrix:
        return as_sparse(out)
    if type(out) is Indices:
        return out.gw_plain
    if type(out) in (list, tuple):
        items = [given_back(item) for item in out]
        return out if all(new is old for new, old in zip(items, out, strict=True)) else type(out)(items)
    if type(out) is dict:
        values = {key: given_back(item) for key, item in out.items()}
        return out if all(values[key] is out[key] for key in out) else values
    return out


@contextmanager
def swapped(places: list[Place]) -> Iterator[None]:
    """Within the block, the places hold what is traced: SparseMatrices, and indices with strides of edges. At its end,
    the user's tensors return to their places unless the function has set another value there. One value at several
    places stays one."""
    originals = [(container, key, container[key]) for container, key in places]
    once = {id(value): value for _, _, value in originals}
    traced = {number: taken_apart(value) for number, value in once.items()}
    inside = [traced[id(value)] for _, _, value in originals]
    for (container, key, _), value in zip(originals, inside, strict=True):
        container[key] = value
    try:
        yield
    finally:
        for (container, key, original), value in zip(originals, inside, strict=True):
            if container[key] is value:
                container[key] = original
