"""`dgl.nn.pytorch.softmax`."""

from graphweave.dgl.ops import edge_softmax

__all__ = ["edge_softmax"]
