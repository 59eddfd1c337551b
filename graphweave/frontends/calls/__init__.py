"""Facts on PyTorch's calls in a captured graph: their sizes, rows, layouts, and the operators of graphweave's own."""
