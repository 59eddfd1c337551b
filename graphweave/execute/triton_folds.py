"""Folds the pieces of divided rows of a fused push on a GPU."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from torch import Tensor

from graphweave.codegen.triton.folds import FoldProgram, print_fold
from graphweave.core.counters import bump
from graphweave.core.types import DType
from graphweave.runtime.triton_kernel import interpreted, module, on_device
from graphweave.runtime.typed_parts import Folds

FOLDED = 16
"""Pieces that one program of a fold takes at a time."""


def fold_parts(sums: Tensor, folds: Folds, num_rows: int, dtype: DType) -> Tensor:
    """The first `num_rows` rows of `sums`, in `dtype`, after the pieces of divided rows have been added to them."""
    if folds.rows.numel():
        launch(FoldProgram(math.prod(sums.shape[1:]), dtype), sums, folds, num_rows)
    # A view would keep the memory of the pieces alive, which is large compared to that of few rows.
    rows = sums.narrow(0, 0, num_rows)
    return rows.clone() if folds.slots > num_rows // 8 else rows


def launch(kernel: FoldProgram, sums: Tensor, folds: Folds, num_rows: int) -> None:
    """Launch the kernel that folds pieces. Asynchronous on a GPU."""
    options = {} if interpreted() else {"num_warps": 4}
    with on_device(sums.device):
        grid = (folds.rows.numel() * kernel.programs,)
        _function(kernel)[grid](sums, *folds.tensors, num_rows, P=FOLDED, **options)
    bump("kernel_launches")


@lru_cache(maxsize=1024)
def _function(kernel: FoldProgram) -> Any:
    return getattr(module(print_fold(kernel)), kernel.name)
