"""The tensor functions that tests of DGL call as `F.name`. DGL has them for each back end, here they are torch's.

`tests.dgl.upstream_plugin` puts this module in the place of `dgl.backend`. It is no part of `graphweave.dgl`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

backend_name = "pytorch"
float16, float32, float64, bfloat16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
uint8, int8, int16, int32, int64, bool = (
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool,
)  # fmt: skip
data_type_dict = {"float32": float32, "float64": float64, "int32": int32, "int64": int64, "bool": bool}


def cpu() -> torch.device:
    return torch.device("cpu")


def tensor(data: Any, dtype: torch.dtype | None = None) -> Tensor:
    return torch.as_tensor(data, dtype=dtype)


def as_scalar(x: Tensor) -> Any:
    return x.item()


def shape(x: Tensor) -> Any:
    return x.shape


def dtype(x: Tensor) -> torch.dtype:
    return x.dtype


def ndim(x: Tensor) -> int:
    return x.dim()


def context(x: Tensor) -> torch.device:
    return x.device


def device_type(device: Any) -> str:
    return torch.device(device).type


def astype(x: Tensor, kind: torch.dtype) -> Tensor:
    return x.to(kind)


def asnumpy(x: Any) -> Any:
    return (x.coalesce().to_dense() if x.is_sparse else x).detach().cpu().numpy()


def copy_to(x: Tensor, ctx: Any = "cpu", **_: Any) -> Tensor:
    return x.to(ctx)


def is_pinned(x: Tensor) -> Any:
    return x.is_pinned()


def sum(x: Tensor, dim: int, keepdims: Any = False) -> Tensor:
    return x.sum(dim, keepdim=keepdims)


def mean(x: Tensor, dim: int) -> Tensor:
    return x.mean(dim)


def max(x: Tensor, dim: int) -> Tensor:
    return x.amax(dim)


def min(x: Tensor, dim: int) -> Tensor:
    return x.amin(dim)


def reduce_max(x: Tensor) -> Tensor:
    return x.max()


def reduce_min(x: Tensor) -> Tensor:
    return x.min()


def argsort(x: Tensor, dim: int, descending: Any) -> Tensor:
    return x.argsort(dim, descending)


def exp(x: Tensor) -> Tensor:
    return x.exp()


def sqrt(x: Tensor) -> Tensor:
    return x.sqrt()


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    return x.softmax(dim)


def cat(xs: Any, dim: int) -> Tensor:
    return torch.cat(xs, dim)


def stack(xs: Any, dim: int) -> Tensor:
    return torch.stack(xs, dim)


def split(x: Tensor, sizes: Any, dim: int) -> Any:
    return torch.split(x, sizes, dim)


def repeat(x: Tensor, repeats: Any, dim: int) -> Tensor:
    return torch.repeat_interleave(x, repeats, dim)


def gather_row(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows.long()]


def scatter_row(x: Tensor, rows: Tensor, value: Tensor) -> Tensor:
    return x.index_copy(0, rows.long(), value)


def narrow_row(x: Tensor, start: int, stop: int) -> Tensor:
    return x[start:stop]


def index_add_inplace(x: Tensor, rows: Tensor, value: Tensor) -> None:
    x.index_add_(0, rows, value)


def squeeze(x: Tensor, dim: int) -> Tensor:
    return x.squeeze(dim)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    return x.unsqueeze(dim)


def reshape(x: Tensor, size: Any) -> Tensor:
    return x.reshape(size)


def swapaxes(x: Tensor, one: int, other: int) -> Tensor:
    return x.transpose(one, other)


def empty(size: Any, kind: torch.dtype, device: Any) -> Tensor:
    return torch.empty(size, dtype=kind, device=device)


def zeros(size: Any, dtype: torch.dtype, ctx: Any) -> Tensor:
    return torch.zeros(size, dtype=dtype, device=ctx)


def zeros_like(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def ones(size: Any, dtype: torch.dtype, ctx: Any) -> Tensor:
    return torch.ones(size, dtype=dtype, device=ctx)


def ones_like(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def full_1d(length: int, value: Any, dtype: torch.dtype, ctx: Any) -> Tensor:
    return torch.full((length,), value, dtype=dtype, device=ctx)


def uniform(size: Any, dtype: torch.dtype, ctx: Any, low: float, high: float) -> Tensor:
    return torch.empty(size, dtype=dtype, device=ctx).uniform_(low, high)


def randint(size: Any, dtype: torch.dtype, ctx: Any, low: int, high: int) -> Tensor:
    return torch.randint(low, high, size, dtype=dtype, device=ctx)


def arange(start: int, stop: int, dtype: torch.dtype = torch.int64, ctx: Any = None) -> Tensor:
    return torch.arange(start, stop, dtype=dtype, device=ctx)


def clone(x: Tensor) -> Tensor:
    return x.clone()


def equal(x: Tensor, y: Tensor) -> Tensor:
    return x == y


def allclose(x: Tensor, y: Tensor, rtol: float = 1e-4, atol: float = 1e-4) -> Any:
    return torch.allclose(x.float(), y.float(), rtol, atol)


def nonzero_1d(x: Tensor) -> Tensor:
    return x.nonzero().reshape(-1)


def unique(x: Tensor, *args: Any, **options: Any) -> Any:
    return torch.unique(x, *args, **options)


def sort_1d(x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.sort(x)


def boolean_mask(x: Tensor, mask: Tensor) -> Tensor:
    return x[mask]


def zerocopy_to_numpy(x: Tensor) -> Any:
    return asnumpy(x)


def zerocopy_from_numpy(x: Any) -> Tensor:
    return torch.as_tensor(np.asarray(x))


def replace_inf_with_zero(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), torch.zeros_like(x), x)


def attach_grad(x: Tensor) -> Tensor:
    if x.grad is not None:
        x.grad.zero_()
    return x.requires_grad_()


def backward(x: Tensor, head: Tensor | None = None) -> None:
    if head is not None and head.shape == (1,):
        head = head[0]
    x.backward(head)


def grad(x: Tensor) -> Tensor:
    """The gradient, zeros for a tensor that none has reached."""
    return torch.zeros_like(x) if x.grad is None else x.grad


def is_no_grad(x: Tensor) -> Any:
    return x.grad is None or not x.grad.any()


def is_recording() -> Any:
    return torch.is_grad_enabled()


@contextmanager
def record_grad() -> Iterator[None]:
    yield


no_grad = torch.no_grad
