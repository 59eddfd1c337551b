"""The order in which `torch.einsum` multiplies three operands or more.

Where the package opt_einsum is installed, PyTorch asks it for the cheapest order. It computes with the sizes of all
dims, so a trace would compile them in, and each graph would be compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.backends.opt_einsum as backend

LIBRARY: Any = backend.get_opt_einsum()
"""The module opt_einsum as PyTorch sees it, None if it is not installed."""

_UNKNOWN_SIZE = 1000
"""The size that a dim is taken to have if data decides it."""


def orders_by_first_sizes(original: Callable[..., object]) -> Callable[..., object]:
    """`opt_einsum.contract_path`: the order for the sizes of the first call, without guards on them."""

    def contract_path(equation: str, *operands: Any, **options: object) -> object:
        if all(isinstance(x, torch.Tensor) for x in operands):
            operands = tuple(tuple(map(_size, x.shape)) for x in operands)
            options["shapes"] = True
        return original(equation, *operands, **options)

    return contract_path


def _size(size: int | torch.SymInt) -> int:
    if isinstance(size, torch.SymInt):
        return int(size.node.hint) if size.node.has_hint() else _UNKNOWN_SIZE
    return size
