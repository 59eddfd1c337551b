"""Modules that make their parameters when they first see their input (`in_channels=-1`, `nn.LazyLinear`).

How they do that (hooks that remove themselves, a class that changes) cannot be traced, and would be compiled for one
call. So a run in plain PyTorch goes ahead of the first compiled call, and leaves nothing behind but the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map


def make_parameters(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Runs `module` once if a parameter or buffer of it is still to be made.

    Arguments are left as they are, and buffers as they are before a first call. Numbers for the parameters are drawn
    from PyTorch's generator in the order in which eager mode would draw them.
    """
    waiting = [m for m in module.modules() if any(map(is_lazy, (*m._parameters.values(), *m._buffers.values())))]
    if not waiting:
        return
    kept = {id(b): (b, b.clone()) for b in module.buffers() if not is_lazy(b)}

    def keep_new_buffers(m: nn.Module, _: Any) -> None:
        kept.update({id(b): (b, b.clone()) for b in m.buffers(recurse=False) if id(b) not in kept})

    # Hooks run in the order of their registration: when these run, those that make parameters have run.
    hooks = [m.register_forward_pre_hook(keep_new_buffers) for m in waiting]
    try:
        with torch.no_grad():
            module(*tree_map(_copied, tuple(args)), **tree_map(_copied, dict(kwargs)))
            for buffer, value in kept.values():
                buffer.copy_(value)
    finally:
        for hook in hooks:
            hook.remove()


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
