"""Modules that make their parameters when they first see their input (`in_channels=-1`, `nn.LazyLinear`).

They do this by hooks that remove themselves and by a class that changes. This cannot be traced, and would be compiled
for a single call. So the module runs once in plain PyTorch before the first compiled call, and only the parameters are
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map


def make_parameters(module: nn.Module, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Run `module` once if it has a parameter or buffer that is still to be made.

    Arguments do not change, and buffers keep their values from before the run. Random numbers for parameters are drawn
    from PyTorch's generator in eager mode's order.
    """
    waiting = [m for m in module.modules() if any(is_lazy(t) for t in _own_tensors(m))]
    if not waiting:
        return
    kept = {id(b): (b, b.clone()) for b in module.buffers() if not is_lazy(b)}

    def keep_new_buffers(m: nn.Module, _: tuple[Tensor, ...]) -> None:
        kept.update({id(b): (b, b.clone()) for b in m.buffers(recurse=False) if id(b) not in kept})

    # Hooks run in the order of registration, so these run after those that make parameters.
    hooks = [m.register_forward_pre_hook(keep_new_buffers) for m in waiting]
    try:
        with torch.no_grad():
            module(*tree_map(_copied, tuple(args)), **tree_map(_copied, dict(kwargs)))
            for buffer, value in kept.values():
                buffer.copy_(value)
    finally:
        for hook in hooks:
            hook.remove()


def _own_tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(recurse=False), *module.buffers(recurse=False)]


def _copied(value: object) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
