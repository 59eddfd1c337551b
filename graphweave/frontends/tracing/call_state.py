"""Random state and buffers, restored after a call that the user did not make: of the tuner, or of one rank alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo


class State:
    """What a call changes besides its results and what its own Python code does: random state and buffers."""

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
