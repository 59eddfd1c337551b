"""Promises of a captured graph about the layout of a value in memory, and copies of tensors that keep them.

Programs do not say how values lie in memory. Where that matters (a call that reads strides, a result that its reader
may view or write to), the promise of the captured graph is kept with the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Promise:
    """The layout of a result in the captured graph, which must hold whatever computes the result.

    `order` has its dims as they lie in memory, outermost first, without gaps (None if gaps are allowed). With `own`, it
    shares memory with no argument and no other result, so that writing to it changes nothing else; with `fresh`, also
    with nothing that is kept for the backward. With `loose`, row-major strides will do as well (for gradients, which
    PyTorch reads with any strides).
    """

    order: tuple[int, ...] | None
    own: bool = True
    fresh: bool = False
    loose: bool = False

    @property
    def row_major(self) -> bool:
        """Whether new memory in row-major order is in the promised order."""
        return self.order in (None, tuple(range(len(self.order or ()))))


def laid_out(x: Tensor, order: Sequence[int], whole: bool = False) -> Tensor:
    """`x` or a copy of it, with dims that lie in memory in `order`, outermost first, without gaps.

    With `whole` the result also starts where its memory starts, since `as_strided` counts from there.
    """
    return x if lies(x, order) and not (whole and x.storage_offset()) else _copy(x, order)


def memory_of(values: Iterable[Any]) -> set[int]:
    """The memories of the tensors among `values`, by their addresses."""
    return {_memory(v) for v in values if _has_memory(v)}


def settled(value: Tensor, promise: Promise, taken: set[int], kept: Set[int] = frozenset()) -> Tensor:
    """`value`, or a copy if that is needed to keep the promise. The memory of the result is added to `taken`, which
    results with `own` must not share; `kept` is memory that is kept for the backward."""
    if not _has_memory(value):
        return value
    memory = _memory(value)
    shared = (promise.own and memory in taken) or (promise.fresh and memory in kept)
    order = promise.order
    wrong = order is not None and not lies(value, order) and not (promise.loose and value.is_contiguous())
    if shared or wrong:
        value = value.clone() if order is None else _copy(value, order)
        memory = _memory(value)
    taken.add(memory)
    # Autograd would forbid writing to a view of the program's tensor, so the result is a tensor of its own.
    return torch.ops.aten._unsafe_view.default(value, value.shape) if promise.own and value._is_view() else value


def lies(x: Tensor, order: Sequence[int]) -> bool:
    """Whether the dims of `x` lie in memory in `order`, outermost first, without gaps."""
    return x.permute(*order).is_contiguous() if any(d != i for i, d in enumerate(order)) else x.is_contiguous()


def _copy(x: Tensor, order: Sequence[int]) -> Tensor:
    strides, inner = [0] * x.dim(), 1
    for d in reversed(order):
        strides[d] = inner
        inner *= max(x.shape[d], 1)
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _has_memory(value: object) -> bool:
    """Whether a value is a tensor with elements in memory of its own. A sparse tensor, such as the gradient of an
    embedding with `sparse=True`, has other tensors instead."""
    return isinstance(value, Tensor) and value.layout is torch.strided and bool(value.numel())


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
