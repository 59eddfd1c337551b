"""`dgl.function`: the built-in message and reduce functions."""

from graphweave import function
from graphweave.function import *  # noqa: F403
from graphweave.udf.builtin import copy_e, copy_u

copy_src, copy_edge = copy_u, copy_e
"""Names that DGL called old."""

__all__ = [*function.__all__, "copy_edge", "copy_src"]
