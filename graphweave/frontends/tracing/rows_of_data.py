"""PyTorch's functions that ask how many rows or classes there are, as formulas that do not ask.

They replace the functions in a trace where data decides the number of rows (graphs of a batch, rows that a mask picks),
which would break the graph. `tracer_gaps.py` puts them in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphweave.frontends.tracing.dense_batches import dense_attention


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Batch norm over all dims but dim 1. Without rows the result is empty, and the running statistics stay."""
    dims = [0, *range(2, input.dim())]
    column = [1, -1] + [1] * (input.dim() - 2)
    if training:
        count = torch.ones_like(input.detach().select(1, 0)).sum()
        torch._check(
            input.select(1, 0).numel() != 1,
            lambda: "Batch norm expected more than 1 value per channel when training. Use .eval(), or a larger batch.",
        )
        mean = input.sum(dims) / count.clamp(min=1)
        apart = input - mean.view(column)
        var = (apart * apart).sum(dims) / count.clamp(min=1)
        with torch.no_grad():
            part = momentum * (count > 0).to(mean.dtype)
            if running_mean is not None:
                running_mean.copy_(running_mean * (1 - part) + mean.detach() * part)
            if running_var is not None:
                unbiased = var.detach() * (count / (count - 1).clamp(min=1))
                running_var.copy_(running_var * (1 - part) + unbiased * part)
    else:
        assert running_mean is not None and running_var is not None
        apart, var = input - running_mean.view(column), running_var
    out = apart * (var + eps).rsqrt().view(column)
    if weight is not None:
        out = out * weight.view(column)
    if bias is not None:
        out = out + bias.view(column)
    return out.to(input.dtype)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Attention without PyTorch's choice of a call, which asks whether a mask of one row is broadcast."""
    plain = query.is_cpu and query.dim() == key.dim() == value.dim() == 4 and not enable_gqa
    if not plain or query.shape[-1] != value.shape[-1]:
        return _attention_of_pytorch(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    out: Tensor = dense_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return out


def one_hot(tensor: Tensor, num_classes: Any = None) -> Tensor:
    """`F.one_hot` with a number of classes that data decides; without one, that is the largest class plus 1."""
    classes = int(tensor.max()) + 1 if num_classes is None else int(num_classes)
    torch._assert_async((tensor >= 0).all(), "one_hot: Class values must be non-negative.")
    if num_classes is not None:
        torch._assert_async((tensor < classes).all(), "one_hot: Class values must be smaller than num_classes.")
    return (tensor.unsqueeze(-1) == torch.arange(classes, device=tensor.device)).long()


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """`torch.bincount`, as a sum over rows. Also weights that need a gradient get theirs, which eager mode refuses."""
    if input.dim() != 1 or input.is_floating_point() or input.dtype is torch.bool:
        return _counts_of_pytorch(input, weights, minlength)  # its error
    torch._check(minlength >= 0, lambda: "minlength should be >= 0")
    index = input.long()
    torch._assert_async((index >= 0).all(), "bincount only supports 1-d non-negative integral inputs.")
    length = int(torch.cat([index, index.new_full((1,), minlength - 1)]).max()) + 1
    torch._check(length >= minlength)
    if weights is None:
        return index.new_zeros(length).index_add(0, index, torch.ones_like(index))
    torch._check(weights.shape == index.shape, lambda: "weights should be 1-d and have the same length as input")
    each = weights if weights.dtype is torch.float32 else weights.double()
    return each.new_zeros(length).index_add(0, index, each)


def repeat_rows(
    input: Tensor, repeats: int | torch.SymInt, dim: int | None = None, *, output_size: int | torch.SymInt | None = None
) -> Tensor:
    """`torch.repeat_interleave` with one number of repeats. PyTorch 2.11 compiles in a size that is given with it, and
    refuses it where data decides it; so it is checked instead."""
    out = torch.repeat_interleave(input, repeats, dim)
    torch._check(out.size(0 if dim is None else dim) == output_size, lambda: "repeat_interleave: wrong output_size")
    return out


def _distances(
    x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary"
) -> Tensor:
    """The distance of each row of `x1` to each of `x2`, by a product of matrices, as PyTorch computes it where one of
    them has more than 25 rows. Where both have fewer, PyTorch subtracts, and its results differ by rounding."""
    if x1.dim() != 2 or x2.dim() != 2 or p != 2 or compute_mode != "use_mm_for_euclid_dist_if_necessary":
        return _distances_of_pytorch(x1, x2, p, compute_mode)
    distances: Tensor = torch.ops.aten._euclidean_dist(x1, x2)
    return distances


_distances_of_pytorch = torch.cdist
_counts_of_pytorch = torch.bincount
_attention_of_pytorch = F.scaled_dot_product_attention

FORMULAS: dict[Any, Callable[..., Any]] = {
    F.batch_norm: _batch_norm,
    F.scaled_dot_product_attention: _attention,
    torch.cdist: _distances,
    F.multi_head_attention_forward: F.multi_head_attention_forward,  # so that the attention within it is found
}
"""PyTorch's function -> the formula that replaces it in a trace, where data decides a size of an argument."""
