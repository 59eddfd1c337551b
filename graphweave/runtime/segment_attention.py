"""Attention of rows to the rows of their own segment, as one operator of PyTorch: `native/segment_attention.cpp`."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.runtime import kernel_cache, sources
from graphweave.runtime.native_numbers import NativeNumbers
from graphweave.runtime.threads import num_threads

aten = torch.ops.aten

LONGEST = 512
"""Segments of more keys are attended by PyTorch's fused call, one call a segment: there its matrix products are faster
than ours."""

_NUMBERS = {torch.float32: "float", torch.float64: "double"}
_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64


class _HeadRows(NativeNumbers):
    _fields_ = (("data", _POINTER), ("row", _I64), ("head", _I64))


class _AttentionCall(NativeNumbers):
    """The structure `Call`."""

    _fields_ = (
        *((name, _HeadRows) for name in ("q", "k", "v", "out")), ("lse", _POINTER),
        *((name, _HeadRows) for name in ("grad", "q_grad", "k_grad", "v_grad")), ("q_ends", _POINTER),
        ("k_ends", _POINTER), ("segments", _I64), ("heads", _I64), ("longest", _I64), ("scale", ctypes.c_double),
    )  # fmt: skip


@torch.library.custom_op("graphweave::segment_attention", mutates_args=(), device_types="cpu")
def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """(out, lse): out[i, h] = sum of p[j] v[j, h] over the keys j of the segment of query i, p being the softmax of
    scale * q[i, h] . k[j, h]; lse[i, h] the logarithm of the sum of the exponentials of these scores.

    q [N, heads, D], k [M, heads, D], v [M, heads, E], float32 or float64, row pointers int64 [segments + 1] -> [N,
    heads, E], [N, heads]. A segment may have no queries; one without keys gives zeros. DataError for row pointers that
    fall, or do not lead from 0 to the number of rows.
    """
    out, lse = q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(q.shape[:2])
    q, k, v, q_ptr, k_ptr = *map(_rows, (q, k, v)), q_ptr.contiguous(), k_ptr.contiguous()
    _check_pointers(q_ptr, "q_ptr", q.shape[0])
    _check_pointers(k_ptr, "k_ptr", k.shape[0])
    longest = _longest(k, v)
    none = (_HeadRows(),) * 4
    _run(_call((q, k, v, out), lse, none, q_ptr, k_ptr, longest, scale), q, v, backward=False)
    for rows, keys in _long_segments(q_ptr, k_ptr, longest):
        heads = [_as_batch(q[rows]), _as_batch(k[keys]), _as_batch(v[keys])]
        long_out, long_lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads, 0.0, False, scale=scale)
        out[rows], lse[rows] = long_out[0].transpose(0, 1), long_lse[0].transpose(0, 1)
    return out, lse


@torch.library.custom_op("graphweave::segment_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v."""
    grads = [x.new_empty(x.shape) for x in (q, k, v)]
    q, k, v, out, grad, lse = *map(_rows, (q, k, v, out, grad)), lse.contiguous()
    q_ptr, k_ptr = q_ptr.contiguous(), k_ptr.contiguous()
    _check_pointers(q_ptr, "q_ptr", q.shape[0])
    _check_pointers(k_ptr, "k_ptr", k.shape[0])
    longest = _longest(k, v)
    given = tuple(map(_raw, (grad, *grads)))
    _run(_call((q, k, v, out), lse, given, q_ptr, k_ptr, longest, scale), q, v, backward=True)
    for rows, keys in _long_segments(q_ptr, k_ptr, longest):
        operands = [grad[rows], q[rows], k[keys], v[keys], out[rows]]
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *map(_as_batch, operands), lse[rows].transpose(0, 1).unsqueeze(0), 0.0, False, scale=scale
        )
        for whole, at, part in zip(grads, (rows, keys, keys), found, strict=True):
            whole[at] = part[0].transpose(0, 1)
    return grads[0], grads[1], grads[2]


