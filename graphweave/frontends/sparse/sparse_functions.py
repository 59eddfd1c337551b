"""PyTorch's functions for a SparseMatrix: products as gathers and scatters, and functions that read its parts.

Each function does what eager mode does for the same layout, and its result has eager mode's layout. It returns
NotImplemented if eager mode raises an error or gathers and scatters cannot do the same; the graph then breaks.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from graphweave.frontends.sparse.sparse_indices import Indices, as_plain, indices
from graphweave.frontends.sparse.sparse_matrix import FUNCTIONS, SparseMatrix, col_of, compressed, matrix, row_of, size

_LAYOUTS = _COO, _CSR, _CSC = torch.sparse_coo, torch.sparse_csr, torch.sparse_csc
_REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "amax", "max": "amax", "amin": "amin", "min": "amin"}
"""Reductions of torch.sparse.mm -> the names that `reduce_entries` takes."""


def answers(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the answer to PyTorch's functions of these names."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        FUNCTIONS.update(dict.fromkeys(names, function))
        return function

    return register


# ---------------------------------------------------------------- products


@answers("matmul", "__matmul__", "mm", "spmm", "_sparse_mm", "mv", "dsmm")
def product(a: Tensor, b: Any, reduce: str = "sum") -> Any:
    """[n, m] x [m, F] -> [n, F]: each entry's value times its row of `b`, reduced over the entries of each row of `a`.

    Rows without entries get 0.
    """
    if not isinstance(a, SparseMatrix):
        return _dense_times_sparse(a, b) if reduce == "sum" else NotImplemented
    if isinstance(b, SparseMatrix) or a.gw_values.dim() != 1 or b.dim() not in (1, 2) or b.dtype != a.gw_values.dtype:
        return NotImplemented
    if b.shape[0] != a.gw_cols.shape[0]:
        return NotImplemented
    messages = b.index_select(0, col_of(a))
    weights = a.gw_values if b.dim() == 1 else a.gw_values.unsqueeze(-1)
    return reduce_entries(weights * messages, row_of(a), a.gw_rows.shape[0], reduce)


def _dense_times_sparse(b: Tensor, a: SparseMatrix) -> object:
    """[F, n] x [n, m] -> [F, m]"""
    if b.dim() != 2:
        return NotImplemented
    out = product(transposed(a), b.t())
    return out if out is NotImplemented else out.t()


def product_reduced(a: SparseMatrix, b: object, reduce: str) -> object:
    """torch.sparse.mm(a, b, reduce), which eager mode only has for CSR."""
    if isinstance(a, SparseMatrix) and a.gw_layout is _CSR and reduce in _REDUCTIONS:
        return product(a, b, _REDUCTIONS[reduce])
    return NotImplemented


def reduce_entries(messages: Tensor, row: Tensor, rows: int, reduce: str) -> Tensor:
    """[entries, ...] -> [rows, ...]: "sum", "mean", "amax" or "amin" of the messages of each row; 0 if it has none."""
    ones = [1] * (messages.dim() - 1)
    out = messages.new_zeros((rows, *messages.shape[1:]))
    if reduce in ("amax", "amin"):
        return out.scatter_reduce(0, row.view(-1, *ones).expand_as(messages), messages, reduce, include_self=False)
    out = out.index_add(0, row, messages)
    if reduce == "sum":
        return out
    count = messages.new_zeros(rows).index_add(0, row, messages.new_ones(row.shape[0])).clamp(min=1)
    return out / count.view(-1, *ones)


@answers("addmm")
def add_product(added: Any, a: object, b: object, *, beta: float = 1, alpha: object = 1) -> object:
    if isinstance(added, SparseMatrix):
        return NotImplemented
    out = product(a, b)
    return out if out is NotImplemented else beta * added + alpha * out


@answers("linear")
def linear(a: object, weight: Tensor, bias: object = None) -> Any:
    """a W^T + b, for sparse features `a`."""
    if isinstance(weight, SparseMatrix):
        return NotImplemented
    out = product(a, weight.t())
    return out if out is NotImplemented or bias is None else out + bias


def sampled_product(a: object, x: Tensor, y: Tensor, *, beta: float = 1.0, alpha: float = 1.0) -> object:
    """A CSR matrix with the entries of `a`, whose values are beta times those of `a` plus alpha times those of x y."""
    if not isinstance(a, SparseMatrix) or a.gw_layout is not _CSR or x.dim() != 2 or y.dim() != 2:
        return NotImplemented
    dots = (x.index_select(0, row_of(a)) * y.t().index_select(0, col_of(a))).sum(-1)
    return with_values(a, beta * a.gw_values + alpha * dots)


# ---------------------------------------------------------------- parts


def _pointer(a: SparseMatrix, index: Tensor) -> Tensor:
    assert a.gw_given is not None
    return indices(a.gw_given, "pointer", index)


def _of_layout(layout: torch.layout, part: Callable[[SparseMatrix], object]) -> Callable[[SparseMatrix], object]:
    """A part that only matrices of one layout have."""
    return lambda a: part(a) if a.gw_layout is layout else NotImplemented


def _both_indices(a: SparseMatrix) -> Tensor:
    return torch.stack([row_of(a), col_of(a)])


FUNCTIONS.update(
    {
        "size": size,
        "dim": lambda a: a.gw_values.dim() + 1,
        "ndimension": lambda a: a.gw_values.dim() + 1,
        "__len__": lambda a: a.gw_rows.shape[0],
        "numel": lambda a: functools.reduce(operator.mul, size(a)),
        "_nnz": lambda a: a.gw_values.shape[0],
        "sparse_dim": lambda a: 2,
        "dense_dim": lambda a: a.gw_values.dim() - 1,
        "is_floating_point": lambda a: a.gw_values.is_floating_point(),
        "is_complex": lambda a: a.gw_values.is_complex(),
        "is_coalesced": _of_layout(_COO, lambda a: a.gw_coalesced),
        "values": lambda a: a.gw_values if a.gw_coalesced else NotImplemented,
        "_values": _of_layout(_COO, lambda a: a.gw_values.detach()),
        "indices": _of_layout(_COO, lambda a: _both_indices(a) if a.gw_coalesced else NotImplemented),
        "_indices": _of_layout(_COO, _both_indices),
        "crow_indices": _of_layout(_CSR, lambda a: _pointer(a, row_of(a))),
        "ccol_indices": _of_layout(_CSC, lambda a: _pointer(a, col_of(a))),
        "col_indices": _of_layout(_CSR, lambda a: a.gw_col),
        "row_indices": _of_layout(_CSC, lambda a: a.gw_row),
    }
)


# ---------------------------------------------------------------- other matrices


def with_values(a: SparseMatrix, values: Tensor) -> SparseMatrix:
    return matrix(
        values, a.gw_row, a.gw_col, a.gw_rows, a.gw_cols, a.gw_layout, given=a.gw_given, coalesced=a.gw_coalesced
    )


@answers("t", "adjoint")
def transposed(a: SparseMatrix) -> SparseMatrix:
    if a.gw_layout is _COO:
        return matrix(a.gw_values, col_of(a), row_of(a), a.gw_cols, a.gw_rows, _COO, coalesced=False)
    layout = _CSC if a.gw_layout is _CSR else _CSR
    return matrix(a.gw_values, a.gw_col, a.gw_row, a.gw_cols, a.gw_rows, layout, given=a.gw_given)


@answers("transpose", "swapaxes", "swapdims")
def _transpose(a: SparseMatrix, dim0: int, dim1: int) -> object:
    if a.gw_values.dim() != 1 or (dim0 % 2) == (dim1 % 2):
        return NotImplemented
    return transposed(a)


@answers("coalesce")
def coalesced(a: SparseMatrix) -> Any:
    """`a` with entries sorted by row and column, and values of equal entries summed.

    The sorting depends only on the indices, so it can be hoisted.
    """
    if a.gw_layout is not _COO:
        return NotImplemented
    return a if a.gw_coalesced else _sorted(a, _COO)


@answers("_coalesced_")
def _declared_coalesced(a: SparseMatrix, is_coalesced: bool) -> object:
    """`a` with the flag by which PyG says that entries need no sorting."""
    if a.gw_layout is not _COO:
        return NotImplemented
    a.gw_coalesced = is_coalesced
    return a


def _sorted(a: SparseMatrix, layout: torch.layout) -> SparseMatrix:
    """`a` with distinct entries, sorted by row and column, or for CSC by column and row."""
    by_row = layout is not _CSC
    major, minor = (row_of(a), col_of(a)) if by_row else (col_of(a), row_of(a))
    width = (a.gw_cols if by_row else a.gw_rows).shape[0]
    major, minor, values = merged(major, minor, width, a.gw_values)
    row, col = (major, minor) if by_row else (minor, major)
    return _in_order(values, row, col, a.gw_rows, a.gw_cols, layout)


def merged(major: Tensor, minor: Tensor, width: int, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct pairs of two indices, sorted, and the sum of the values of each. `minor` is below `width`."""
    key, place = torch.unique(major.long() * width + minor.long(), return_inverse=True)
    # true if there are self-loops; layers branch on whether there are edges
    if statically_known_true(major.shape[0] > 0):
        torch._check(key.shape[0] > 0)
    summed = values.new_zeros((key.shape[0], *values.shape[1:])).index_add(0, place, values)
    return key // width, key % width, summed


