"""Decomposes pyg_lib's product of segments of rows, each with its own matrix, into a typed product.

The operator needs rows that are sorted by type. Written as the product of each row with a pulled matrix, it is the same
typed product as any other spelling. (PyTorch's own grouped_mm cannot be traced in float32: its shape function only
takes bfloat16.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch._ops import OpOverload


def segments() -> dict[OpOverload, Callable[..., Tensor]]:
    """Decompositions of the operators of pyg_lib, if it has been imported."""
    if not hasattr(torch.ops.pyg, "segment_matmul"):
        return {}
    return {torch.ops.pyg.segment_matmul.default: segment_matmul}


def segment_matmul(x: Tensor, ptr: Tensor, w: Tensor) -> Tensor:
    """x [S, K], ptr [R + 1], w [R, K, J] -> [S, J]: row r times w[i] where ptr[i] <= r < ptr[i + 1]."""
    row = torch.arange(x.shape[0], dtype=ptr.dtype, device=ptr.device)
    types = torch.searchsorted(ptr[1:], row, right=True)
    return torch.bmm(x.unsqueeze(1), w.index_select(0, types)).squeeze(1)
