"""`dgl.backend`: the two functions of it that DGL's examples use."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

__all__ = ["asnumpy", "astype"]


def asnumpy(input: Tensor) -> np.ndarray:
    """The values of a tensor as an array of NumPy's, on the CPU and without gradients."""
    return input.detach().cpu().numpy()


def astype(input: Tensor, ty: torch.dtype) -> Tensor:
    """The tensor with elements of type `ty`."""
    return input.to(ty)
