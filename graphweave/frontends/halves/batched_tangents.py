"""Backwards of a batch of tangents, which `is_grads_batched` and `jacobian(vectorize=True)` ask for.

PyTorch's `vmap` gives the backward tensors that stand for a whole batch. Kernels take the rows of one, so the compiled
backward runs once for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphweave.core.boxed import Boxed
from graphweave.core.errors import DerivativeError


def is_batch(value: object) -> bool:
    """Whether a tensor stands for a batch, in the `vmap` that autograd itself uses."""
    return isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)


def for_each(run: Boxed, args: Sequence[Any], about: str) -> list[Tensor | None]:
    """The results of the backward `run` for each of the batch, as batches. At least one of `args` is a batch."""
    level = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    whole = {i: torch._remove_batch_dim(t, level, 1, 0) for i, t in enumerate(args) if is_batch(t)}
    if any(map(is_batch, whole.values())):
        raise DerivativeError(
            f"gradients of {about} are asked for in a batch of batches, which compiled code does not compute. Ask for"
            " one batch at a time."
        )
    many = max(map(len, whole.values()))
    each = [run([whole[i][row] if i in whole else t for i, t in enumerate(args)]) for row in range(many)]
    return [_batch(parts, level) for parts in zip(*each, strict=True)]


def _batch(parts: Sequence[Any], level: int) -> Tensor | None:
    return torch._add_batch_dim(torch.stack(tuple(parts)), 0, level) if isinstance(parts[0], Tensor) else parts[0]
