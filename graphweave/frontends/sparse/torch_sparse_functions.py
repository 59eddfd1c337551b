"""torch_sparse's functions, written in PyTorch's own calls, so that a trace goes through its `SparseTensor`.

A SparseTensor is a Python object that holds row-sorted tensors, which a trace enters as it enters any other object.
What it cannot run are the operators in C++, and branches on whether entries are sorted or coalesced. These functions do
without both. They read the rows of entries and never the row pointers that torch_sparse keeps with them, so that
all products over one matrix go along the same map. Nothing that is derived is kept in the object, since that would
change an argument, and the next call would find another object.

Traces follow them in place of torch_sparse's own (`tracing/library_formulas.py`). Where torch_sparse is not installed,
they are the functions and methods of the class that `graphweave.pyg` lends (`torch_sparse_matrix.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from graphweave.frontends.sparse import scatter_functions
from graphweave.frontends.sparse.sparse_matrix import compressed, expanded
from graphweave.frontends.sparse.sparse_products import sparse_product

M = TypeVar("M", bound="EntryMatrix")
_NO_ENTRY = torch.iinfo(torch.int64).max
"""The number of an entry beyond all others."""


class EntryMatrix(Protocol):
    """A matrix of sorted entries: torch_sparse's `SparseTensor`, or the lent one. Made of its entries by name."""

    storage: Any

    def __init__(
        self, *, row: Tensor | None, col: Tensor | None, value: Tensor | None, sparse_sizes: tuple[int, ...] | None,
        is_sorted: bool, trust_data: bool,
    ) -> None: ...  # fmt: skip
    def coo(self) -> tuple[Tensor, Tensor, Any]: ...
    def coalesce(self: M, reduce: str = "add") -> M: ...
    def set_value(self: M, value: Tensor | None, layout: str | None = None) -> M: ...
    def sparse_size(self, dim: int) -> int: ...
    def sparse_sizes(self) -> tuple[int, int]: ...
    def size(self, dim: int) -> int: ...
    def dim(self) -> int: ...
    def dtype(self) -> torch.dtype: ...
    def device(self) -> torch.device: ...


# ---------------------------------------------------------------- what a matrix holds


def init(
    self: Any, row: Any = None, rowptr: Any = None, col: Tensor | None = None, value: Tensor | None = None,
    sparse_sizes: tuple[int | None, int | None] | None = None, rowcount: Tensor | None = None,
    colptr: Tensor | None = None, colcount: Tensor | None = None, csr2csc: Tensor | None = None,
    csc2csr: Tensor | None = None, is_sorted: bool = False, trust_data: bool = False,
) -> None:  # fmt: skip
    """SparseStorage's entries, sorted by row and column. The original asks whether they are sorted already, and whether
    indices are in range, which the program asks where it uses them."""
    assert row is not None or rowptr is not None
    assert col is not None and col.dim() == 1
    assert col.dtype == torch.long and (row is None or row.dtype == torch.long)
    row, col = None if row is None else row.contiguous(), col.contiguous()
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


def _highest(index: Tensor) -> int:
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


def _counts(index: Tensor, size: int) -> Tensor:
    return index.new_zeros(size).index_add(0, index, torch.ones_like(index))


def coalesced(self: Any, reduce: str = "add") -> Any:
    """A storage with each entry once, and the values of equal entries reduced. The original asks if any are equal."""
    row, col, value = row_of(self), self._col, self._value
    key = row * self._sparse_sizes[1] + col
    first = torch.cat([key.new_full((1,), -1), key])[:-1] < key
    row, col = row[first], col[first]
    if value is not None:
        value = scatter_functions.scatter(value, first.cumsum(0) - 1, 0, None, col.size(0), reduce)
    return type(self)(row=row, col=col, value=value, sparse_sizes=self._sparse_sizes, is_sorted=True)


def _with(src: M, row: Tensor, col: Tensor, value: Tensor | None, sizes: Sequence[int], is_sorted: bool = True) -> M:
    """A matrix of the class of `src` with these entries."""
    return type(src)(row=row, col=col, value=value, sparse_sizes=tuple(sizes), is_sorted=is_sorted, trust_data=True)