def _in_order(
    values: Tensor, row: Tensor, col: Tensor, rows: Tensor, cols: Tensor, layout: torch.layout
) -> SparseMatrix:
    """A matrix whose entries are distinct and in the order of its layout."""
    given = None
    if layout is not _COO:
        given = compressed(row, rows.shape[0]) if layout is _CSR else compressed(col, cols.shape[0])
    return matrix(values, row, col, rows, cols, layout, given=given)


@answers("to_sparse")
def _to_sparse(
    a: SparseMatrix, sparse_dim: object = None, *, layout: torch.layout | None = None, **kwargs: object
) -> object:
    return NotImplemented if sparse_dim is not None or kwargs else _to(a, layout or _COO)


def _to(a: SparseMatrix, layout: torch.layout) -> Any:
    if layout not in _LAYOUTS:
        return NotImplemented
    if layout is a.gw_layout:
        return a
    if {layout, a.gw_layout} == {_COO, _CSR} and a.gw_coalesced:  # both layouts have the same order
        return _in_order(a.gw_values, row_of(a), col_of(a), a.gw_rows, a.gw_cols, layout)
    if layout is _COO:
        return matrix(a.gw_values, row_of(a), col_of(a), a.gw_rows, a.gw_cols, _COO, coalesced=False)
    return _sorted(a, layout)


