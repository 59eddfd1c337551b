"""The signature of rewrites of a captured graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True, slots=True)
class Respelling:
    """A rewrite of a captured graph that keeps its values. `respell` returns a graph without work for it as it is, and
    never changes the given one."""

    name: str
    respell: Callable[[fx.GraphModule], fx.GraphModule]

    def __call__(self, module: fx.GraphModule) -> fx.GraphModule:
        return self.respell(module)