# ---------------------------------------------------------------- products and sums


def _messages(src: EntryMatrix, other: Tensor) -> tuple[Tensor, Tensor]:
    """The product of each entry with its row of `other` [..., cols, F], and the row of the matrix to which it goes."""
    row, col, value = src.coo()
    messages = other.index_select(-2, col)
    return (messages if value is None else messages * value.to(other.dtype).view(-1, 1)), row


def product_sum(src: EntryMatrix, other: Tensor) -> Tensor:
    messages, row = _messages(src, other)
    sizes = [*other.shape[:-2], src.sparse_size(0), other.shape[-1]]
    return messages.new_zeros(sizes).index_add(-2, row, messages)


def product_mean(src: EntryMatrix, other: Tensor) -> Tensor:
    count = row_counts(src.storage).clamp(min=1).to(other.dtype)
    return product_sum(src, other) / count.view(-1, 1)


def product_max(src: EntryMatrix, other: Tensor) -> tuple[Tensor, Tensor]:
    """Also the positions of the entries whose products these are; rows without entries get 0."""
    messages, row = _messages(src, other)
    return scatter_functions.scatter_max(messages, row, -2, None, src.sparse_size(0))


def product_min(src: EntryMatrix, other: Tensor) -> tuple[Tensor, Tensor]:
    messages, row = _messages(src, other)
    return scatter_functions.scatter_min(messages, row, -2, None, src.sparse_size(0))


def product(src: EntryMatrix, other: Tensor, reduce: str = "sum") -> Tensor:
    """PyG's product, which makes one of PyTorch's sparse tensors of the matrix."""
    if reduce in ("max", "min"):
        return (product_max if reduce == "max" else product_min)(src, other)[0]
    return product_mean(src, other) if reduce == "mean" else product_sum(src, other)


def product_of_matrices(src: M, other: M, reduce: str = "sum") -> M:
    """The entries that the product of two matrices has; they have values if one of the matrices has."""
    if reduce not in ("sum", "add"):
        raise ValueError(f"expected the reduction 'sum' for a product of two matrices (got {reduce!r}). Pass it.")
    (row, col, value), (other_row, other_col, other_value) = src.coo(), other.coo()
    valued = value is not None or other_value is not None
    dtype = value.dtype if value is not None else other.dtype()
    value = torch.ones(col.shape, dtype=dtype, device=col.device) if value is None else value
    if other_value is None:
        other_value = torch.ones(other_col.shape, dtype=dtype, device=col.device)
    sizes = (src.sparse_size(0), src.sparse_size(1), other.sparse_size(1))
    row, col, value = sparse_product(row, col, value, other_row, other_col, other_value.to(dtype), *sizes)
    return _with(src, row, col, value if valued else None, (sizes[0], sizes[2]), is_sorted=False)


def matmul(src: M, other: Tensor | M, reduce: str = "sum") -> Tensor | M:
    if not isinstance(other, Tensor):
        return product_of_matrices(src, other, reduce)
    return product(src, other.unsqueeze(-1), reduce).squeeze(-1) if other.dim() == 1 else product(src, other, reduce)


def _factors(src: EntryMatrix, other: Tensor) -> Tensor:
    """The number of [rows, 1, ...] or [1, cols, ...] for the row or the column of each entry."""
    row, col, _ = src.coo()
    if other.size(0) == src.size(0) and other.size(1) == 1:
        return other.squeeze(1).index_select(0, row)
    if other.size(0) == 1 and other.size(1) == src.size(1):
        return other.squeeze(0).index_select(0, col)
    sizes = f"[{src.size(0)}, 1, ...] or [1, {src.size(1)}, ...]"
    raise ValueError(f"expected a factor {sizes} (got {list(other.shape)}). Give one number a row or a column.")


def multiply(src: M, other: Tensor | M) -> M:
    """The entries times the row of [rows, 1, ...] or the column of [1, cols, ...] in which they lie, or times those of
    another matrix."""
    if not isinstance(other, Tensor):
        return _entries_of_both(src, other)
    value, factor = src.coo()[2], _factors(src, other)
    return src.set_value(factor if value is None else factor.to(value.dtype) * value, "coo")


