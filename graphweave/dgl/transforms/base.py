"""Transforms are functions of a graph with options."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from graphweave.dgl.graph import DGLGraph


class BaseTransform:
    """Called with a graph, gives a graph. Its attributes are its options."""

    def __call__(self, g: DGLGraph) -> DGLGraph:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, g).")

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({options})"


class Compose(BaseTransform):
    """Several transforms, each of what the one before it gives."""

    def __init__(self, transforms: Sequence[Callable[[DGLGraph], DGLGraph]]) -> None:
        self.transforms = transforms

    def __call__(self, g: DGLGraph) -> DGLGraph:
        for transform in self.transforms:
            g = transform(g)
        return g
