"""Replaces torch.sparse tensors by SparseMatrices before a call, and SparseMatrices by sparse tensors after it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from graphweave.frontends.dynamo.sparse_indices import Indices
from graphweave.frontends.dynamo.sparse_matrix import LAYOUTS, SparseMatrix, as_sparse, stand_in

Place = tuple[Any, Any]
"""A dict, list or cell, and the key under which it holds a value with sparse tensors."""

_MAX_DEPTH = 6
"""Objects are searched to this depth. PyG's HeteroData has a dict of stores, and each store is an object with a
dict."""

_LEAVES = frozenset({Tensor, nn.Parameter, int, float, bool, str, type(None)})
"""Types that are not searched. Most values have one of them; for PyG's HeteroData with nine stores this saves 10 us a
call."""

_NOT_SEARCHED = (Tensor, nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType)
"""Types whose attributes are not searched."""


class _Cell:
    """A variable of a closure, with the interface of a dict that has one key."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def __getitem__(self, key: str) -> Any:
        return self._cell.cell_contents

    def __setitem__(self, key: str, value: Any) -> None:
        self._cell.cell_contents = value


def is_sparse(x: Any) -> bool:
    return isinstance(x, Tensor) and type(x) is not SparseMatrix and x.layout in LAYOUTS


def taken_apart(x: Any) -> Any:
    """`x`, a tensor, list, tuple or dict, with a SparseMatrix for each sparse tensor. A changed container is a copy."""
    if is_sparse(x):
        return stand_in(x)
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


def places_in(objects: Iterator[Any] | tuple[Any, ...]) -> list[Place]:
    """The places of sparse tensors inside objects among the arguments (a dataclass, PyG's Data)."""
    found: list[Place] = []
    for x in objects:
        _search(x, found, _MAX_DEPTH)
    return found


def places_of(target: Callable[..., Any]) -> list[Place]:
    """The places of sparse tensors in a function or module: buffers, attributes, its closure, the globals it names."""
    found: list[Place] = []
    while isinstance(target, functools.partial):
        _search(target.args, found, 1)
        target = target.func
    owner = getattr(target, "__self__", target)
    if isinstance(owner, nn.Module):
        for module in owner.modules():
            _look(module._buffers, found)
            _look(module.__dict__, found)
    elif owner is not target:
        _search(owner, found, _MAX_DEPTH)
    function = getattr(target, "__func__", target)
    if isinstance(function, types.FunctionType):
        _look(
            {name: function.__globals__.get(name) for name in function.__code__.co_names}, found, function.__globals__
        )
        for cell in function.__closure__ or ():
            try:
                _look({"": cell.cell_contents}, found, _Cell(cell))
            except ValueError:  # a variable without a value yet
                continue
    return found


def _look(values: dict[str, Any], found: list[Place], container: Any = None) -> None:
    for key, value in values.items():
        if isinstance(value, Tensor | list | tuple | dict) and key[:1] != "__" and taken_apart(value) is not value:
            found.append((values if container is None else container, key))


def _search(x: Any, found: list[Place], depth: int) -> None:
    if type(x) in _LEAVES or depth < 0:
        return
    if isinstance(x, dict):
        for key, value in x.items():
            if is_sparse(value):
                found.append((x, key))
            else:
                _search(value, found, depth - 1)
    elif isinstance(x, (list, tuple)):
        for item in x:
            _search(item, found, depth - 1)
    elif hasattr(x, "__dict__") and not isinstance(x, _NOT_SEARCHED):
        _search(x.__dict__, found, depth - 1)


@contextmanager
def swapped(places: list[Place]) -> Iterator[None]:
    """Within the block, SparseMatrices are at the places. At its end, sparse tensors return to their places unless the
    function has set another value there."""
    originals = [(container, key, container[key]) for container, key in places]
    inside = [taken_apart(value) for _, _, value in originals]
    for (container, key, _), value in zip(originals, inside, strict=True):
        container[key] = value
    try:
        yield
    finally:
        for (container, key, original), value in zip(originals, inside, strict=True):
            if container[key] is value:
                container[key] = original