def _entries_of_both(src: M, other: M) -> M:
    """The product of each entry with that of `other` in its place, for those that have one."""
    (row, col, value), (other_row, other_col, other_value) = src.coo(), other.coo()
    key = row * src.sparse_size(1) + col
    others = torch.cat([other_row * src.sparse_size(1) + other_col, col.new_full((1,), _NO_ENTRY)])
    place = torch.searchsorted(others, key)
    both = (others[place] == key).nonzero().view(-1)
    value = None if value is None else value[both]
    if other_value is not None:
        other_value = other_value[place[both]]
        value = other_value if value is None else value * other_value
    return _with(src, row[both], col[both], value, src.sparse_sizes())


def add(src: M, other: Tensor | M) -> M:
    """The entries, 1 where they have no values, plus the number of their row [rows, 1, ...] or column [1, cols, ...];
    or the entries of two matrices, with the sums of those in the same place."""
    row, col, value = src.coo()
    if isinstance(other, Tensor):
        term = _factors(src, other)
        return src.set_value(term + 1 if value is None else term.to(value.dtype) + value, "coo")
    other_row, other_col, other_value = other.coo()
    sizes = [max(src.sparse_size(d), other.sparse_size(d)) for d in range(2)]
    values = None if value is None or other_value is None else torch.cat([value, other_value])
    both = _with(src, torch.cat([row, other_row]), torch.cat([col, other_col]), values, sizes, is_sorted=False)
    return both.coalesce()


def add_nnz(src: M, other: Tensor, layout: str | None = None) -> M:
    """The value of each entry, 1 where it has none, plus one of `other` [entries]."""
    value = src.storage._value
    return src.set_value(other + 1 if value is None else value + other.to(value.dtype), layout)


def mul_nnz(src: M, other: Tensor, layout: str | None = None) -> M:
    value = src.storage._value
    return src.set_value(other if value is None else value * other.to(value.dtype), layout)


def reduction(src: EntryMatrix, dim: int | None = None, reduce: str = "sum") -> Tensor:
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
    return scatter_functions.scatter(value, index, 0, None, rows, reduce)


def _reduction(reduce: str) -> Callable[..., Tensor]:
    def reduce_entries(src: EntryMatrix, dim: int | None = None) -> Tensor:
        return reduction(src, dim, reduce)

    return reduce_entries


total, mean, smallest, largest = (_reduction(reduce) for reduce in ("sum", "mean", "min", "max"))


def _reduced_dim(value: Tensor, dim: int | None, reduce: str) -> Tensor:
    if reduce in ("max", "min"):
        extreme = value.amax if reduce == "max" else value.amin
        return extreme() if dim is None else (value.max(dim)[0] if reduce == "max" else value.min(dim)[0])
    function = value.mean if reduce == "mean" else value.sum
    return function() if dim is None else function(dim)


# ---------------------------------------------------------------- the diagonal


def with_diagonal(src: M, values: Tensor | None = None, k: int = 0) -> M:
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
    return _with(src, row[order], col[order], value, (rows, cols))


def filled_diagonal(src: M, fill_value: float, k: int = 0) -> M:
    value = src.storage._value
    return with_diagonal(src, None if value is None else value.new_full((), fill_value), k)


def without_diagonal(src: M, k: int = 0) -> M:
    row, col, _ = src.coo()
    return masked_select_nnz(src, row != col - k, "coo")


def diagonal(src: EntryMatrix) -> Tensor:
    """The values of the diagonal, 1 where entries have no values; 0 where it has no entry."""
    row, col, value = src.coo()
    on = (row == col).nonzero().view(-1)
    value = torch.ones(col.shape, dtype=src.dtype(), device=col.device) if value is None else value
    length = min(src.sparse_sizes())
    return value.new_zeros([length, *value.shape[1:]]).index_put((row[on],), value[on])


# ---------------------------------------------------------------- parts of a matrix


def transpose(src: M) -> M:
    row, col, value = src.coo()
    order = by_columns(src.storage)
    rows, cols = src.sparse_sizes()
    return _with(src, col[order], row[order], None if value is None else value[order], (cols, rows))


