"""Functions of PyG on edges that look into tensors to choose a branch, as formulas that do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from graphweave.frontends.tracing import torch_scatter_formulas
from graphweave.frontends.tracing.pyg_formulas import _num_nodes

_TOO_MANY = 3_037_000_499
"""The largest number of nodes whose square is an int64. PyG numbers an edge by its source and destination together."""


def _coalesced(
    edge_index: Tensor, edge_attr: Any = "???", num_nodes: Any = None, reduce: str = "sum", is_sorted: bool = False,
    sort_by_row: bool = True,
) -> Any:  # fmt: skip
    """PyG's `coalesce`: sorted edges, each once, and the features of equal edges reduced. The original asks whether any
    are equal, and returns early if not."""
    from torch_geometric.utils import scatter  # optional, but already imported if this is called

    if reduce == "mean" and not all([e.is_floating_point() for e in _as_list(edge_attr)]):
        return _whole(edge_index, edge_attr, num_nodes, reduce, is_sorted, sort_by_row)
    edge_index, features, key = _sorted(edge_index, _as_list(edge_attr), num_nodes, is_sorted, sort_by_row)
    before = torch.cat([key.new_full((1,), -1), key])[:-1]
    first = key > before
    edge_index = edge_index[:, first]
    group = first.cumsum(0) - 1
    features = [scatter(e, group, 0, edge_index.size(1), reduce) for e in features]
    return _given_as(edge_attr, edge_index, features)


@torch._dynamo.disable(reason="data decides the dtype of a mean of integers")
def _whole(*args: Any) -> Any:
    from torch_geometric.utils import coalesce  # optional, but already imported if this is called

    return coalesce(*args)


def _sorted_edges(edge_index: Tensor, edge_attr: Any = "???", num_nodes: Any = None, sort_by_row: bool = True) -> Any:
    """PyG's `sort_edge_index`. The original asks whether the numbers of edges fit into an int64."""
    edge_index, features, _ = _sorted(edge_index, _as_list(edge_attr), num_nodes, False, sort_by_row)
    return _given_as(edge_attr, edge_index, features)


def _sorted(
    edge_index: Tensor, features: list[Tensor], num_nodes: Any, is_sorted: bool, sort_by_row: bool
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Sorted edges and their features, and the number of each edge: n times one end plus the other, of n nodes."""
    nodes = _num_nodes(edge_index, num_nodes)
    torch._check(nodes <= _TOO_MANY, lambda: "the square of the number of nodes overflows an int64")
    major, minor = (edge_index[0], edge_index[1]) if sort_by_row else (edge_index[1], edge_index[0])
    key = major * nodes + minor
    if is_sorted:
        return edge_index, features, key
    key, order = key.sort()
    return edge_index[:, order], [e[order] for e in features], key


def _as_list(edge_attr: Any) -> list[Tensor]:
    if isinstance(edge_attr, Tensor):
        return [edge_attr]
    return list(edge_attr) if isinstance(edge_attr, list | tuple) else []


def _given_as(edge_attr: Any, edge_index: Tensor, features: list[Tensor]) -> Any:
    """Edges and features in the form in which the features were given: none at all, None, a tensor or a list."""
    if isinstance(edge_attr, str):
        return edge_index
    if isinstance(edge_attr, Tensor):
        return edge_index, features[0]
    return edge_index, None if edge_attr is None else features


FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_geometric.utils._coalesce", "coalesce", _coalesced),
    ("torch_geometric.utils._sort_edge_index", "sort_edge_index", _sorted_edges),
    *torch_scatter_formulas.FORMULAS,
)
"""Module, function, and the formula that is traced where its first argument is a plain tensor."""
