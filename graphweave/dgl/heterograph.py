"""`dgl.heterograph`, the module: the classes of graphs. (`dgl.heterograph`, the name, is the function.)"""

from graphweave.dgl.block import DGLBlock
from graphweave.dgl.graph import DGLGraph

__all__ = ["DGLBlock", "DGLGraph"]
