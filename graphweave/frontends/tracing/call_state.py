"""Random state and buffers, restored after a call that the user did not make: of the tuner, or of one rank alone."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
import torch._dynamo


class State:
    """State that a call changes besides its results and what its own Python code does: random state and buffers."""

    def __init__(self, target: Callable[..., object]) -> None:
        buffers = {id(b): b for module in _modules_of(target) for b in module.buffers()}
        with torch.no_grad():
            self._buffers = [(b, b.clone()) for b in buffers.values()]
        self._random = torch.get_rng_state()

    def restore(self) -> None:
        torch.set_rng_state(self._random)
        with torch.no_grad():
            for buffer, value in self._buffers:
                if not torch.equal(buffer, value):  # compared by value, since eager batch norm changes no version
                    buffer.copy_(value)


def _modules_of(target: Callable[..., object]) -> list[torch.nn.Module]:
    """The modules that a call of `target` runs: itself, the owner of a bound method, and those that a function finds in
    its closure and in global variables."""
    code = getattr(target, "__code__", None)
    scope = getattr(target, "__globals__", {})
    found = [getattr(target, "__self__", target), *(scope.get(name) for name in getattr(code, "co_names", ()))]
    for cell in getattr(target, "__closure__", None) or ():
        with suppress(ValueError):  # a variable that has no value yet
            found.append(cell.cell_contents)
    return [x for x in found if isinstance(x, torch.nn.Module)]
