"""torch_sparse's functions as formulas of PyTorch's own calls, so that a trace goes through its `SparseTensor`.

A SparseTensor is a Python object that holds row-sorted tensors, which a trace enters as it enters any other object.
What it cannot run are the operators in C++, and branches on whether entries are sorted or coalesced. The formulas do
without both. They read the rows of entries and never the row pointers that torch_sparse keeps beside them, so that
all products over one matrix go along the same map. Nothing that is derived is kept in the object, since that would
change an argument, and the next call would find another object.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from graphweave.frontends.sparse.sparse_matrix import compressed, expanded
from graphweave.frontends.tracing import torch_scatter_formulas

# ---------------------------------------------------------------- what a matrix holds


def init(
    self: Any, row: Any = None, rowptr: Any = None, col: Any = None, value: Any = None, sparse_sizes: Any = None,
    rowcount: Any = None, colptr: Any = None, colcount: Any = None, csr2csc: Any = None, csc2csr: Any = None,
    is_sorted: bool = False, trust_data: bool = False,
) -> None:  # fmt: skip
    """SparseStorage's entries, sorted by row and column. The original asks whether they are sorted already, and whether
    indices are in range, which the program asks where it uses them."""
    assert row is not None or rowptr is not None
    assert col is not None and col.dim() == 1
    assert col.dtype == torch.long and (row is None or row.dtype == torch.long)
    rows, cols = (None, None) if sparse_sizes is None else sparse_sizes
    if rows is None:
        rows = _highest(row) + 1 if rowptr is None else rowptr.size(0) - 1
    if cols is None:
        cols = _highest(col) + 1
    if not is_sorted:
        row = expanded(rowptr, col.size(0)) if row is None else row
        rowptr = csr2csc = csc2csr = None
        order = (row * cols + col).sort(stable=True)[1]
        row, col = row[order], col[order]
        value = None if value is None else value[order]
    self._row, self._rowptr, self._col, self._value = row, rowptr, col, value
    self._sparse_sizes = (rows, cols)
    self._rowcount, self._colptr, self._colcount = rowcount, colptr, colcount
    self._csr2csc, self._csc2csr = csr2csc, csc2csr


def _highest(index: Tensor) -> Any:
    """The largest index; -1 if there is none."""
    return int(torch.cat([index, index.new_full((1,), -1)]).max())


def row_of(self: Any) -> Tensor:
    return expanded(self._rowptr, self._col.size(0)) if self._row is None else self._row


def row_pointer(self: Any) -> Tensor:
    return compressed(self._row, self._sparse_sizes[0]) if self._rowptr is None else self._rowptr


def row_counts(self: Any) -> Tensor:
    return _counts(row_of(self), self._sparse_sizes[0]) if self._rowcount is None else self._rowcount


def column_counts(self: Any) -> Tensor:
    return _counts(self._col, self._sparse_sizes[1]) if self._colcount is None else self._colcount


def column_pointer(self: Any) -> Tensor:
    if self._colptr is not None:
        return self._colptr
    return torch.nn.functional.pad(column_counts(self).cumsum(0), (1, 0))


def by_columns(self: Any) -> Tensor:
    """The positions of the entries in the order of columns, then rows."""
    if self._csr2csc is not None:
        return self._csr2csc
    return (self._sparse_sizes[0] * self._col + row_of(self)).sort(stable=True)[1]


def by_rows(self: Any) -> Tensor:
    return by_columns(self).sort(stable=True)[1] if self._csc2csr is None else self._csc2csr


def _counts(index: Tensor, size: Any) -> Tensor:
    return index.new_zeros(size).index_add(0, index, torch.ones_like(index))


# ---------------------------------------------------------------- products and sums


def _messages(src: Any, other: Tensor) -> tuple[Tensor, Tensor]:
    """The product of each entry with its row of `other` [..., cols, F], and the row of the matrix to which it goes."""
    row, col, value = src.coo()
    messages = other.index_select(-2, col)
    return (messages if value is None else messages * value.to(other.dtype).view(-1, 1)), row


def product_sum(src: Any, other: Tensor) -> Tensor:
    messages, row = _messages(src, other)
    sizes = [*other.shape[:-2], src.sparse_size(0), other.shape[-1]]
    return messages.new_zeros(sizes).index_add(-2, row, messages)


def product_mean(src: Any, other: Tensor) -> Tensor:
    count = row_counts(src.storage).clamp(min=1).to(other.dtype)
    return product_sum(src, other) / count.view(-1, 1)


def product_max(src: Any, other: Tensor) -> tuple[Tensor, Tensor]:
    """Also the positions of the entries whose products these are; rows without entries get 0."""
    messages, row = _messages(src, other)
    return torch_scatter_formulas.scatter_max(messages, row, -2, None, src.sparse_size(0))


def product_min(src: Any, other: Tensor) -> tuple[Tensor, Tensor]:
    messages, row = _messages(src, other)
    return torch_scatter_formulas.scatter_min(messages, row, -2, None, src.sparse_size(0))


def product(src: Any, other: Tensor, reduce: str = "sum") -> Tensor:
    """PyG's product, which makes one of PyTorch's sparse tensors of the matrix."""
    if reduce in ("max", "min"):
        return (product_max if reduce == "max" else product_min)(src, other)[0]
    return product_mean(src, other) if reduce == "mean" else product_sum(src, other)


@torch._dynamo.disable(reason="data decides which entries two matrices share")
def _entries_of_both(src: Any, other: Any) -> Any:
    return sys.modules["torch_sparse.mul"].mul(src, other)


def multiply(src: Any, other: Any) -> Any:
    """The entries times the row of [rows, 1, ...] or the column of [1, cols, ...] in which they lie."""
    if not isinstance(other, Tensor):
        return _entries_of_both(src, other)
    row, col, value = src.coo()
    if other.size(0) == src.size(0) and other.size(1) == 1:
        factor = other.squeeze(1).index_select(0, row)
    elif other.size(0) == 1 and other.size(1) == src.size(1):
        factor = other.squeeze(0).index_select(0, col)
    else:
        sizes = f"[{src.size(0)}, 1, ...] or [1, {src.size(1)}, ...]"
        raise ValueError(f"expected a factor {sizes} (got {list(other.shape)}). Give one number a row or a column.")
    return src.set_value(factor if value is None else factor.to(value.dtype) * value, "coo")


def reduction(src: Any, dim: int | None = None, reduce: str = "sum") -> Tensor:
    """The entries of each row (dim 1), of each column (dim 0), or all of them, reduced. Entries without values count,
    and their mean and extremes are 1, also where there are none."""
    row, col, value = src.coo()
    dim = dim if dim is None else dim % src.dim()
    if value is None and reduce not in ("sum", "add"):
        sizes = [] if dim is None else [src.sparse_size(1 - dim)]
        return torch.ones(sizes, dtype=src.dtype(), device=col.device)
    if value is None:
        value = torch.ones(col.size(0), dtype=src.dtype(), device=col.device)
    if dim is None or dim > 1:
        return _reduced_dim(value, dim if dim is None else dim - 1, reduce)
    index, rows = (row, src.sparse_size(0)) if dim == 1 else (col, src.sparse_size(1))
    return _reduced(value, index, rows, reduce)


def _reduced(value: Tensor, index: Tensor, rows: Any, reduce: str) -> Tensor:
    if reduce == "max":
        return torch_scatter_formulas.scatter_max(value, index, 0, None, rows)[0]
    if reduce == "min":
        return torch_scatter_formulas.scatter_min(value, index, 0, None, rows)[0]
    total = value.new_zeros([rows, *value.shape[1:]]).index_add(0, index, value)
    if reduce != "mean":
        return total
    return total / _counts(index, rows).clamp(min=1).to(value.dtype).view([-1, *[1 for _ in value.shape[1:]]])


def _reduced_dim(value: Tensor, dim: int | None, reduce: str) -> Tensor:
    if reduce in ("max", "min"):
        extreme = value.amax if reduce == "max" else value.amin
        return extreme() if dim is None else (value.max(dim)[0] if reduce == "max" else value.min(dim)[0])
    function = value.mean if reduce == "mean" else value.sum
    return function() if dim is None else function(dim)


# ---------------------------------------------------------------- other matrices


def with_diagonal(src: Any, values: Tensor | None = None, k: int = 0) -> Any:
    """`src` with a whole diagonal of `values`, or of ones, in place of what it has there."""
    rows, cols = src.sparse_sizes()
    first = -k if k < 0 else 0
    length = min(rows - first, cols - max(k, 0))
    row, col, value = src.coo()
    others = row != col - k
    row, col = row[others], col[others]
    diagonal = torch.arange(length, device=row.device) + first
    row, col = torch.cat([row, diagonal]), torch.cat([col, diagonal + k])
    order = (row * cols + col).sort(stable=True)[1]
    if value is not None:
        added = value.new_ones([length, *value.shape[1:]])
        if values is not None:
            added = values.to(value.dtype).expand_as(added)
        value = torch.cat([value[others], added])[order]
    return type(src)(row=row[order], col=col[order], value=value, sparse_sizes=(rows, cols), is_sorted=True)


def coalesced(self: Any, reduce: str = "add") -> Any:
    """A storage with each entry once, and the values of equal entries reduced. The original asks if any are equal."""
    row, col, value = row_of(self), self._col, self._value
    key = row * self._sparse_sizes[1] + col
    first = torch.cat([key.new_full((1,), -1), key])[:-1] < key
    row, col = row[first], col[first]
    if value is not None:
        value = _reduced(value, first.cumsum(0) - 1, col.size(0), reduce)
    return type(self)(row=row, col=col, value=value, sparse_sizes=self._sparse_sizes, is_sorted=True)


FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_sparse.storage", "SparseStorage.__init__", init),
    ("torch_sparse.storage", "SparseStorage.row", row_of),
    ("torch_sparse.storage", "SparseStorage.rowptr", row_pointer),
    ("torch_sparse.storage", "SparseStorage.rowcount", row_counts),
    ("torch_sparse.storage", "SparseStorage.colcount", column_counts),
    ("torch_sparse.storage", "SparseStorage.colptr", column_pointer),
    ("torch_sparse.storage", "SparseStorage.csr2csc", by_columns),
    ("torch_sparse.storage", "SparseStorage.csc2csr", by_rows),
    ("torch_sparse.storage", "SparseStorage.coalesce", coalesced),
    ("torch_sparse.matmul", "spmm_sum", product_sum),
    ("torch_sparse.matmul", "spmm_mean", product_mean),
    ("torch_sparse.matmul", "spmm_max", product_max),
    ("torch_sparse.matmul", "spmm_min", product_min),
    ("torch_geometric.utils._spmm", "spmm", product),
    ("torch_sparse.mul", "mul", multiply),
    ("torch_sparse.reduce", "reduction", reduction),
    ("torch_sparse.diag", "set_diag", with_diagonal),
)
"""Module, function or method, and the formula that is traced where its first argument is a matrix or its storage."""
