"""Fields in another dtype: `to_half`, `to_bfloat16`, `to_float`, `to_double`; and what this package refuses to be."""

from __future__ import annotations

from typing import NoReturn

import torch

from graphweave.core.errors import DataError
from graphweave.dgl.graph import DGLGraph


def to_half(g: DGLGraph) -> DGLGraph:
    """The graph with its float fields in float16."""
    return _cast(g, torch.float16)


def to_bfloat16(g: DGLGraph) -> DGLGraph:
    """The graph with its float fields in bfloat16."""
    return _cast(g, torch.bfloat16)


def to_float(g: DGLGraph) -> DGLGraph:
    """The graph with its float fields in float32."""
    return _cast(g, torch.float32)


def to_double(g: DGLGraph) -> DGLGraph:
    """The graph with its float fields in float64."""
    return _cast(g, torch.float64)


def _cast(g: DGLGraph, dtype: torch.dtype) -> DGLGraph:
    out = g.local_var()
    for frame in (*out.node_frames.values(), *out.edge_frames.values()):
        for name, x in list(frame.items()):
            if x.is_floating_point():
                frame[name] = x.to(dtype)
    return out


def to_cugraph(g: object) -> NoReturn:
    """DataError: cuGraph's graphs are not made here."""
    raise DataError(f"to_cugraph: {g!r} cannot become a cuGraph graph here. Pass g.edges() to cugraph.Graph.")
