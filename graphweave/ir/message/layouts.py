"""The layout in memory that a captured graph promised of a value, and tensors brought into it: the same numbers.

Programs know values and not how they lie in memory. Where that matters (a call that reads strides, a result that its
reader may view or write to), the promise of the captured graph stands beside the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Promise:
    """What holds of a result in the captured graph, whoever computes it.

    `order`: its dims as they lie in memory, outermost first, without gaps (None where there may be some). `own`: its
    memory is that of no argument and of no other result, so that who writes to it changes nothing else; if `fresh`, of
    nothing that is kept for the backward either. `loose`: the usual strides do as well (gradients, which PyTorch reads
    whatever their strides are).
    """

    order: tuple[int, ...] | None
    own: bool = True
    fresh: bool = False
    loose: bool = False

    @property
    def usual(self) -> bool:
        """Does what a kernel writes keep it: new memory, in row-major order?"""
        return not self.fresh and self.order in (None, tuple(range(len(self.order or ()))))


def laid_out(x: Tensor, order: Sequence[int], whole: bool = False) -> Tensor:
    """`x`, or a copy, whose dims lie in memory in `order`, outermost first, without gaps.

    With `whole` it also starts where its memory starts, as `as_strided` counts from there.
    """
    return x if lies(x, order) and not (whole and x.storage_offset()) else _copy(x, order)


def memory_of(values: Iterable[Any]) -> set[int]:
    """Where the tensors among `values` lie."""
    return {_memory(v) for v in values if isinstance(v, Tensor) and v.numel()}


def settled(value: Any, promise: Promise, taken: set[int], kept: Set[int] = frozenset()) -> Any:
    """`value`, or a copy that keeps the promise; from now on its memory is `taken`. `kept` is for the backward."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    memory = _memory(value)
    shared = (promise.own and memory in taken) or (promise.fresh and memory in kept)
    order = promise.order
    wrong = order is not None and not lies(value, order) and not (promise.loose and value.is_contiguous())
    if shared or wrong:
        value = value.clone() if order is None else _copy(value, order)
        memory = _memory(value)
    taken.add(memory)
    # To autograd a view of what the program made is a view of a tensor that nobody else has, and may not be written to.
    return torch.ops.aten._unsafe_view.default(value, value.shape) if promise.own and value._is_view() else value


def lies(x: Tensor, order: Sequence[int]) -> bool:
    """Do the dims of `x` lie in memory in `order`, outermost first, without gaps?"""
    return x.permute(*order).is_contiguous() if any(d != i for i, d in enumerate(order)) else x.is_contiguous()


def _copy(x: Tensor, order: Sequence[int]) -> Tensor:
    strides, inner = [0] * x.dim(), 1
    for d in reversed(order):
        strides[d] = inner
        inner *= max(x.shape[d], 1)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
