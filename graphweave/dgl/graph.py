"""`DGLGraph`: a graph as DGL has it, whose structure may change."""

from __future__ import annotations

from graphweave.graph.graph import Graph


class DGLGraph(Graph):
    """A `graphweave.Graph` with the rest of DGL's methods. What changes its structure replaces its relations."""
