"""A torch.sparse matrix as a graph: its index tensors are maps, and its values lie on edges.

Dynamo takes no sparse tensors, so each is replaced by a `SparseMatrix` (`sparse_arguments.py`). In a trace, PyTorch's
functions and PyG's helpers on a SparseMatrix become gathers and scatters of plain tensors (`sparse_functions.py`).
Outside of a trace (behind a graph break, or if a model has kept one from an earlier call), it acts as the sparse tensor
that it stands for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.eval_frame import skip_code

FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""Name of a PyTorch function, as PyTorch passes it -> the function that replaces it if an argument is a SparseMatrix.
If the replacement returns NotImplemented, the graph breaks, and eager mode runs the function or raises an error."""

LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)
"""Layouts of sparse tensors that a SparseMatrix can replace."""

_tracing = torch.compiler.is_dynamo_compiling
_COMPILER_MODULES = (
    "torch._dynamo", "torch._subclasses", "torch._functorch", "torch._guards", "torch._logging", "torch.fx",
)  # fmt: skip
"""Prefixes of the names of modules of PyTorch's compiler."""


def _asked_by_compiler() -> bool:
    """Whether PyTorch's compiler asks. It needs the tensor that implements a SparseMatrix, not the matrix that it
    means."""
    return not _tracing() and str(sys._getframe(2).f_globals.get("__name__", "")).startswith(_COMPILER_MODULES)


def _own(name: str, of: Tensor) -> Any:
    """Attribute `name` of the tensor that implements a SparseMatrix."""
    with torch._C.DisableTorchFunctionSubclass():
        return getattr(Tensor, name).__get__(of)


class SparseMatrix(Tensor):
    """A matrix [rows, cols] with values `gw_values` [entries, ...]; entry k is at (row[k], col[k]).

    `gw_row` and `gw_col` are indices [entries]. If one of them is None, `gw_given` holds it: crow or ccol indices of a
    compressed layout, or indices [2, entries] of COO. `gw_rows` [rows, 0] and `gw_cols` [cols, 0] carry the sizes,
    since sizes of tensors become symbols, while plain numbers would be compiled in. `gw_coalesced` says that entries
    are known to be sorted and distinct, `gw_entered` that the matrix replaces a sparse tensor from outside of the
    trace. `gw_real` is the sparse tensor that it stands for, if there is one. The SparseMatrix itself is a tensor with
    one element, with the dtype and device of the values, so that compiled code has no guards on its size.
    """

    gw_values: Tensor
    gw_row: Tensor | None
    gw_col: Tensor | None
    gw_given: Tensor | None
    gw_rows: Tensor
    gw_cols: Tensor
    gw_layout: torch.layout
    gw_coalesced: bool
    gw_entered: bool
    gw_real: Tensor | None

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., object], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        given = kwargs or {}
        if _asked_by_compiler():
            return super().__torch_function__(func, types, args, given)
        if not _tracing():
            return eagerly(func, args, given)
        name = func.__name__  # looked up by name, because under Dynamo several objects stand for one function
        if name == "__get__":  # dtype, device and the like, which the one-element tensor has too
            return func(*args, **given)
        out = FUNCTIONS[name](*args, **given) if name in FUNCTIONS else NotImplemented
        return eagerly(func, args, given) if out is NotImplemented else out

    @property
    def layout(self) -> torch.layout:  # type: ignore[override]
        return _own("layout", self) if _asked_by_compiler() else self.gw_layout

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return _own("shape", self) if _asked_by_compiler() else size(self)

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return _own("ndim", self) if _asked_by_compiler() else self.gw_values.dim() + 1

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        return _own("requires_grad", self) if _asked_by_compiler() else self.gw_values.requires_grad

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return False if _asked_by_compiler() else self.gw_layout is torch.sparse_coo

    @property
    def is_sparse_csr(self) -> bool:  # type: ignore[override]
        return False if _asked_by_compiler() else self.gw_layout is torch.sparse_csr

    @property
    def T(self) -> Tensor:  # type: ignore[override]
        return self.t()

    @property
    def mT(self) -> Tensor:  # type: ignore[override]
        return self.t()

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return as_sparse(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: object) -> Tensor:
        return as_sparse(self).__deepcopy__(memo)

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return repr(as_sparse(self))


def never_alone(cls: type[Tensor]) -> None:
    """Let Dynamo inline the methods of `cls`, but not compile a method by itself when it is called behind a graph
    break, since it would then answer as in a trace."""
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if isinstance(function, FunctionType):
            skip_code(function.__code__)


never_alone(SparseMatrix)


