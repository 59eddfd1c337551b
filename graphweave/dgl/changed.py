"""Functions that make a changed copy of a graph: `dgl.add_edges(g, u, v)` and the like."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from graphweave.dgl.graph import DGLGraph

Arguments = ParamSpec("Arguments")


def _copy_and(
    change: Callable[Concatenate[DGLGraph, Arguments], None],
) -> Callable[Concatenate[DGLGraph, Arguments], DGLGraph]:
    """The method `change` as a function that changes a copy of its graph, and returns the copy."""

    @wraps(change)
    def changed(g: DGLGraph, *args: Arguments.args, **options: Arguments.kwargs) -> DGLGraph:
        out = g.clone()
        change(out, *args, **options)
        return out

    return changed


add_nodes = _copy_and(DGLGraph.add_nodes)
add_edges = _copy_and(DGLGraph.add_edges)
remove_edges = _copy_and(DGLGraph.remove_edges)
remove_nodes = _copy_and(DGLGraph.remove_nodes)
