"""Sparse tensors as plain tensors, and PyTorch's and PyG's functions on them as gathers and scatters."""
