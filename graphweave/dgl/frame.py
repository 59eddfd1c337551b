"""`dgl.frame`: the function that scripts give to `set_n_initializer`."""

from graphweave.dgl.init import zero_initializer

__all__ = ["zero_initializer"]
