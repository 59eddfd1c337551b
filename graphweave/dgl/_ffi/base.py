"""`dgl._ffi.base`."""

from graphweave.dgl.base import DGLError

__all__ = ["DGLError"]
