"""torch_scatter's functions, written in PyTorch's own calls.

Traces follow them in place of its operators, which are C++ that no trace can run (`tracing/library_formulas.py`), and
`graphweave.pyg` lends them under its name where it is not installed. Arguments and results are those of torch_scatter:
`src` is reduced along one dim by `index`, which has the shape of `src`, or is one number for each row of that dim. What
`out` holds takes part, and the result is written into it. A row without entries is 0, or 1 for a product.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_T = TypeVar("_T")

_INFINITE = float("inf")


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """An index of the rows of dim `dim`, or with some dims less or of size 1, with the shape of `other`."""
    if src.dim() == 1:
        src = src.view([-1 if d == dim % other.dim() else 1 for d in range(other.dim())])
    while src.dim() < other.dim():
        src = src.unsqueeze(-1)
    return src.expand_as(other)


def _sizes(src: Tensor, dim: int, rows: int) -> list[int]:
    return [rows if d == dim else n for d, n in enumerate(src.shape)]


def _rows(index: Tensor, out: Tensor | None, dim: int, dim_size: int | None) -> int:
    """The rows of the result: those of `out`, those asked for, or the largest index plus 1."""
    if out is not None:
        return out.size(dim)
    if dim_size is not None:
        return dim_size
    return int(torch.cat([index.reshape(-1), index.new_full((1,), -1)]).max()) + 1


def _written(out: Tensor | None, found: Tensor) -> Tensor:
    """`found`, in `out` if one is given."""
    return found if out is None else out.copy_(found)


# ---------------------------------------------------------------- along an index in any order


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    dim = dim % src.dim()
    total = src.new_zeros(_sizes(src, dim, _rows(index, None, dim, dim_size))) if out is None else out
    if index.dim() == 1:
        found = total.index_add(dim, index, src)
    else:
        found = total.scatter_add(dim, broadcast(index, src, dim), src)
    return _written(out, found)


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    dim = dim % src.dim()
    product = src.new_ones(_sizes(src, dim, _rows(index, None, dim, dim_size))) if out is None else out
    return _written(out, product.scatter_reduce(dim, broadcast(index, src, dim), src, "prod"))


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    total = scatter_sum(src, index, dim, out, dim_size)
    count = broadcast(_counts(index, src, dim, total), total, dim)
    rounding = None if total.is_floating_point() or total.is_complex() else "floor"
    return _written(out, torch.div(total, count, rounding_mode=rounding))


def _counts(index: Tensor, src: Tensor, dim: int, total: Tensor) -> Tensor:
    """The number of entries of each row of `total`, at least 1, with the dims of `index`."""
    dim = dim % src.dim()
    ones = torch.ones(index.shape, dtype=src.dtype, device=src.device)
    return scatter_sum(ones, index, min(dim, index.dim() - 1), None, total.size(dim)).clamp(min=1)


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """The largest values, and where the first of each lies, to which its gradient goes; the length of the dim where
    there is none."""
    return _extreme(src, index, dim, out, dim_size, "amax")


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Like `scatter_max`, for the smallest values."""
    return _extreme(src, index, dim, out, dim_size, "amin")


def _extreme(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: str
) -> tuple[Tensor, Tensor]:
    dim = dim % src.dim()
    size = _sizes(src, dim, _rows(index, out, dim, dim_size))
    index = broadcast(index, src, dim)
    given, length = src.detach(), src.size(dim)
    start = given.new_zeros(size) if out is None else out.detach()
    best = start.scatter_reduce(dim, index, given, reduce, include_self=out is not None)
    places = torch.arange(length, device=src.device).view([-1 if d == dim else 1 for d in range(src.dim())])
    wanted = torch.where(given == best.gather(dim, index), places, length)
    place = index.new_full(size, length).scatter_reduce(dim, index, wanted, "amin", include_self=True)
    if out is not None:
        place = torch.where(best == start, length, place)
    found = torch.cat([src, src.new_zeros(_sizes(src, dim, 1))], dim).gather(dim, place)
    return _written(out, found if out is None else torch.where(place == length, start, found)), place