def masked_select_nnz(src: M, mask: Tensor, layout: str | None = None) -> M:
    """The entries for which `mask` [entries] is true, in the order of rows, or of columns for layout "csc"."""
    row, col, value = src.coo()
    kept = (mask if layout != "csc" else mask[by_rows(src.storage)]).nonzero().view(-1)
    return _with(src, row[kept], col[kept], None if value is None else value[kept], src.sparse_sizes())


def index_select_nnz(src: M, idx: Tensor, layout: str | None = None) -> M:
    row, col, value = src.coo()
    idx = by_columns(src.storage)[idx] if layout == "csc" else idx
    return _with(src, row[idx], col[idx], None if value is None else value[idx], src.sparse_sizes(), is_sorted=False)


def narrow(src: M, dim: int, start: int, length: int) -> M:
    dim = dim % src.dim()
    row, col, value = src.coo()
    if dim > 1:
        return src.set_value(value.narrow(dim - 1, start, length), "coo")
    end = col if dim else row
    kept = ((end >= start) & (end < start + length)).nonzero().view(-1)
    row, col = (row[kept] if dim else row[kept] - start), (col[kept] - start if dim else col[kept])
    rows, cols = src.sparse_sizes()
    sizes = (rows, length) if dim else (length, cols)
    return _with(src, row, col, None if value is None else value[kept], sizes)


def narrow_diagonal(src: M, start: tuple[int, int], length: tuple[int, int]) -> M:
    return narrow(narrow(src, 0, start[0], length[0]), 1, start[1], length[1])


def select(src: M, dim: int, idx: int) -> M:
    return narrow(src, dim, idx, 1)


def index_select(src: M, dim: int, idx: Tensor) -> M:
    """The rows or columns of the numbers `idx`, in that order; a number may repeat."""
    dim = dim % src.dim()
    if dim == 1:
        return transpose(index_select(transpose(src), 0, idx))
    _, col, value = src.coo()
    if dim > 1:
        return src.set_value(value.index_select(dim - 1, idx), "coo")
    pointer = row_pointer(src.storage)
    counts = (pointer[1:] - pointer[:-1]).index_select(0, idx)
    row = torch.repeat_interleave(counts)
    shift = pointer.index_select(0, idx) - (counts.cumsum(0) - counts)
    place = torch.arange(row.size(0), device=row.device) + shift.index_select(0, row)
    value = None if value is None else value[place]
    return _with(src, row, col[place], value, (idx.size(0), src.sparse_size(1)))


def masked_select(src: M, dim: int, mask: Tensor) -> M:
    return index_select(src, dim, mask.nonzero().view(-1))


def permute(src: M, perm: Tensor) -> M:
    return index_select(index_select(src, 0, perm), 1, perm)


def _sliced(src: M, dim: int, start: int | None, stop: int | None, step: int | None) -> M:
    if step not in (None, 1):
        raise ValueError(f"expected slices without steps (got one of {step}). Pass a tensor of numbers.")
    if start is None and stop is None:
        return src
    size = src.size(dim)
    first, end = start or 0, size if stop is None else min(stop, size)
    first, end = (first + size if first < 0 else first), (end + size if end < 0 else end)
    return narrow(src, dim, first, max(end - first, 0))


def getitem(src: M, index: object) -> M:
    """src[rows, cols, ...] with numbers, slices without steps, masks, tensors or lists of numbers."""
    given = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [i for i in given if not isinstance(i, Tensor)]:
        at = next(n for n, i in enumerate(given) if i is Ellipsis)
        given[at : at + 1] = [slice(None)] * (src.dim() - len(given) + 1)
    for dim, one in enumerate(given):
        if isinstance(one, slice):
            src = _sliced(src, dim, one.start, one.stop, one.step)
        elif isinstance(one, int):
            src = select(src, dim, one % src.size(dim))
        else:
            one = one if isinstance(one, Tensor) else torch.as_tensor(one, device=src.device())
            src = masked_select(src, dim, one) if one.dtype == torch.bool else index_select(src, dim, one)
    return src


