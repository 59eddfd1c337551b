"""torch_sparse's `SparseTensor` and `SparseStorage` in Python, which `graphweave.pyg` lends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphweave.core.ranges import range_error
from graphweave.frontends.sparse import torch_sparse_functions as functions

_Sizes = tuple[int | None, int | None]


def _kept(name: str, find: Callable[[object], Tensor]) -> Callable[[object], Tensor]:
    """A method that gives what attribute `name` holds. What it finds first is kept there, but not in a trace, which
    would change an argument."""

    def method(self: object) -> Tensor:
        known = getattr(self, name)
        if known is None:
            known = find(self)
            if not torch.compiler.is_compiling():
                setattr(self, name, known)
        return known

    return method


class SparseStorage:
    """The entries of a matrix in the order of rows, then columns, and what was derived of them.

    `row`, `col` int64 [entries], `rowptr` int64 [rows + 1] in place of `row`, `value` [entries, ...]. IndexRangeError
    for an index out of range, unless `trust_data` says that there is none.
    """

    __module__ = "torch_sparse.storage"  # so that saved matrices are those of torch_sparse
    _col: Tensor
    _value: Tensor | None

    def __init__(
        self, row: Tensor | None = None, rowptr: Tensor | None = None, col: Tensor | None = None,
        value: Tensor | None = None, sparse_sizes: _Sizes | None = None, rowcount: Tensor | None = None,
        colptr: Tensor | None = None, colcount: Tensor | None = None, csr2csc: Tensor | None = None,
        csc2csr: Tensor | None = None, is_sorted: bool = False, trust_data: bool = False,
    ) -> None:  # fmt: skip
        if not torch.compiler.is_compiling() and col is not None and col.numel():
            if not trust_data:
                _check_range(row, col, sparse_sizes)
            if not is_sorted and row is not None:
                up, right = row.diff(), col.diff()
                is_sorted = bool(((up > 0) | ((up == 0) & (right >= 0))).all())
        functions.init(
            self, row, rowptr, col, value, sparse_sizes, rowcount, colptr, colcount, csr2csc, csc2csr, is_sorted
        )

    row = _kept("_row", functions.row_of)
    rowptr = _kept("_rowptr", functions.row_pointer)
    rowcount = _kept("_rowcount", functions.row_counts)
    colptr = _kept("_colptr", functions.column_pointer)
    colcount = _kept("_colcount", functions.column_counts)
    csr2csc = _kept("_csr2csc", functions.by_columns)
    csc2csr = _kept("_csc2csr", functions.by_rows)
    coalesce = functions.coalesced

    def col(self) -> Tensor:
        return self._col

    def value(self) -> Tensor | None:
        return self._value

    def has_value(self) -> bool:
        return self._value is not None

    def sparse_sizes(self) -> tuple[int, int]:
        return self._sparse_sizes  # type: ignore[attr-defined]

    def sparse_size(self, dim: int) -> int:
        return self.sparse_sizes()[dim]

    def is_coalesced(self) -> bool:
        row = self.row()
        return not bool(((row[1:] == row[:-1]) & (self._col[1:] == self._col[:-1])).any())

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        """Replaces the values by others, in the order of rows, or of columns for layout "csc"."""
        self._value = value[self.csc2csr()] if layout == "csc" and value is not None else value
        return self

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseStorage:
        return self.clone().set_value_(value, layout)

    def fill_cache_(self) -> SparseStorage:
        for derived in (self.row, self.rowptr, self.rowcount, self.colptr, self.colcount, self.csr2csc, self.csc2csr):
            derived()
        return self

    def clear_cache_(self) -> SparseStorage:
        self.row()
        self._rowptr = self._rowcount = self._colptr = self._colcount = self._csr2csc = self._csc2csr = None
        return self

    def clone(self) -> SparseStorage:
        """A storage of the same tensors."""
        return self.apply(lambda t: t)

    def apply(self, change: Callable[[Tensor], Tensor]) -> SparseStorage:
        """A storage whose tensors are `change` of these."""
        of = {name: getattr(self, f"_{name}") for name in _TENSORS}
        changed = {name: None if t is None else change(t) for name, t in of.items()}
        return SparseStorage(sparse_sizes=self.sparse_sizes(), is_sorted=True, trust_data=True, **changed)


_TENSORS = ("row", "rowptr", "col", "value", "rowcount", "colptr", "colcount", "csr2csc", "csc2csr")
"""The tensors of a storage, by the names of its arguments."""


def _check_range(row: Tensor | None, col: Tensor, sizes: _Sizes | None) -> None:
    for index, size, what in ((row, sizes and sizes[0], "row"), (col, sizes and sizes[1], "col")):
        if index is not None and size is not None and not 0 <= int(index.min()) <= int(index.max()) < size:
            raise range_error(index, size, what=what, of=f"{what}s", do="Correct it, or pass larger sparse_sizes.")


class SparseTensor:
    """A sparse matrix [rows, cols, ...], with the methods of torch_sparse's class. Arguments as of `SparseStorage`."""

    __module__ = "torch_sparse.tensor"
    storage: SparseStorage

    def __init__(
        self, row: Tensor | None = None, rowptr: Tensor | None = None, col: Tensor | None = None,
        value: Tensor | None = None, sparse_sizes: _Sizes | None = None, is_sorted: bool = False,
        trust_data: bool = False,
    ) -> None:  # fmt: skip
        self.storage = SparseStorage(
            row=row, rowptr=rowptr, col=col, value=value, sparse_sizes=sparse_sizes, is_sorted=is_sorted,
            trust_data=trust_data,
        )  # fmt: skip

    # ------------------------------------------------------------ made of other things

    @classmethod
    def from_storage(cls, storage: SparseStorage) -> SparseTensor:
        made = cls.__new__(cls)
        made.storage = storage
        return made

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, edge_attr: Tensor | None = None, sparse_sizes: _Sizes | None = None,
        is_sorted: bool = False, trust_data: bool = False,
    ) -> SparseTensor:  # fmt: skip
        return cls(edge_index[0], None, edge_index[1], edge_attr, sparse_sizes, is_sorted, trust_data)

    @classmethod
    def from_dense(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        entries = (mat if mat.dim() == 2 else mat.abs().sum(list(range(2, mat.dim())))).nonzero()
        row, col = entries.t().contiguous()
        return cls(row, None, col, mat[row, col] if has_value else None, (mat.shape[0], mat.shape[1]), True, True)

    @classmethod
    def from_torch_sparse_coo_tensor(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        mat = mat.coalesce()
        row, col = mat.indices()
        return cls(row, None, col, mat.values() if has_value else None, (mat.shape[0], mat.shape[1]), True, True)

    @classmethod
    def from_torch_sparse_csr_tensor(cls, mat: Tensor, has_value: bool = True) -> SparseTensor:
        rowptr, col = mat.crow_indices().long(), mat.col_indices().long()
        return cls(None, rowptr, col, mat.values() if has_value else None, (mat.shape[0], mat.shape[1]), True, True)

    @classmethod
    def from_scipy(cls, mat: Any, has_value: bool = True) -> SparseTensor:
        mat = mat.tocsr().sorted_indices()
        rowptr, col = (torch.from_numpy(part).long() for part in (mat.indptr, mat.indices))
        return cls(None, rowptr, col, torch.from_numpy(mat.data) if has_value else None, mat.shape, True, True)

    @classmethod
    def eye(
        cls,
        M: int,
        N: int | None = None,
        has_value: bool = True,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        fill_cache: bool = False,
    ) -> SparseTensor:
        N = M if N is None else N
        row = torch.arange(min(M, N), device=device)
        value = torch.ones(min(M, N), dtype=dtype, device=device) if has_value else None
        made = cls(row, None, row, value, (M, N), True, True)
        return made.fill_cache_() if fill_cache else made

    # ------------------------------------------------------------ its entries

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.storage.row(), self.storage._col, self.storage._value

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.storage.rowptr(), self.storage._col, self.storage._value

    def csc(self) -> tuple[Tensor, Tensor, Tensor | None]:
        order, value = self.storage.csr2csc(), self.storage._value
        return self.storage.colptr(), self.storage.row()[order], None if value is None else value[order]

    def has_value(self) -> bool:
        return self.storage._value is not None

    def set_value_(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        self.storage.set_value_(value, layout)
        return self

    def set_value(self, value: Tensor | None, layout: str | None = None) -> SparseTensor:
        return self.from_storage(self.storage.set_value(value, layout))

    def fill_value_(self, fill_value: float, dtype: torch.dtype | None = None) -> SparseTensor:
        return self.set_value_(torch.full((self.nnz(),), fill_value, dtype=dtype, device=self.device()))

    def fill_value(self, fill_value: float, dtype: torch.dtype | None = None) -> SparseTensor:
        return self.set_value(torch.full((self.nnz(),), fill_value, dtype=dtype, device=self.device()))

    def coalesce(self, reduce: str = "sum") -> SparseTensor:
        return self.from_storage(self.storage.coalesce(reduce))

    def is_coalesced(self) -> bool:
        return self.storage.is_coalesced()

    def fill_cache_(self) -> SparseTensor:
        self.storage.fill_cache_()
        return self

    def clear_cache_(self) -> SparseTensor:
        self.storage.clear_cache_()
        return self

    # ------------------------------------------------------------ its sizes

    def sparse_sizes(self) -> tuple[int, int]:
        return self.storage.sparse_sizes()

    def sparse_size(self, dim: int) -> int:
        return self.storage.sparse_sizes()[dim]

    def sparse_resize(self, sparse_sizes: tuple[int, int]) -> SparseTensor:
        row, col, value = self.coo()
        return type(self)(row, None, col, value, sparse_sizes, True)

    def sizes(self) -> list[int]:
        value = self.storage._value
        return [*self.sparse_sizes(), *(() if value is None else value.shape[1:])]

    def size(self, dim: int) -> int:
        return self.sizes()[dim]

    def dim(self) -> int:
        return len(self.sizes())

    def nnz(self) -> int:
        return self.storage._col.numel()

    def numel(self) -> int:
        value = self.storage._value
        return self.nnz() if value is None else value.numel()

    def density(self) -> float:
        rows, cols = self.sparse_sizes()
        return self.nnz() / (rows * cols) if rows and cols else 0.0

    def sparsity(self) -> float:
        return 1 - self.density()

    def is_quadratic(self) -> bool:
        return self.sparse_size(0) == self.sparse_size(1)

    def is_symmetric(self) -> bool:
        if not self.is_quadratic():
            return False
        (row, col, value), (other_row, other_col, other_value) = self.coo(), self.t().coo()
        if value is not None and other_value is not None and not torch.equal(value, other_value):
            return False
        return torch.equal(row, other_row) and torch.equal(col, other_col)

    def to_symmetric(self, reduce: str = "sum") -> SparseTensor:
        """The entries of the matrix and of its transpose, those in the same place reduced."""
        row, col, value = self.coo()
        value = None if value is None else torch.cat([value, value])
        size = max(self.sparse_sizes())
        return type(self)(torch.cat([row, col]), None, torch.cat([col, row]), value, (size, size)).coalesce(reduce)

    # ------------------------------------------------------------ other forms of it

    def to_dense(self, dtype: torch.dtype | None = None) -> Tensor:
        row, col, value = self.coo()
        if value is None:
            value = torch.ones(self.nnz(), dtype=dtype, device=self.device())
        empty = torch.zeros(self.sizes(), dtype=dtype or value.dtype, device=value.device)
        return empty.index_put((row, col), value.to(empty.dtype))

    def to_torch_sparse_coo_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        row, col, value = self.coo()
        value = torch.ones(self.nnz(), dtype=dtype, device=self.device()) if value is None else value
        return torch.sparse_coo_tensor(torch.stack([row, col]), value, self.sizes())

    def to_torch_sparse_csr_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        rowptr, col, value = self.csr()
        value = torch.ones(self.nnz(), dtype=dtype, device=self.device()) if value is None else value
        return torch.sparse_csr_tensor(rowptr, col, value, self.sizes())

    def to_torch_sparse_csc_tensor(self, dtype: torch.dtype | None = None) -> Tensor:
        colptr, row, value = self.csc()
        value = torch.ones(self.nnz(), dtype=dtype, device=self.device()) if value is None else value
        return torch.sparse_csc_tensor(colptr, row, value, self.sizes())

    def to_scipy(self, layout: str = "csr", dtype: torch.dtype | None = None) -> Any:
        from scipy import sparse

        row, col, value = (None if part is None else part.detach().cpu().numpy() for part in self.coo())
        value = torch.ones(self.nnz(), dtype=dtype).numpy() if value is None else value
        return sparse.coo_matrix((value, (row, col)), self.sparse_sizes()).asformat(layout)

    # ------------------------------------------------------------ where and of what type it is

    def device(self) -> torch.device:
        return self.storage._col.device

    def is_cuda(self) -> bool:
        return self.storage._col.is_cuda

    def dtype(self) -> torch.dtype:
        value = self.storage._value
        return torch.float if value is None else value.dtype

    def is_floating_point(self) -> bool:
        return self.dtype().is_floating_point

    def requires_grad(self) -> bool:
        value = self.storage._value
        return value is not None and value.requires_grad

    def requires_grad_(self, requires_grad: bool = True, dtype: torch.dtype | None = None) -> SparseTensor:
        if requires_grad and not self.has_value():
            self.fill_value_(1.0, dtype)
        if self.storage._value is not None:
            self.storage._value.requires_grad_(requires_grad)
        return self

    def detach(self) -> SparseTensor:
        return self._apply(Tensor.detach)

    def clone(self) -> SparseTensor:
        return self._apply(Tensor.clone)

    def copy(self) -> SparseTensor:
        return self.from_storage(self.storage)

    def cpu(self) -> SparseTensor:
        return self.to("cpu")

    def cuda(self, device: torch.device | str | None = None, non_blocking: bool = False) -> SparseTensor:
        return self._apply(lambda t: t.cuda(device, non_blocking))

    def pin_memory(self) -> SparseTensor:
        return self._apply(Tensor.pin_memory)

    def is_pinned(self) -> bool:
        return self.storage._col.is_pinned()

    def share_memory_(self) -> SparseTensor:
        self._apply(Tensor.share_memory_)
        return self

    def is_shared(self) -> bool:
        return self.storage._col.is_shared()

    def to(self, *args: Any, **kwargs: Any) -> SparseTensor:
        """On another device, with values of another dtype."""
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        moved = self if device is None else self._apply(lambda t: t.to(device, non_blocking=non_blocking))
        return moved if dtype is None else moved.type(dtype)

    def type(self, dtype: torch.dtype, non_blocking: bool = False) -> SparseTensor:
        value = self.storage._value
        return self if value is None else self.set_value(value.to(dtype, non_blocking=non_blocking), "coo")

    def type_as(self, tensor: Tensor) -> SparseTensor:
        return self.type(tensor.dtype)

    def _apply(self, change: Callable[[Tensor], Tensor]) -> SparseTensor:
        return self.from_storage(self.storage.apply(change))

    # ------------------------------------------------------------ sums, products and parts

    t = functions.transpose
    add = __add__ = __radd__ = functions.add
    mul = __mul__ = __rmul__ = functions.multiply
    add_nnz = functions.add_nnz
    mul_nnz = functions.mul_nnz

    matmul = functions.matmul
    spmm = functions.product
    spspmm = functions.product_of_matrices
    narrow = functions.narrow
    select = functions.select
    index_select = functions.index_select
    index_select_nnz = functions.index_select_nnz
    masked_select = functions.masked_select
    masked_select_nnz = functions.masked_select_nnz
    permute = functions.permute
    set_diag = functions.with_diagonal
    fill_diag = functions.filled_diagonal
    remove_diag = functions.without_diagonal
    get_diag = functions.diagonal
    __getitem__ = functions.getitem

    def __matmul__(self, other: object) -> Any:
        return functions.matmul(self, other)

    sum, mean, min, max = functions.total, functions.mean, functions.smallest, functions.largest

    # ------------------------------------------------------------ samples, by operators that `graphweave.pyg` lends

    def random_walk(self, start: Tensor, walk_length: int) -> Tensor:
        rowptr, col, _ = self.csr()
        return torch.ops.torch_sparse.random_walk(rowptr, col, start, walk_length, 1.0, 1.0)[0]

    def sample_adj(self, subset: Tensor, num_neighbors: int, replace: bool = False) -> tuple[SparseTensor, Tensor]:
        """The entries that the rows `subset` draw, with columns numbered anew, and the nodes of these numbers."""
        rowptr, col, value = self.csr()
        found = torch.ops.torch_sparse.sample_adj(rowptr, col, subset, num_neighbors, replace)
        rowptr, col, nodes, entries = found
        value = None if value is None else value[entries]
        return type(self)(None, rowptr, col, value, (subset.numel(), nodes.numel()), True, True), nodes

    def saint_subgraph(self, node_idx: Tensor) -> tuple[SparseTensor, Tensor]:
        """The rows and columns `node_idx`, and the positions of their entries."""
        positions = torch.arange(self.nnz(), device=self.device())
        found = self.set_value(positions, "coo")[node_idx, node_idx]
        entries = found.storage._value
        assert entries is not None
        value = self.storage._value
        return found.set_value(None if value is None else value[entries], "coo"), entries

    def partition(
        self, num_parts: int, recursive: bool = False, weighted: bool = False, node_weight: Tensor | None = None
    ) -> tuple[SparseTensor, Tensor, Tensor]:
        """The matrix with rows and columns sorted by their part, the pointers of the parts, and the order of rows."""
        rowptr, col, _ = self.csr()
        part = torch.ops.torch_sparse.partition(rowptr, col, None, num_parts, recursive)
        part, order = part.sort(stable=True)
        pointer = torch.searchsorted(part, torch.arange(num_parts + 1, device=part.device))
        return self.permute(order), pointer, order

    def __repr__(self) -> str:
        row, col, value = self.coo()
        parts = [f"row={row}", f"col={col}", *([] if value is None else [f"val={value}"])]
        sizes = f"size={tuple(self.sizes())}, nnz={self.nnz()}, density={100 * self.density():.02f}%"
        return "SparseTensor(" + ",\n             ".join([*parts, sizes]) + ")"


def _as_type(dtype: torch.dtype) -> Callable[[SparseTensor], SparseTensor]:
    return lambda self: self.type(dtype)


for _name in ("float", "double", "half", "bfloat16", "int", "long", "bool"):  # names that would hide types in the class
    setattr(SparseTensor, _name, _as_type(getattr(torch, _name)))