def _conversion(layout: torch.layout) -> Callable[..., object]:
    def convert(a: SparseMatrix, dense_dim: object = None) -> object:
        return _to(a, layout)

    return convert


FUNCTIONS |= {
    f"to_sparse_{name}": _conversion(layout) for name, layout in zip(("coo", "csr", "csc"), _LAYOUTS, strict=True)
}


@answers("to_dense")
def dense(a: SparseMatrix, dtype: torch.dtype | None = None, **_: object) -> Tensor:
    n, m = a.gw_rows.shape[0], a.gw_cols.shape[0]
    flat = a.gw_values.new_zeros((n * m, *a.gw_values.shape[1:]))
    out = flat.index_add(0, row_of(a) * m + col_of(a), a.gw_values).reshape(size(a))
    return out if dtype is None else out.to(dtype)


@answers("add", "__add__", "__radd__", "__iadd__")
def add(a: object, b: object, *, alpha: float = 1) -> object:
    """The entries of two matrices of one layout together. Equal entries are summed if both operands are coalesced."""
    if not isinstance(a, SparseMatrix) or not isinstance(b, SparseMatrix) or a.gw_layout is not b.gw_layout:
        return NotImplemented
    if a.gw_values.shape[1:] != b.gw_values.shape[1:] or size(a) != size(b):
        return NotImplemented
    values = torch.cat([a.gw_values, b.gw_values * alpha])
    row, col = torch.cat([row_of(a), row_of(b)]), torch.cat([col_of(a), col_of(b)])
    both = matrix(values, row, col, a.gw_rows, a.gw_cols, _COO, coalesced=False)
    return _sorted(both, a.gw_layout) if a.gw_coalesced and b.gw_coalesced else both


@answers("sub", "__sub__")
def subtract(a: object, b: object, *, alpha: float = 1) -> object:
    layout = a.gw_layout if isinstance(a, SparseMatrix) else None
    return add(a, b, alpha=-alpha) if layout is _COO else NotImplemented


# ---------------------------------------------------------------- values