@torch._dynamo.disable(reason="graphweave has no gathers and scatters for this function of a sparse tensor")
def eagerly(func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | torch.device | int:
    """`func` applied to the sparse tensors themselves, behind a graph break."""
    return func(*as_sparse(args), **as_sparse(kwargs))


def matrix(
    values: Tensor, row: Tensor | None, col: Tensor | None, rows: Tensor, cols: Tensor, layout: torch.layout,
    *, given: Tensor | None = None, coalesced: bool = True, real: Tensor | None = None,
) -> SparseMatrix:  # fmt: skip
    """A SparseMatrix with these fields, made in a trace, or made from plain tensors in place of the sparse tensor
    `real`."""
    out = values.detach().new_empty(()).as_subclass(SparseMatrix)
    out.gw_values, out.gw_row, out.gw_col, out.gw_given = values, row, col, given
    out.gw_rows, out.gw_cols, out.gw_layout, out.gw_coalesced = rows, cols, layout, coalesced
    out.gw_entered, out.gw_real = real is not None, real
    return out


def size(a: SparseMatrix, dim: int | None = None) -> Any:
    """a.size() and a.size(dim), computed without reading any entry."""
    if a.gw_entered:
        for ends in (a.gw_rows, a.gw_cols):
            # This adds a guard. If rows are known not to be 0, a layer can branch on whether there are entries and
            # self-loops.
            if ends.shape[0] < 2 and ends.shape[0] == 1:
                pass
    sizes = (a.gw_rows.shape[0], a.gw_cols.shape[0], *a.gw_values.shape[1:])
    return torch.Size(sizes) if dim is None else sizes[dim]


def expanded(pointer: Tensor, entries: int) -> Tensor:
    """Compressed indices [rows + 1] -> the row of each entry, [entries]."""
    return torch.repeat_interleave(pointer[1:] - pointer[:-1], output_size=entries)


def row_of(a: SparseMatrix) -> Tensor:
    return _end_of(a, a.gw_row, 0)


def col_of(a: SparseMatrix) -> Tensor:
    return _end_of(a, a.gw_col, 1)


def _end_of(a: SparseMatrix, known: Tensor | None, which: int) -> Tensor:
    if known is not None:
        return known
    assert a.gw_given is not None
    return a.gw_given[which] if a.gw_layout is torch.sparse_coo else expanded(a.gw_given, a.gw_values.shape[0])


def stand_in(real: Tensor) -> Tensor:
    """A SparseMatrix for a sparse tensor; the tensor itself if its layout has blocks or batches.

    Gradients of values become gradients of `real`. The values of a COO tensor only have a gradient if it is coalesced,
    so a tensor that requires a gradient is coalesced first.
    """
    row = col = None
    if real.layout is torch.sparse_coo:
        if real.sparse_dim() != 2:
            return real
        if not real.is_coalesced() and real.requires_grad:
            real = real.coalesce()
        given = real._indices()
    elif real.layout is torch.sparse_csr:
        given, col = real.crow_indices(), real.col_indices()
    else:
        given, row = real.ccol_indices(), real.row_indices()
    if real.layout is not torch.sparse_coo and given.dim() != 1:
        return real
    rows, cols = (given.new_empty((n, 0)) for n in real.shape[:2])
    values = _Values.apply(real) if real.requires_grad else _values(real)
    coalesced = real.layout is not torch.sparse_coo or real.is_coalesced()
    return matrix(values, row, col, rows, cols, real.layout, given=given, coalesced=coalesced, real=real)


def _values(real: Tensor) -> Tensor:
    """The values, in the same memory but not as a view of the matrix, since Dynamo guards on the base of a view."""
    return (real._values() if real.layout is torch.sparse_coo else real.values()).detach()


class _Values(torch.autograd.Function):
    """The values of a matrix. Their gradient is a matrix of the same entries."""

    @staticmethod
    def forward(ctx: Any, real: Tensor) -> Tensor:
        ctx.matrix = real.detach()
        return _values(real)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return like(ctx.matrix, gradient)


def like(real: Tensor, values: Tensor) -> Tensor:
    """`real` with other values."""
    size = (*real.shape[:2], *values.shape[1:])
    if real.layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(real._indices(), values, size, is_coalesced=real.is_coalesced() or None)
    if real.layout is torch.sparse_csr:
        return torch.sparse_csr_tensor(real.crow_indices(), real.col_indices(), values, size)
    return torch.sparse_csc_tensor(real.ccol_indices(), real.row_indices(), values, size)


def as_sparse(x: Any) -> Any:
    """`x`, arguments or results of a function, with sparse tensors in place of SparseMatrices."""
    if isinstance(x, SparseMatrix):
        if x.gw_real is None:
            x.gw_real = _built(x)
        return x.gw_real
    if type(x) in (list, tuple):
        return type(x)([as_sparse(item) for item in x])
    if type(x) is dict:
        return {key: as_sparse(item) for key, item in x.items()}
    return x


def _built(a: SparseMatrix) -> Tensor:
    shape, row, col = size(a), row_of(a), col_of(a)
    if a.gw_layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(torch.stack([row, col]), a.gw_values, shape, is_coalesced=a.gw_coalesced or None)
    if a.gw_layout is torch.sparse_csr:
        return torch.sparse_csr_tensor(compressed(row, shape[0]), col, a.gw_values, shape)
    return torch.sparse_csc_tensor(compressed(col, shape[1]), row, a.gw_values, shape)


def compressed(index: Tensor, rows: int) -> Tensor:
    """A sorted index -> compressed indices [rows + 1], of the same dtype."""
    # PyTorch's own conversion takes a plain number of rows, which would be compiled in
    numbers = torch.arange(rows + 1, dtype=index.dtype, device=index.device)
    return torch.searchsorted(index, numbers, out_int32=index.dtype != torch.int64)
