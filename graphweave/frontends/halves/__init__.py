"""Compiled halves in PyTorch's hands: gradients, values saved, ranks, forms for other graphs, the check of results."""