@segment_attention.register_fake
def _fake(q: Tensor, k: Tensor, v: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return q.new_empty((*q.shape[:2], v.shape[2])), q.new_empty(q.shape[:2])


@_backward.register_fake
def _backward_fake(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_ptr: Tensor, k_ptr: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])


def _derivative(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    """The gradient of `lse` is not used: nothing but the derivative reads it."""
    q, k, v, out, lse, q_ptr, k_ptr = ctx.saved_tensors
    return *_backward(grad, q, k, v, out, lse, q_ptr, k_ptr, ctx.scale), None, None, None


segment_attention.register_autograd(_derivative, setup_context=_keep)


def _rows(x: Tensor) -> Tensor:
    """`x`, whose rows of each head are contiguous."""
    return x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous()


def _raw(x: Tensor) -> _HeadRows:
    return _HeadRows(x.data_ptr(), x.stride(0), x.stride(1))


def _call(
    tensors: tuple[Tensor, ...], lse: Tensor, grads: tuple[_HeadRows, ...], q_ptr: Tensor, k_ptr: Tensor, longest: int,
    scale: float,
) -> _AttentionCall:  # fmt: skip
    """The call for q, k, v and the result, the gradient of the result, and those of q, k and v."""
    sizes = q_ptr.numel() - 1, lse.shape[1], longest
    pointers = q_ptr.data_ptr(), k_ptr.data_ptr()
    return _AttentionCall(*map(_raw, tensors), lse.data_ptr(), *grads, *pointers, *sizes, scale)


def _as_batch(x: Tensor) -> Tensor:
    """[rows, heads, width] -> [1, heads, rows, width]."""
    return x.transpose(0, 1).unsqueeze(0)


def _check_pointers(ptr: Tensor, name: str, rows: int) -> None:
    if ptr.numel() and int(ptr[0]) == 0 and int(ptr[-1]) == rows and bool((ptr[1:] >= ptr[:-1]).all()):
        return
    raise DataError(
        f"{name} must rise from 0 to {rows}, the number of rows (got {_shown(ptr)}). Pass row pointers, such as `ptr`"
        " of a PyG batch whose rows are sorted by graph."
    )


def _shown(ptr: Tensor) -> str:
    first = ", ".join(map(str, ptr[:8].tolist()))
    return f"{first}, ..., {int(ptr[-1])}" if ptr.numel() > 8 else first


def _longest(k: Tensor, v: Tensor) -> int:
    """The most keys of a segment that native code attends. PyTorch's call needs keys and values of one width."""
    return LONGEST if k.shape[2] == v.shape[2] else 2**62


def _long_segments(q_ptr: Tensor, k_ptr: Tensor, longest: int) -> list[tuple[slice, slice]]:
    """The queries and the keys of each segment that is left to PyTorch."""
    if k_ptr[-1] <= longest:
        return []
    long = (k_ptr.diff() > longest).nonzero().flatten()
    ends = (q_ptr[long], q_ptr[long + 1], k_ptr[long], k_ptr[long + 1])
    return [(slice(a, b), slice(c, d)) for a, b, c, d in zip(*(x.tolist() for x in ends), strict=True) if a < b]


def _run(call: _AttentionCall, q: Tensor, v: Tensor, *, backward: bool) -> None:
    if _library(q.dtype, q.shape[2], v.shape[2]).gw_attend(ctypes.byref(call), backward, num_threads()):
        raise MemoryError(f"no memory for attention to {v.shape[0]} rows. Free some, or take smaller graphs.")


@lru_cache(maxsize=64)
def _library(dtype: torch.dtype, keys: int, values: int) -> ctypes.CDLL:
    """The native functions for numbers of this type, keys and values of these widths."""
    begins = f"typedef {_NUMBERS[dtype]} Number;\nconstexpr int kKeys = {keys}, kValues = {values};\n"
    found = kernel_cache.library(begins + sources.source("segment_attention.cpp"))
    found.gw_attend.argtypes = (ctypes.POINTER(_AttentionCall), ctypes.c_int32, ctypes.c_int32)
    found.gw_attend.restype = ctypes.c_int32
    return found