def cat(tensors: Sequence[M], dim: int | tuple[int, ...] | list[int]) -> M:
    """Matrices below one another (dim 0), next to one another (dim 1), or along the diagonal (both)."""
    dims = [d % 2 for d in (dim if isinstance(dim, (tuple, list)) else [dim])]
    rows, cols, values, sizes = [], [], [], [0, 0]
    for one in tensors:
        row, col, value = one.coo()
        rows.append(row + sizes[0] if 0 in dims else row)
        cols.append(col + sizes[1] if 1 in dims else col)
        values.append(value)
        sizes = [sizes[d] + n if d in dims else max(sizes[d], n) for d, n in enumerate(one.sparse_sizes())]
    value = None if any(v is None for v in values) else torch.cat(values)
    return _with(tensors[0], torch.cat(rows), torch.cat(cols), value, sizes, is_sorted=0 in dims)


# ---------------------------------------------------------------- on indices and values

Entries = tuple[Tensor, Tensor | None]
"""Indices [2, entries] and values [entries, ...] of a matrix."""


def coalesce(index: Tensor, value: Tensor | None, m: int, n: int, op: str = "add") -> Entries:
    """Sorted entries of an [m, n] matrix, each once, with the values of equal entries reduced."""
    key, order = (index[0] * n + index[1]).sort(stable=True)
    first = torch.cat([key.new_full((1,), -1), key])[:-1] < key
    found = index[:, order][:, first]
    if value is None:
        return found, None
    return found, scatter_functions.scatter(value[order], first.cumsum(0) - 1, 0, None, found.size(1), op)


def transpose_entries(index: Tensor, value: Tensor | None, m: int, n: int, coalesced: bool = True) -> Entries:
    index = index.flip(0)
    return coalesce(index, value, n, m) if coalesced else (index, value)


def eye(m: int, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Entries:
    row = torch.arange(m, dtype=torch.long, device=device)
    return torch.stack([row, row]), torch.ones(m, dtype=dtype, device=device)


def spmm(index: Tensor, value: Tensor, m: int, n: int, matrix: Tensor) -> Tensor:
    """The [m, n] matrix with these entries times `matrix` [n, F]."""
    matrix = matrix if matrix.dim() > 1 else matrix.unsqueeze(-1)
    messages = matrix.index_select(-2, index[1]) * value.unsqueeze(-1)
    return messages.new_zeros([*matrix.shape[:-2], m, matrix.size(-1)]).index_add(-2, index[0], messages)


def spspmm(
    indexA: Tensor, valueA: Tensor, indexB: Tensor, valueB: Tensor, m: int, k: int, n: int, coalesced: bool = False
) -> tuple[Tensor, Tensor]:
    """The product of an [m, k] matrix with a [k, n] matrix."""
    row, col, value = sparse_product(indexA[0], indexA[1], valueA, indexB[0], indexB[1], valueB, m, k, n)
    order = (row * n + col).sort()[1]
    return torch.stack([row, col])[:, order], value[order]


def spadd(indexA: Tensor, valueA: Tensor, indexB: Tensor, valueB: Tensor, m: int, n: int) -> Entries:
    return coalesce(torch.cat([indexA, indexB], 1), torch.cat([valueA, valueB]), m, n)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "__narrow_diag__": narrow_diagonal, "add": add, "add_nnz": add_nnz, "cat": cat, "coalesce": coalesce, "eye": eye,
    "fill_diag": filled_diagonal, "get_diag": diagonal, "index_select": index_select,
    "index_select_nnz": index_select_nnz, "masked_select": masked_select, "masked_select_nnz": masked_select_nnz,
    "matmul": matmul, "max": largest, "mean": mean, "min": smallest, "mul": multiply, "mul_nnz": mul_nnz,
    "narrow": narrow, "permute": permute, "remove_diag": without_diagonal, "select": select,
    "set_diag": with_diagonal, "spadd": spadd, "spmm": spmm, "spspmm": spspmm, "sum": total, "t": transpose,
    "transpose": transpose_entries,
}  # fmt: skip
"""Functions of the package torch_sparse by their names."""
