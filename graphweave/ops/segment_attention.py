"""Attention of rows to the rows of their own segment: all nodes of each graph of a batch to each other."""

from __future__ import annotations

import torch
from torch import Tensor

from graphweave.core.errors import DataError
from graphweave.runtime import segment_attention as native

_HALF = (torch.float16, torch.bfloat16)
_NUMBERS = (torch.float32, torch.float64, *_HALF)
_BIASES = (torch.bool, *_NUMBERS)


def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, *, key_ptr: Tensor | None = None, scale: float | None = None,
    bias: Tensor | None = None, edges: Tensor | None = None, edge_bias: Tensor | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """out[i] = sum of p[j] v[j] over the rows j of the segment of row i, p being the softmax of scale * q[i] . k[j].

    q [N, D], k [M, D], v [M, E] -> [N, E], or with heads, [N, heads, D] and so on, each for itself. Segment s has the
    queries ptr[s] to ptr[s + 1], `ptr` [segments + 1], such as PyG's `batch.ptr`. Its keys and values are those rows
    too, or with `key_ptr` the rows key_ptr[s] to key_ptr[s + 1]. Without keys, queries get zeros. `scale` is by default
    1 / sqrt(D).

    Scores may be shifted by edges: `edge_bias` [edges, heads], or [edges] without heads, holds a number for each edge
    from the query edges[0] to the key edges[1] of the same segment; numbers of equal edges are added up. Or by a tensor
    of all pairs: `bias` [segments, heads, queries of the longest, keys of the longest], of which any dim may be 1, or a
    mask of bools that says which pairs count. Queries without any get zeros. `dropout` is the share of the weights p
    that is set to zero, while others are divided by 1 - dropout: a random choice by PyTorch's generator.

    On the CPU this is one operator, `graphweave::segment_attention`, with a derivative, also in other people's
    `torch.compile`. It stores nothing of the size of all pairs, forward or backward, except for the gradient of `bias`,
    and pads nothing; the derivative computes the weights, and what was dropped, again (Dao et al., "FlashAttention",
    2022, section 3.1). float16 and bfloat16 are computed in float32. Elsewhere rows are padded to the longest segment,
    for PyTorch's fused attention, which has no second derivative. On the CPU the operator has one, except with
    `edge_bias` or `dropout`. DataError for shapes that do not fit, other dtypes, edges between segments, and row
    pointers that fall or do not lead from 0 to the number of rows.
    """
    key_ptr = ptr if key_ptr is None else key_ptr
    _check(q, k, v, ptr, key_ptr)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    if q.dim() == 2:
        q, k, v = (x.unsqueeze(1) for x in (q, k, v))
        edge_bias = edge_bias.unsqueeze(1) if edge_bias is not None and edge_bias.dim() == 1 else edge_bias
        out = segment_attention(
            q, k, v, ptr, key_ptr=key_ptr, scale=factor, bias=bias, edges=edges, edge_bias=edge_bias, dropout=dropout
        )
        return out.squeeze(1)
    _check_terms(q, bias, edges, edge_bias, dropout)
    hidden = ~bias if bias is not None and bias.dtype == torch.bool else None
    if not q.is_cpu:
        bias = bias if hidden is None else torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -torch.inf)
        return _padded(q, k, v, ptr, key_ptr, factor, bias, edges, edge_bias, dropout)
    computed = torch.float32 if q.dtype in _HALF else q.dtype
    shift, numbers = (None if x is None else x.to(computed) for x in (bias if hidden is None else None, edge_bias))
    seed = torch.randint(native.NUM_SEEDS, ()) if dropout else None
    terms = shift, None, None, edges, numbers, hidden, -torch.inf, False, seed, float(dropout)
    out, _ = native.segment_attention(*(x.to(computed) for x in (q, k, v)), ptr.long(), key_ptr.long(), factor, *terms)
    return out.to(q.dtype)


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


def _check_terms(
    q: Tensor, bias: Tensor | None, edges: Tensor | None, edge_bias: Tensor | None, dropout: float
) -> None:
    if bias is not None and (bias.dim() != 4 or bias.shape[1] not in (1, q.shape[1]) or bias.dtype not in _BIASES):
        raise DataError(
            f"bias must be numbers or bools [segments, {q.shape[1]} heads, queries, keys], of which any dim may be 1"
            f" (got {bias.dtype} of shape {list(bias.shape)}). Reshape it."
        )
    if (edges is None) != (edge_bias is None):
        raise DataError("edges and edge_bias belong together (got one of them). Pass both.")
    if edges is not None and edge_bias is not None:
        fits = edges.dim() == 2 and edges.shape[0] == 2 and edges.dtype in (torch.int32, torch.int64)
        if not fits or edge_bias.shape != (edges.shape[1], q.shape[1]) or edge_bias.dtype not in _NUMBERS:
            raise DataError(
                f"expected integers edges [2, edges] and numbers edge_bias [edges, {q.shape[1]} heads] (got"
                f" {edges.dtype} {list(edges.shape)} and {edge_bias.dtype} {list(edge_bias.shape)}). Reshape them."
            )
    if not 0 <= dropout < 1:
        raise DataError(f"dropout must be a share of at least 0 and less than 1 (got {dropout}). Pass such a number.")


def _padded(
    q: Tensor, k: Tensor, v: Tensor, ptr: Tensor, key_ptr: Tensor, scale: float, bias: Tensor | None = None,
    edges: Tensor | None = None, edge_bias: Tensor | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """The same by attention over padded segments."""
    queries, keys = real_places(ptr), real_places(key_ptr)
    mask = q.new_zeros(1, 1, queries.shape[1], keys.shape[1])
    if bias is not None:
        mask = mask + bias[:, :, : mask.shape[2], : mask.shape[3]].to(q.dtype)
    if edges is not None and edge_bias is not None:
        segment = queries.nonzero()[:, 0][edges[0]]
        at = segment, edges[0] - ptr[segment], edges[1] - key_ptr[segment]
        shape = len(queries), *mask.shape[2:], q.shape[1]
        mask = mask + q.new_zeros(shape).index_put(at, edge_bias.to(q.dtype), accumulate=True).permute(0, 3, 1, 2)
    mask = torch.where(keys[:, None, None], mask, -torch.inf)
    nothing = (mask == -torch.inf).all(-1, keepdim=True)  # where zeros are attended, and left out later
    out = torch.nn.functional.scaled_dot_product_attention(
        in_places(q, queries),
        in_places(k, keys),
        in_places(v, keys),
        mask.masked_fill(nothing, 0),
        dropout,
        scale=scale,
    )
    return out.masked_fill(nothing, 0).transpose(1, 2)[queries]


def in_places(x: Tensor, real: Tensor) -> Tensor:
    """[rows, heads, width] -> [segments, heads, longest, width], zeros where there is no row."""
    return x.new_zeros((*real.shape, *x.shape[1:])).masked_scatter(real[..., None, None], x).transpose(1, 2)


def real_places(ptr: Tensor) -> Tensor:
    """bool [segments, longest]: which of the places of each padded segment have a row."""
    lengths = ptr.diff()
    longest = int(lengths.max()) if lengths.numel() else 0
    return torch.arange(longest, device=ptr.device) < lengths[:, None]
