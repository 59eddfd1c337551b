"""Calls that only compile, for ranks whose part has no rows or one: on stand-ins of more rows, with nothing sent.

All ranks must run one program. But PyTorch traces other code for a tensor of no rows or one, since these broadcast. So
such a rank first calls the function on stand-ins, zeros with `_STAND_IN_ROWS` rows, whose program fits any number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from graphweave.frontends.halves.over_ranks import OverRanks, is_pair
from graphweave.frontends.tracing.call_state import State

_STAND_IN_ROWS = 3

Run = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Calls the compiled function with these arguments."""


class DryCalls:
    """`before(run, args, kwargs)` makes a dry call first if `args` are small and of a new kind."""

    def __init__(self, target: Callable[..., object], ranks: OverRanks) -> None:
        self._target, self._ranks = target, ranks
        self._seen: set[Hashable] = set()

    def before(self, run: Run, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        leaves, spec = tree_flatten((args, kwargs))
        if not any(self._rows(x) in (0, 1) for x in leaves):
            return
        kind = (
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), getattr(self._target, "training", None),
            torch.is_autocast_enabled("cpu"), tuple(map(_kind, leaves)),
        )  # fmt: skip
        if kind in self._seen:
            return
        state, stand_ins = State(self._target), [self._stand_in(x) for x in leaves]
        edges = self._ranks.edges_among(leaves)
        rows = [
            (new, n) for old, new in zip(leaves, stand_ins, strict=True)
            if new is not old and (n := self._rows(old)) is not None
        ]  # fmt: skip
        with self._ranks.alone([(stand_ins[i], *ends) for i, ends in edges.items()], rows):
            new_args, new_kwargs = tree_unflatten(stand_ins, spec)
            run(new_args, new_kwargs)
        state.restore()
        self._seen.add(kind)

    def _rows(self, x: object) -> int | None:
        """The rows of a tensor, None for what all ranks have."""
        if not isinstance(x, Tensor) or not x.dim() or x.layout is not torch.strided or self._ranks.is_shared(x):
            return None
        return x.shape[1] if is_pair(x) else x.shape[0]

    def _stand_in(self, x: Tensor) -> Tensor:
        rows = self._rows(x)
        if rows is None or not (rows < 2 or rows in self._ranks.counts):
            return x
        sizes = (2, _STAND_IN_ROWS) if is_pair(x) else (_STAND_IN_ROWS, *x.shape[1:])
        with torch.inference_mode(x.is_inference()):  # code for the one kind of tensors does not fit the other
            return x.detach().new_zeros(sizes).requires_grad_(x.requires_grad)


def _kind(x: object) -> Hashable:
    if not isinstance(x, Tensor):
        return x if isinstance(x, int | float | str | bool | None) else id(type(x))
    return x.dtype, x.requires_grad, x.dim(), tuple(x.shape[1:]) if x.is_floating_point() else None, str(x.device)
