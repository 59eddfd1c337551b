"""`dgl.data`: files of graphs. Data sets are `graphweave.data`'s."""

from graphweave.dgl.save import load_graphs, load_labels, load_tensors, save_graphs, save_tensors

__all__ = ["load_graphs", "load_labels", "load_tensors", "save_graphs", "save_tensors"]
