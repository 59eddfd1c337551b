"""`dgl.udf`: what functions of edges and nodes get."""

from graphweave.udf.arguments import EdgeBatch, NodeBatch

__all__ = ["EdgeBatch", "NodeBatch"]
