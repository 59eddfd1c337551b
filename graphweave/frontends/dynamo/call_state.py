"""Random state and buffers, restored when a call has to be made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo


class State:
    """What a call may have changed before a function behind a graph break turns out to be untraceable: random state and
    buffers."""

    def __init__(self, target: Callable[..., Any]) -> None:
        owner = getattr(target, "__self__", target)  # the owner of a bound method
        buffers = owner.buffers() if isinstance(owner, torch.nn.Module) else ()
        with torch.no_grad():
            self._buffers = [(b, b.clone()) for b in buffers]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):  # compared by value, since eager batch norm changes no version
                    buffer.copy_(value)
