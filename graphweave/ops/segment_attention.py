"""Attention of rows to the rows of their own segment: all nodes of each graph of a batch to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.runtime import segment_attention as native

_HALF = (torch.float16, torch.bfloat16)
_NUMBERS = (torch.float32, torch.float64, *_HALF)


def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, *, key_ptr: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """out[i] = sum of p[j] v[j] over the rows j of the segment of row i, p being the softmax of scale * q[i] . k[j].

    q [N, D], k [M, D], v [M, E] -> [N, E], or with heads, [N, heads, D] and so on, each for itself. Segment s has the
    queries ptr[s] to ptr[s + 1], `ptr` [segments + 1], such as PyG's `batch.ptr`. Its keys and values are those rows
    too, or with `key_ptr` the rows key_ptr[s] to key_ptr[s + 1]. Without keys, queries get zeros. `scale` is by default
    1 / sqrt(D).

    On the CPU this is one operator, `graphweave::segment_attention`, with a derivative, also in other people's
    `torch.compile`. It stores nothing of the size of all pairs, forward or backward, and pads nothing; the derivative
    computes the weights again (Dao et al., "FlashAttention", 2022, section 3.1). float16 and bfloat16 are computed in
    float32. Elsewhere rows are padded to the longest segment, for PyTorch's fused attention. It has no second
    derivative. DataError for shapes that do not fit, other dtypes, and row pointers that fall or do not lead from 0 to
    the number of rows.
    """
    key_ptr = ptr if key_ptr is None else key_ptr
    _check(q, k, v, ptr, key_ptr)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    if q.dim() == 2:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        return segment_attention(q, k, v, ptr, key_ptr=key_ptr, scale=factor).squeeze(1)
    if not q.is_cpu:
        return _padded(q, k, v, ptr, key_ptr, factor)
    ptr, key_ptr = ptr.long(), key_ptr.long()
    if q.dtype in _HALF:
        wide = native.segment_attention(q.float(), k.float(), v.float(), ptr, key_ptr, factor)
        return wide[0].to(q.dtype)
    return native.segment_attention(q, k, v, ptr, key_ptr, factor)[0]


def _check(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor) -> None:
    alike = q.dim() == k.dim() == v.dim() and q.dim() in (2, 3)
    if not alike or k.shape[0] != v.shape[0] or q.shape[1:] != k.shape[1:] or k.shape[1:-1] != v.shape[1:-1]:
        shapes = ", ".join(str(list(x.shape)) for x in (q, k, v))
        raise DataError(
            f"expected q [N, D], k [M, D] and v [M, E], or with heads in between (got {shapes}). Reshape them."
        )
    if q.dtype not in _NUMBERS or not q.dtype == k.dtype == v.dtype or not q.shape[-1] or not v.shape[-1]:
        raise DataError(
            "q, k and v must be floating-point numbers of one dtype, with features"
            f" (got {q.dtype}, {k.dtype} and {v.dtype}). Convert them, for example with .float()."
        )
    for name, x in (("ptr", ptr), ("key_ptr", key_ptr)):
        if x.dim() != 1 or x.shape[0] == 0 or x.dtype not in (torch.int32, torch.int64):
            raise DataError(
                f"{name} must be integers [segments + 1] (got {x.dtype} of shape {list(x.shape)}). Pass row pointers,"
                " such as `ptr` of a PyG batch."
            )
    if ptr.shape != key_ptr.shape:
        raise DataError(
            f"ptr and key_ptr must have as many segments (got {ptr.shape[0] - 1} and {key_ptr.shape[0] - 1})."
            " Pass pointers for the same segments."
        )


def _padded(q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor, scale: float) -> Tensor:
    """The same by attention over padded segments."""
    queries, keys = real_places(ptr), real_places(key_ptr)
    mask = keys[:, None, None] | ~keys.any(1)[:, None, None, None]  # without keys, zeros are attended
    out = torch.nn.functional.scaled_dot_product_attention(
        in_places(q, queries), in_places(k, keys), in_places(v, keys), attn_mask=mask, scale=scale
    )
    return out.transpose(1, 2)[queries]


def in_places(x: Tensor, real: Tensor) -> Tensor:
    """[rows, heads, width] -> [segments, heads, longest, width], zeros where there is no row."""
    return x.new_zeros((*real.shape, *x.shape[1:])).masked_scatter(real[..., None, None], x).transpose(1, 2)


def real_places(ptr: Tensor) -> Tensor:
    """bool [segments, longest]: which of the places of each padded segment have a row."""
    lengths = ptr.diff()
    longest = int(lengths.max()) if lengths.numel() else 0
    return torch.arange(longest, device=ptr.device) < lengths[:, None]
