"""torch_scatter's functions as formulas of PyTorch's own calls. Its operators are C++ that reads memory, which no trace
can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch import Tensor


@torch._dynamo.disable(reason="torch_scatter writes into a given tensor")
def _written(name: str, *args: Any) -> Any:
    import torch_scatter  # type: ignore[import-not-found]  # optional, but already imported if this is called

    return getattr(torch_scatter, name)(*args)


def _along(index: Tensor, src: Tensor, dim: int) -> Tensor:
    """An index of the rows of dim `dim`, or with some dims less or of size 1, with the shape of `src`."""
    if index.dim() == 1:
        index = index.view([-1 if d == dim else 1 for d in range(src.dim())])
    while index.dim() < src.dim():
        index = index.unsqueeze(-1)
    return index.expand_as(src)


def _found(src: Tensor, index: Tensor, dim: int, rows: Any, reduce: str) -> tuple[Tensor, Tensor]:
    """The extreme values along `dim`, and where the first of each lies, to which its gradient goes. Without values they
    are 0, and the length of the dim."""
    dim = dim % src.dim()
    index = _along(index, src, dim)
    if rows is None:
        rows = int(torch.cat([index.reshape(-1), index.new_full((1,), -1)]).max()) + 1
    size = [rows if d == dim else n for d, n in enumerate(src.shape)]
    given, length = src.detach(), src.size(dim)
    best = given.new_zeros(size).scatter_reduce(dim, index, given, reduce, include_self=False)
    places = torch.arange(length, device=src.device).view([-1 if d == dim else 1 for d in range(src.dim())])
    wanted = torch.where(given == best.gather(dim, index), places, length)
    place = index.new_full(size, length).scatter_reduce(dim, index, wanted, "amin", include_self=True)
    none = src.new_zeros([1 if d == dim else n for d, n in enumerate(src.shape)])
    return torch.cat([src, none], dim).gather(dim, place), place


def scatter_max(src: Tensor, index: Tensor, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
    if out is not None:
        return _written("scatter_max", src, index, dim, out, dim_size)
    return _found(src, index, dim, dim_size, "amax")


def scatter_min(src: Tensor, index: Tensor, dim: int = -1, out: Any = None, dim_size: Any = None) -> Any:
    if out is not None:
        return _written("scatter_min", src, index, dim, out, dim_size)
    return _found(src, index, dim, dim_size, "amin")


def segment_csr(src: Tensor, indptr: Tensor, out: Any = None, reduce: str = "sum") -> Any:
    """The rows from indptr[i] to indptr[i + 1], reduced. Pointers of several batches are left to torch_scatter."""
    if out is not None or indptr.dim() != 1:
        return _written("segment_csr", src, indptr, out, reduce)
    index = torch.repeat_interleave(indptr.diff(), output_size=src.size(0))
    segments = indptr.size(0) - 1
    if reduce in ("min", "max"):
        return _found(src, index, 0, segments, "a" + reduce)[0]
    total = src.new_zeros([segments, *src.shape[1:]]).index_add(0, index, src)
    if reduce != "mean":
        return total
    count = indptr.diff().clamp(min=1).to(src.dtype)
    return total / count.view([-1, *[1 for _ in src.shape[1:]]])


FORMULAS: tuple[tuple[str, str, Callable[..., Any]], ...] = (
    ("torch_scatter", "scatter_max", scatter_max),
    ("torch_scatter", "scatter_min", scatter_min),
    ("torch_scatter", "segment_csr", segment_csr),
)
"""Module, function, and the formula that is traced where its first argument is a plain tensor."""
