"""Functions of PyG, torch_scatter and torch_sparse that look into tensors to choose a branch, or are C++ that no trace
can run, and the formulas that do neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from graphweave.frontends.sparse import scatter_functions
from graphweave.frontends.sparse import torch_sparse_functions as sparse
from graphweave.frontends.tracing.pyg_formulas import _num_nodes

_TOO_MANY = 3_037_000_499
"""The largest number of nodes whose square is an int64. PyG numbers an edge by its source and destination together."""


def _coalesced(
    edge_index: Tensor,
    edge_attr: object = "???",
    num_nodes: object = None,
    reduce: str = "sum",
    is_sorted: bool = False,
    sort_by_row: bool = True,
) -> object:
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
def _whole(*args: object) -> object:
    from torch_geometric.utils import coalesce  # optional, but already imported if this is called

    return coalesce(*args)


def _sorted_edges(
    edge_index: Tensor, edge_attr: object = "???", num_nodes: object = None, sort_by_row: bool = True
) -> object:
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


def _as_list(edge_attr: object) -> list[Tensor]:
    if isinstance(edge_attr, Tensor):
        return [edge_attr]
    return list(edge_attr) if isinstance(edge_attr, list | tuple) else []


def _given_as(edge_attr: object, edge_index: Tensor, features: list[Tensor]) -> object:
    """Edges and features in the form in which the features were given: none at all, None, a tensor or a list."""
    if isinstance(edge_attr, str):
        return edge_index
    if isinstance(edge_attr, Tensor):
        return edge_index, features[0]
    return edge_index, None if edge_attr is None else features


FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_geometric.utils._coalesce", "coalesce", _coalesced),
    ("torch_geometric.utils._sort_edge_index", "sort_edge_index", _sorted_edges),
    *(("torch_scatter", name, f) for part in scatter_functions.PARTS.values() for name, f in part.items()),
)
"""Module, function, and the formula that is traced where its first argument is a plain tensor."""

OF_MATRICES: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_sparse.storage", "SparseStorage.__init__", sparse.init),
    ("torch_sparse.storage", "SparseStorage.row", sparse.row_of),
    ("torch_sparse.storage", "SparseStorage.rowptr", sparse.row_pointer),
    ("torch_sparse.storage", "SparseStorage.rowcount", sparse.row_counts),
    ("torch_sparse.storage", "SparseStorage.colcount", sparse.column_counts),
    ("torch_sparse.storage", "SparseStorage.colptr", sparse.column_pointer),
    ("torch_sparse.storage", "SparseStorage.csr2csc", sparse.by_columns),
    ("torch_sparse.storage", "SparseStorage.csc2csr", sparse.by_rows),
    ("torch_sparse.storage", "SparseStorage.coalesce", sparse.coalesced),
    ("torch_sparse.matmul", "matmul", sparse.matmul),
    ("torch_sparse.matmul", "spmm_sum", sparse.product_sum),
    ("torch_sparse.matmul", "spmm_mean", sparse.product_mean),
    ("torch_sparse.matmul", "spmm_max", sparse.product_max),
    ("torch_sparse.matmul", "spmm_min", sparse.product_min),
    ("torch_geometric.utils._spmm", "spmm", sparse.product),
    ("torch_sparse.add", "add", sparse.add),
    ("torch_sparse.mul", "mul", sparse.multiply),
    ("torch_sparse.reduce", "reduction", sparse.reduction),
    ("torch_sparse.diag", "set_diag", sparse.with_diagonal),
    ("torch_sparse.diag", "fill_diag", sparse.filled_diagonal),
    ("torch_sparse.diag", "remove_diag", sparse.without_diagonal),
    ("torch_sparse.narrow", "narrow", sparse.narrow),
    ("torch_sparse.index_select", "index_select", sparse.index_select),
    ("torch_sparse.masked_select", "masked_select", sparse.masked_select),
    ("torch_sparse.masked_select", "masked_select_nnz", sparse.masked_select_nnz),
)
"""The same where the first argument is a matrix of torch_sparse or its storage."""
