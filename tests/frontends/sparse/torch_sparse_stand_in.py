"""A stand-in for torch_sparse where it is not installed: its `SparseTensor`, with operators that no trace can run.

It has the names, the modules and the meaning of what the compiler replaces, and of what a user calls around it.
"""

from __future__ import annotations

import sys
import types
from typing import Any

import torch
from torch import Tensor


def in_memory(index: Tensor) -> Tensor:
    """`index`, read as an operator in C++ reads it, which a trace cannot."""
    index.detach().numpy()
    return index


class SparseStorage:
    def __init__(
        self, row: Any = None, rowptr: Any = None, col: Any = None, value: Any = None, sparse_sizes: Any = None,
        rowcount: Any = None, colptr: Any = None, colcount: Any = None, csr2csc: Any = None, csc2csr: Any = None,
        is_sorted: bool = False, trust_data: bool = False,
    ) -> None:  # fmt: skip
        if sparse_sizes is None:
            sparse_sizes = (int(row.max()) + 1, int(col.max()) + 1)
        if row is not None and col.numel() > 0:
            assert trust_data or (int(row.max()) < sparse_sizes[0] and int(col.max()) < sparse_sizes[1])
        self._row, self._rowptr, self._col, self._value = row, rowptr, col, value
        self._sparse_sizes = tuple(sparse_sizes)
        self._rowcount, self._colptr, self._colcount = rowcount, colptr, colcount
        self._csr2csc, self._csc2csr = csr2csc, csc2csr
        key = self.row() * sparse_sizes[1] + col
        if not is_sorted and bool((key[1:] < key[:-1]).any()):
            order = key.argsort(stable=True)
            self._row, self._col = self.row()[order], col[order]
            self._value = None if value is None else value[order]

    def row(self) -> Tensor:
        if self._row is None:
            self._row = torch.arange(len(self._rowptr) - 1).repeat_interleave(in_memory(self._rowptr).diff())
        return self._row

    def rowptr(self) -> Tensor:
        if self._rowptr is None:
            self._rowptr = torch.nn.functional.pad(self.rowcount().cumsum(0), (1, 0))
        return self._rowptr

    def rowcount(self) -> Tensor:
        if self._rowcount is None:
            self._rowcount = torch.bincount(in_memory(self.row()), minlength=self._sparse_sizes[0])
        return self._rowcount

    def colcount(self) -> Tensor:
        if self._colcount is None:
            self._colcount = torch.bincount(in_memory(self._col), minlength=self._sparse_sizes[1])
        return self._colcount

    def colptr(self) -> Tensor:
        if self._colptr is None:
            self._colptr = torch.nn.functional.pad(self.colcount().cumsum(0), (1, 0))
        return self._colptr

    def csr2csc(self) -> Tensor:
        if self._csr2csc is None:
            self._csr2csc = in_memory(self._sparse_sizes[0] * self._col + self.row()).argsort(stable=True)
        return self._csr2csc

    def csc2csr(self) -> Tensor:
        if self._csc2csr is None:
            self._csc2csr = in_memory(self.csr2csc()).argsort()
        return self._csc2csr

    def coalesce(self, reduce: str = "add") -> Any:
        key = self.row() * self._sparse_sizes[1] + self._col
        kept, group = torch.unique(in_memory(key), return_inverse=True)
        value = None if self._value is None else _reduced(self._value, group, len(kept), reduce)
        sizes = self._sparse_sizes
        return SparseStorage(row=kept // sizes[1], col=kept % sizes[1], value=value, sparse_sizes=sizes, is_sorted=True)


class SparseTensor:
    def __init__(
        self, row: Any = None, rowptr: Any = None, col: Any = None, value: Any = None, sparse_sizes: Any = None,
        is_sorted: bool = False, trust_data: bool = False,
    ) -> None:  # fmt: skip
        self.storage = SparseStorage(
            row=row, rowptr=rowptr, col=col, value=value, sparse_sizes=sparse_sizes, is_sorted=is_sorted,
            trust_data=trust_data,
        )  # fmt: skip

    @classmethod
    def from_storage(cls, storage: Any) -> Any:
        return SparseTensor(
            storage._row, storage._rowptr, storage._col, storage._value, storage._sparse_sizes, True, True
        )

    def coo(self) -> Any:
        return self.storage.row(), self.storage._col, self.storage._value

    def csr(self) -> Any:
        return self.storage.rowptr(), self.storage._col, self.storage._value

    def csc(self) -> Any:
        order, value = self.storage.csr2csc(), self.storage._value
        return self.storage.colptr(), self.storage.row()[order], None if value is None else value[order]

    def has_value(self) -> bool:
        return self.storage._value is not None

    def dtype(self) -> torch.dtype:
        return self.storage._value.dtype if self.has_value() else torch.float

    def nnz(self) -> int:
        return self.storage._col.numel()

    def sparse_sizes(self) -> Any:
        return self.storage._sparse_sizes

    def sparse_size(self, dim: int) -> int:
        return self.storage._sparse_sizes[dim]

    def size(self, dim: int) -> int:
        return [*self.sparse_sizes(), *(self.storage._value.shape[1:] if self.has_value() else ())][dim]

    def dim(self) -> int:
        return 1 + self.storage._value.dim() if self.has_value() else 2

    def set_value(self, value: Any, layout: str | None = None) -> Any:
        row, col, _ = self.coo()
        return SparseTensor(row, None, col, value, self.sparse_sizes(), True, True)

    def fill_value(self, fill_value: float, dtype: Any = None) -> Any:
        return self.set_value(torch.full((self.nnz(),), fill_value, dtype=dtype), "coo")

    def coalesce(self, reduce: str = "sum") -> Any:
        return SparseTensor.from_storage(self.storage.coalesce(reduce))

    def to_symmetric(self, reduce: str = "sum") -> Any:
        row, col, value = self.coo()
        value = None if value is None else torch.cat([value, value])
        size = max(self.sparse_sizes())
        both = SparseTensor(torch.cat([row, col]), None, torch.cat([col, row]), value, (size, size))
        return both.coalesce(reduce)

    def t(self) -> Any:
        order = self.storage.csr2csc()
        row, col, value = self.coo()
        value = None if value is None else value[order]
        return SparseTensor(col[order], None, row[order], value, self.sparse_sizes()[::-1], True, True)

    def to_dense(self) -> Tensor:
        row, col, value = self.coo()
        out = torch.zeros(self.sparse_sizes(), dtype=self.dtype())
        return out.index_put((row, col), torch.ones(self.nnz()) if value is None else value)


def _reduced(value: Tensor, index: Tensor, rows: int, reduce: str) -> Tensor:
    places = index.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    kind = {"add": "sum", "max": "amax", "min": "amin"}.get(reduce, reduce)
    return value.new_zeros(rows, *value.shape[1:]).scatter_reduce(0, places, value, kind, include_self=False)


def _product(src: Any, other: Tensor, reduce: str) -> Tensor:
    row, col, value = src.coo()
    messages = other[in_memory(col)] if value is None else other[in_memory(col)] * value[:, None].to(other.dtype)
    return _reduced(messages, row, src.sparse_size(0), reduce)


def spmm_sum(src: Any, other: Tensor) -> Tensor:
    return _product(src, other, "sum")


def spmm_mean(src: Any, other: Tensor) -> Tensor:
    return _product(src, other, "mean")


def spmm_max(src: Any, other: Tensor) -> Any:
    return _product(src, other, "amax"), None


def spmm_min(src: Any, other: Tensor) -> Any:
    return _product(src, other, "amin"), None


def matmul(src: Any, other: Any, reduce: str = "sum") -> Any:
    if reduce in ("max", "min"):
        return (spmm_max if reduce == "max" else spmm_min)(src, other)[0]
    return spmm_mean(src, other) if reduce == "mean" else spmm_sum(src, other)


def mul(src: Any, other: Tensor) -> Any:
    row, col, value = src.coo()
    by_row = other.size(0) == src.size(0) and other.size(1) == 1
    factor = other.squeeze(1)[in_memory(row)] if by_row else other.squeeze(0)[in_memory(col)]
    return src.set_value(factor if value is None else factor.to(value.dtype) * value, "coo")


def reduction(src: Any, dim: int | None = None, reduce: str = "sum") -> Tensor:
    row, col, value = src.coo()
    if value is None and reduce != "sum":
        return torch.ones(() if dim is None else src.sparse_size(1 - dim))
    value = torch.ones(src.nnz()) if value is None else value
    if dim is None:
        return getattr(value, reduce)()
    index = in_memory(row if dim == 1 else col)
    return _reduced(value, index, src.sparse_size(1 - dim), reduce)


def set_diag(src: Any, values: Tensor | None = None, k: int = 0) -> Any:
    row, col, value = src.coo()
    rows, cols = src.sparse_sizes()
    first = max(-k, 0)
    diagonal = torch.arange(first, first + min(rows - first, cols - max(k, 0)))
    others = in_memory(row) != col - k
    if value is not None:
        value = torch.cat([value[others], value.new_ones(len(diagonal)) if values is None else values])
    row, col = torch.cat([row[others], diagonal]), torch.cat([col[others], diagonal + k])
    return SparseTensor(row, None, col, value, (rows, cols))


def modules() -> dict[str, Any]:
    """The modules by name, with what the compiler looks for in each."""
    here: Any = sys.modules[__name__]
    where = {
        "storage": ["SparseStorage"], "tensor": ["SparseTensor"], "diag": ["set_diag"], "mul": ["mul"],
        "matmul": ["matmul", "spmm_sum", "spmm_mean", "spmm_max", "spmm_min"], "reduce": ["reduction"],
    }  # fmt: skip
    found: dict[str, Any] = {"torch_sparse": types.ModuleType("torch_sparse")}
    for part, names in where.items():
        module = found[f"torch_sparse.{part}"] = types.ModuleType(f"torch_sparse.{part}")
        for name in names:
            setattr(module, name, getattr(here, name))
    for kind, part in ((SparseStorage, "storage"), (SparseTensor, "tensor")):
        kind.__module__ = f"torch_sparse.{part}"
    _give_methods(SparseTensor)
    found["torch_sparse"].SparseTensor, found["torch_sparse"].matmul = SparseTensor, matmul
    return found


def _give_methods(kind: Any) -> None:
    """As torch_sparse does, which writes its functions as lambdas into the class."""
    kind.matmul = lambda self, other, reduce="sum": matmul(self, other, reduce)
    kind.__matmul__ = lambda self, other: matmul(self, other, "sum")
    kind.mul = kind.__mul__ = kind.__rmul__ = lambda self, other: mul(self, other)
    kind.set_diag = lambda self, values=None, k=0: set_diag(self, values, k)
    for reduce in ("sum", "mean", "max", "min"):
        setattr(kind, reduce, lambda self, dim=None, reduce=reduce: reduction(self, dim, reduce))