def scatter(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:  # fmt: skip
    found = _of(_SCATTERS, reduce)(src, index, dim, out, dim_size)
    return found[0] if isinstance(found, tuple) else found


def _of(functions: dict[str, Callable[..., object]], reduce: str) -> Callable[..., Any]:
    if reduce not in functions:
        raise ValueError(f"expected a reduction of {', '.join(functions)} (got {reduce!r}). Pass one of these.")
    return functions[reduce]


_SCATTERS: dict[str, Callable[..., Any]] = {
    "sum": scatter_sum, "add": scatter_sum, "mul": scatter_mul, "mean": scatter_mean, "min": scatter_min,
    "max": scatter_max,
}  # fmt: skip

# ---------------------------------------------------------------- several reductions


def _floating(src: Tensor, what: str) -> None:
    if not torch.is_floating_point(src):
        raise ValueError(f"{what} takes floating-point numbers (got {src.dtype}). Convert them first.")


def scatter_std(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:  # fmt: skip
    mean = scatter_mean(src, index, dim, None, _rows(index, out, dim, dim_size))
    count = _counts(index, src, dim, mean)
    apart = src - mean.gather(dim, broadcast(index, src, dim))
    total = scatter_sum(apart * apart, index, dim, out, mean.size(dim))
    if unbiased:
        count = (count - 1).clamp(min=1)
    return _written(out, (total / (broadcast(count, total, dim) + 1e-6)).sqrt())


def scatter_logsumexp(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:  # fmt: skip
    """The logarithm of the sum of exponentials; 0 for a row without entries."""
    _floating(src, "scatter_logsumexp")
    dim = dim % src.dim()
    rows = _rows(index, out, dim, dim_size)
    start = src.new_full(_sizes(src, dim, rows), -_INFINITE) if out is None else out.detach().clone()
    largest = _extreme(src.detach(), index, dim, start, None, "amax")[0]
    finite = largest.clamp(min=torch.finfo(src.dtype).min)
    terms = (src - finite.gather(dim, broadcast(index, src, dim))).exp()
    total = scatter_sum(terms, index, dim, None if out is None else (out - finite).exp(), rows)
    return _written(out, torch.where(largest == -_INFINITE, 0.0, (total + eps).log() + finite))


def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    _floating(src, "scatter_softmax")
    along = broadcast(index, src, dim)
    rows = _rows(index, None, dim, dim_size)
    terms = (src - scatter_max(src.detach(), index, dim, None, rows)[0].gather(dim, along)).exp()
    return terms / scatter_sum(terms, index, dim, None, rows).gather(dim, along)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    _floating(src, "scatter_log_softmax")
    along = broadcast(index, src, dim)
    rows = _rows(index, None, dim, dim_size)
    shifted = src - scatter_max(src.detach(), index, dim, None, rows)[0].gather(dim, along)
    return shifted - (scatter_sum(shifted.exp(), index, dim, None, rows) + eps).log().gather(dim, along)


# ---------------------------------------------------------------- along a sorted index


def _along_last(function: Callable[..., _T]) -> Callable[..., _T]:
    """A scatter along the last dim of its index."""

    def segments(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> _T:
        return function(src, index, index.dim() - 1, out, dim_size)

    return segments


def segment_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None, reduce: str = "sum"
) -> Tensor:
    return scatter(src, index, index.dim() - 1, out, dim_size, reduce)


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """The row of `src` that each index names; the dims of `index` before its last are those of `src`."""
    if index.dim() == 1:
        return _written(out, src.index_select(0, index))
    dim = index.dim() - 1
    rows = src.narrow(dim, 0, 1).expand(_sizes(src, dim, index.size(dim)))
    return _written(out, src.gather(dim, broadcast(index, rows, dim)))


# ---------------------------------------------------------------- between pointers


def _segments(indptr: Tensor, length: int) -> Tensor:
    """The segment of each of `length` positions."""
    if indptr.dim() == 1:
        return torch.repeat_interleave(indptr.diff(), output_size=length)
    positions = torch.arange(length, dtype=indptr.dtype, device=indptr.device)
    positions = positions.expand(*indptr.shape[:-1], -1).contiguous()
    return torch.searchsorted(indptr.contiguous(), positions, right=True) - 1


def _between_pointers(reduce: str) -> Callable[..., Tensor | tuple[Tensor, Tensor]]:
    """The reduction of segments, with the places of extremes."""

    def segments(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        return _between(src, indptr, out, reduce)

    return segments


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """The rows from indptr[i] to indptr[i + 1], reduced; all rows of `src` lie between the pointers."""
    found = _between(src, indptr, out, reduce)
    return found[0] if isinstance(found, tuple) else found


def _between(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> Tensor | tuple[Tensor, Tensor]:
    """Unlike a scatter, a reduction between pointers overwrites what `out` held."""
    dim = indptr.dim() - 1
    index = _segments(indptr.expand(*src.shape[:dim], -1), src.size(dim))
    found = _of(_SCATTERS, reduce)(src, index, dim, None, indptr.size(dim) - 1)
    if isinstance(found, tuple):
        return _written(out, found[0]), found[1]
    return _written(out, found)


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Row i of `src` at all positions from indptr[i] to indptr[i + 1]."""
    dim = indptr.dim() - 1
    if dim == 0 and out is None:
        return src.index_select(0, torch.repeat_interleave(indptr.diff()))
    length = int(indptr.reshape(-1)[-1]) if out is None else out.size(dim)
    return gather_coo(src, _segments(indptr.expand(*src.shape[:dim], -1), length), out)


PARTS: dict[str, dict[str, Callable[..., object]]] = {
    "scatter": {"scatter": scatter, **{f"scatter_{name}": function for name, function in _SCATTERS.items()}},
    "composite": {
        "scatter_std": scatter_std, "scatter_logsumexp": scatter_logsumexp, "scatter_softmax": scatter_softmax,
        "scatter_log_softmax": scatter_log_softmax,
    },
    "segment_coo": {
        "segment_coo": segment_coo, "gather_coo": gather_coo,
        **{f"segment_{name}_coo": _along_last(f) for name, f in _SCATTERS.items() if name != "mul"},
    },
    "segment_csr": {
        "segment_csr": segment_csr, "gather_csr": gather_csr,
        **{f"segment_{name}_csr": _between_pointers(name) for name in _SCATTERS if name != "mul"},
    },
    "utils": {"broadcast": broadcast},
}  # fmt: skip
"""Module of torch_scatter -> its functions by name. All but the last module's are functions of the package, too."""
