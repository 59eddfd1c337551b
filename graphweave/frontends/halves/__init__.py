"""Compiled halves in PyTorch's hands: gradients, values saved, ranks, guards on choices, and the check of results."""
