"""Comparisons of numbers that rounding alone tells apart, decided one way or the other on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_ROUNDINGS = 16
"""Numbers are nearly equal if they differ by at most this many units of rounding (torch.finfo(dtype).eps)."""

_OF_EQUAL = {aten.eq: True, aten.ge: True, aten.le: True, aten.ne: False, aten.gt: False, aten.lt: False}
"""Comparison -> what it says of equal numbers."""


class NearTies(TorchDispatchMode):
    """In this mode, floating-point numbers that are nearly equal compare as equal ones do (`equal=True`), or as the
    opposite of that.

    A result that a comparison leads to lies between those of the two modes, whichever way the comparison is rounded.
    """

    def __init__(self, *, equal: bool) -> None:
        super().__init__()
        self._equal = equal

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        of_equal = _OF_EQUAL.get(func.overloadpacket)
        if of_equal is None or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return out
        a, b = args[0], torch.as_tensor(args[1], dtype=args[0].dtype, device=args[0].device)
        near = torch.isclose(a, b, rtol=_ROUNDINGS * torch.finfo(a.dtype).eps, atol=0.0)
        return torch.where(near, of_equal is self._equal, out)