@answers("mul", "__mul__", "__rmul__", "multiply")
def multiply(a: Any, b: Any) -> Any:
    """The values times a number, or times the entries of a dense [n, m], [n, 1] or [1, m] at the same positions."""
    if not isinstance(a, SparseMatrix):
        a, b = b, a
    if isinstance(b, SparseMatrix) or a.gw_values.dim() != 1:
        return NotImplemented
    if not isinstance(b, Tensor) or b.dim() == 0:
        return with_values(a, a.gw_values * b)
    n, m = size(a)
    if a.gw_layout is not _COO or b.dim() != 2:
        return NotImplemented
    if b.shape[1] == 1 and b.shape[0] == n:
        return with_values(a, a.gw_values * b.squeeze(1).index_select(0, row_of(a)))
    if b.shape[0] == 1 and b.shape[1] == m:
        return with_values(a, a.gw_values * b.squeeze(0).index_select(0, col_of(a)))
    if b.shape[0] != n or b.shape[1] != m:
        return NotImplemented
    return with_values(a, a.gw_values * b.reshape(-1).index_select(0, row_of(a) * m + col_of(a)))


@answers("div", "__truediv__", "true_divide")
def divide(a: object, b: Tensor) -> Any:
    if not isinstance(a, SparseMatrix) or a.gw_layout is not _COO or (isinstance(b, Tensor) and b.dim() > 0):
        return NotImplemented
    return with_values(a, a.gw_values / b)


@answers("sum")
def total(a: Any, dim: object = None, **kwargs: object) -> Any:
    return NotImplemented if dim is not None or kwargs else a.gw_values.sum()


def softmax(a: Any, dim: int, dtype: object = None) -> Any:
    """torch.sparse.softmax: the softmax over the stored entries of each row (dim 1) or column (dim 0)."""
    if (
        not isinstance(a, SparseMatrix)
        or a.gw_layout is not _COO
        or a.gw_values.dim() != 1
        or dim not in (0, 1, -1, -2)
    ):
        return NotImplemented
    a = coalesced(a)
    index, rows = (row_of(a), a.gw_rows.shape[0]) if dim % 2 else (col_of(a), a.gw_cols.shape[0])
    values = a.gw_values if dtype is None else a.gw_values.to(dtype)
    top = reduce_entries(values.detach(), index, rows, "amax")
    raised = (values - top.index_select(0, index)).exp()
    return with_values(a, raised / reduce_entries(raised, index, rows, "sum").index_select(0, index))


def _on_values(name: str) -> Callable[..., object]:
    function = getattr(Tensor, name)

    def handler(a: SparseMatrix, *args: object, **kwargs: object) -> object:
        return with_values(a, function(a.gw_values, *args, **kwargs))

    return handler


def _on_coalesced_values(name: str) -> Callable[..., object]:
    function = getattr(Tensor, name)

    def handler(a: SparseMatrix) -> object:
        return with_values(a, function(a.gw_values)) if a.gw_coalesced else NotImplemented

    return handler


for _name in ("float", "double", "half", "bfloat16", "detach", "clone", "neg", "negative", "__neg__", "cpu"):
    FUNCTIONS[_name] = _on_values(_name)
for _name in ("abs", "relu", "sqrt", "sin", "tan", "asin", "atan", "sinh", "tanh", "expm1", "log1p", "sign", "square"):
    FUNCTIONS[_name] = _on_coalesced_values(_name)


@answers("to")
def _convert(a: SparseMatrix, to: object = None, *, dtype: torch.dtype | None = None, **kwargs: object) -> object:
    """Conversion to another dtype. NotImplemented for another device, to which the indices would have to move too."""
    wanted = to if isinstance(to, torch.dtype) else dtype
    if kwargs or (to is not None and wanted is not to) or wanted is None:
        return NotImplemented
    return with_values(a, a.gw_values.to(wanted))


# ---------------------------------------------------------------- matrices made in a traced function


def coo_matrix(given: Tensor, values: Tensor, shape: Sequence[int], *, is_coalesced: bool) -> SparseMatrix:
    """A COO matrix of indices `given` [2, entries]."""
    return matrix(values, given[0], given[1], *_carriers(values, shape), _COO, coalesced=is_coalesced)


def compressed_matrix(
    given: object, other: Tensor, values: Tensor, shape: Sequence[int], layout: torch.layout
) -> SparseMatrix:
    """A CSR or CSC matrix of the compressed indices `given` and the `other` index of each entry."""
    known = given.gw_row if isinstance(given, Indices) else None
    row, col = (known, other) if layout is _CSR else (other, known)
    return matrix(values, row, col, *_carriers(values, shape), layout, given=as_plain(given))


def _carriers(values: Tensor, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    return values.detach().new_empty((shape[0], 0)), values.detach().new_empty((shape[1], 0))
