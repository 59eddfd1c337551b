"""`dgl.init`: initializers of the rows of new nodes and edges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphweave.graph.argument_types import Device

__all__ = ["base_initializer", "zero_initializer"]


def zero_initializer(shape: Sequence[int], dtype: torch.dtype, ctx: Device, id_range: slice) -> Tensor:
    """Zeros of the shape [new rows, ...]."""
    return torch.zeros(shape, dtype=dtype, device=ctx)


def base_initializer(shape: Sequence[int], dtype: torch.dtype, ctx: Device, id_range: slice) -> Tensor:
    """A tensor of the shape [new rows, ...] whose values are not set."""
    return torch.empty(shape, dtype=dtype, device=ctx)
