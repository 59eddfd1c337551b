"""Arguments of a compiled function as they are traced, and which of their widths are compiled in."""

from __future__ import annotations

import operator
from collections.abc import ItemsView, Iterable, ValuesView
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphweave.frontends.sparse.sparse_arguments import is_sparse, is_without_edges, with_strides_of_edges
from graphweave.frontends.sparse.sparse_matrix import stand_in

_PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types of numbers and words that are traced as they are."""


def are_plain(arguments: Iterable[Any]) -> bool:
    """Whether arguments are traced as they are and hold no sparse tensor: dense tensors with elements, numbers, words.
    Most are, and to ask more of each takes a microsecond."""
    for arg in arguments:
        kind = type(arg)
        if kind is torch.Tensor:
            if arg.layout is not torch.strided or not arg.numel():
                return False
        elif kind not in _PLAIN:
            return False
    return True


def as_traced(arg: Any) -> object:
    """The value that is traced in place of an argument. A sparse tensor becomes a SparseMatrix. An index without edges
    gets the strides of an index with edges, since compiled code has guards on strides.

    Items of lists and dicts are replaced too, since models of several types of edges take these. A list or dict is
    copied if one of its items is replaced. The values or items of a dict, over which a trace cannot loop, become a
    list.
    """
    if are_plain((arg,)):
        return arg
    if isinstance(arg, ValuesView | ItemsView):
        return as_traced(list(arg))
    if type(arg) in (list, tuple):
        items = [as_traced(x) for x in arg]
        return arg if all(map(operator.is_, items, arg)) else type(arg)(items)
    if type(arg) is dict:
        values = {key: as_traced(x) for key, x in arg.items()}
        return arg if all(map(operator.is_, values.values(), arg.values())) else values
    if is_sparse(arg):
        return stand_in(arg)
    return with_strides_of_edges(arg) if is_without_edges(arg) else arg


class Widths:
    """Which arguments of a compiled function have a width that is compiled in.

    Feature widths are few, and kernels for a known width are faster. But a matrix from rows to rows, such as a dense
    adjacency matrix or a mask of nodes in batches, is as wide as there are nodes, so that every graph would need a
    compilation. The width of an argument that was the number of rows of some argument in all compilations so far, and
    not always the same, is a symbol. All dims but the last of an argument with three or more may be rows.
    """

    def __init__(self) -> None:
        self._seen: dict[int, set[tuple[int, bool]]] = {}

    def are_fixed(self, position: int, arguments: tuple[object, ...]) -> bool:
        """Whether the width of the `position`th of `features_in(arguments)` is compiled in. Called once for each
        compilation, with the arguments of the call that needs it."""
        seen = self._note(position, features_in(arguments)[position].size(1), arguments)
        return len(seen) == 1 or not all(as_rows for _, as_rows in seen)

    def note(self, arguments: tuple[object, ...]) -> None:
        """Take note of the arguments of a call for which a compilation was found."""
        for position, tensor in enumerate(features_in(arguments)):
            self._note(position, tensor.size(1), arguments)

    def _note(self, position: int, width: int, arguments: tuple[object, ...]) -> set[tuple[int, bool]]:
        tensors = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor)]
        rows = {n for t in tensors for n in (t.shape[:1] if t.dim() < 3 else t.shape[:-1])}
        seen = self._seen.setdefault(position, set())
        seen.add((width, width in rows))
        return seen


def features_in(arguments: object) -> list[torch.Tensor]:
    """The dense tensors of floating point with rows among arguments, in their order."""
    return [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor) and is_features(x)]


def is_features(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and t.is_floating_point() and t.dim() > 1
