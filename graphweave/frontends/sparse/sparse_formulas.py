"""Formulas for functions of sparse matrices: PyTorch's functions for which Dynamo does not call `__torch_function__`,
and PyG's functions that look into tensors to see whether there is something to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from graphweave.frontends.sparse import sparse_functions
from graphweave.frontends.sparse.sparse_indices import Indices, indices
from graphweave.frontends.sparse.sparse_matrix import SparseMatrix, compressed, eagerly

_mm, _addmm, _softmax, _sampled = torch.sparse.mm, torch.sparse.addmm, torch.sparse.softmax, torch.sparse.sampled_addmm
_sum, _coo, _csr, _csc = torch.sparse.sum, torch.sparse_coo_tensor, torch.sparse_csr_tensor, torch.sparse_csc_tensor


def _answering(handler: Callable[..., object], original: Callable[..., object]) -> Callable[..., object]:
    """The function that gives the result of `handler` with a SparseMatrix among its arguments, and that of `original`
    without one."""

    def answer(*args: object, **kwargs: object) -> object:
        if any([isinstance(a, SparseMatrix) for a in (*args, *kwargs.values())]):
            out = handler(*args, **kwargs)
            return eagerly(original, args, kwargs) if out is NotImplemented else out
        return original(*args, **kwargs)

    return answer


def _product(*args: Any, **kwargs: Any) -> object:
    reduces = len(args) == 3 or "reduce" in kwargs
    return (sparse_functions.product_reduced if reduces else sparse_functions.product)(*args, **kwargs)


def _coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, dtype: torch.dtype | None = None,
    device: torch.device | str | None = None, is_coalesced: bool | None = None, **rest: Any,
) -> object:  # fmt: skip
    if _is_matrix(values, size, device, rest) and isinstance(indices, Tensor):
        values = values if dtype is None else values.to(dtype)
        return sparse_functions.coo_matrix(indices, values, size, is_coalesced=bool(is_coalesced))
    given = {} if size is None else {"size": size}
    return _coo(indices, values, **given, dtype=dtype, device=device, is_coalesced=is_coalesced, **rest)


def _csr_tensor(
    crow_indices: object, col_indices: object, values: object, size: object = None, **rest: object
) -> object:
    return _compressed(torch.sparse_csr, _csr, crow_indices, col_indices, values, size, rest)


def _csc_tensor(
    ccol_indices: object, row_indices: object, values: object, size: object = None, **rest: object
) -> object:
    return _compressed(torch.sparse_csc, _csc, ccol_indices, row_indices, values, size, rest)


def _compressed(
    layout: torch.layout,
    original: Callable[..., object],
    pointer: object,
    other: Any,
    values: Any,
    size: Any,
    rest: Mapping[str, Any],
) -> object:
    named = {name: value for name, value in rest.items() if name not in ("dtype", "device")}
    if _is_matrix(values, size, rest.get("device"), named) and isinstance(pointer, Tensor):
        values = values if rest.get("dtype") is None else values.to(rest["dtype"])
        return sparse_functions.compressed_matrix(pointer, other, values, size, layout)
    return original(pointer, other, values, size, **rest)


def _is_matrix(values: object, size: Any, device: torch.device | str | None, rest: Mapping[str, object]) -> bool:
    if not isinstance(values, Tensor) or size is None or any([value for value in rest.values()]):
        return False
    return len(size) == values.dim() + 1 and (device is None or torch.device(device) == values.device)


def _row_of_entries(ptr: Tensor, output_size: int | None = None) -> Tensor:
    """PyG's `ptr2index`."""
    if isinstance(ptr, Indices):
        return ptr.gw_row
    index = torch.arange(ptr.numel() - 1, dtype=ptr.dtype, device=ptr.device)
    return index.repeat_interleave(ptr.diff(), output_size=output_size)


def _pointer(index: Tensor, size: int | None = None) -> Tensor:
    """PyG's `index2ptr`."""
    if size is None:
        size = int(index.max()) + 1 if index.numel() > 0 else 0
    return indices(compressed(index, size), "pointer", index)


def _segments(src: Tensor, ptr: Tensor, reduce: str = "sum") -> Tensor:
    """PyG's reduction of the rows from ptr[i] to ptr[i + 1], as a scatter by segment."""
    index = _row_of_entries(ptr, output_size=src.shape[0])
    reduce = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    return sparse_functions.reduce_entries(src, index, ptr.numel() - 1, reduce)


def _set_value(adj: object, value: Tensor) -> object:
    """PyG's `set_sparse_value`. The original builds another COO matrix and sorts it."""
    from torch_geometric.utils.sparse import set_sparse_value  # optional, but already imported if this is called

    return sparse_functions.with_values(adj, value) if isinstance(adj, SparseMatrix) else set_sparse_value(adj, value)


def _coalesced(
    edge_index: Tensor, edge_attr: object = None, num_nodes: int | None = None, reduce: str = "sum",
    is_sorted: bool = False, sort_by_row: bool = True,
) -> object:  # fmt: skip
    """PyG's `coalesce`, used by `to_torch_csr_tensor` and others. The original branches on whether edges are equal."""
    from torch_geometric.utils import coalesce  # optional, but already imported if this is called

    if not isinstance(edge_attr, Tensor) or num_nodes is None or reduce not in ("sum", "add"):
        return coalesce(edge_index, edge_attr, num_nodes, reduce, is_sorted, sort_by_row)
    major, minor = (edge_index[0], edge_index[1]) if sort_by_row else (edge_index[1], edge_index[0])
    major, minor, edge_attr = sparse_functions.merged(major, minor, num_nodes, edge_attr)
    return torch.stack([major, minor] if sort_by_row else [minor, major]), edge_attr


def _warn_of_nothing(*args: object, **kwargs: object) -> None:
    """PyG's `spmm` warns of conversions. Compiled code makes none, or makes them once for a graph."""


_sparse_module = "torch_geometric.utils.sparse"
_Table = tuple[tuple[str, str, Callable[..., Any]], ...]

FORMULAS: _Table = (
    ("torch.sparse", "mm", _answering(_product, _mm)),
    ("torch.sparse", "addmm", _answering(sparse_functions.add_product, _addmm)),
    ("torch.sparse", "softmax", _answering(sparse_functions.softmax, _softmax)),
    ("torch.sparse", "sampled_addmm", _answering(sparse_functions.sampled_product, _sampled)),
    ("torch.sparse", "sum", _answering(sparse_functions.total, _sum)),
    ("torch", "sparse_coo_tensor", _coo_tensor),
    ("torch", "sparse_csr_tensor", _csr_tensor),
    ("torch", "sparse_csc_tensor", _csc_tensor),
    (_sparse_module, "set_sparse_value", _set_value),
    ("torch_geometric.utils._segment", "_torch_segment", _segments),
)
"""Module, function, and the formula that is traced in its place."""

IN_MODULE: _Table = (
    (_sparse_module, "coalesce", _coalesced),
    (_sparse_module, "ptr2index", _row_of_entries),
    (_sparse_module, "index2ptr", _pointer),
    ("torch_geometric.nn.conv.message_passing", "ptr2index", _row_of_entries),
    ("torch_geometric.utils._spmm", "warnings.warn", _warn_of_nothing),
)
"""Like `FORMULAS`, for calls from the module itself, which has imported the function."""
