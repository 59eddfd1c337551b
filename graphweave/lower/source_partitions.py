"""Source partitions: a kernel as kernels over pieces of its rows, which are visited in an order of their own.

They are those of divided rows (`divide.py`), but that every row is divided, and that pieces are numbered as they are
visited (`runtime/edge_orders.py`): one range of sources after the other, so that a range's rows stay in a cache while
all its edges are gone through, or along a curve. The results of a row's pieces lie in memory meanwhile, and are folded
at last. With feature tiles, each tile goes through all ranges (Hu et al., "FeatGraph", 2020, section III-C.1 and
figure 6).
"""

from __future__ import annotations

from graphweave.ir.loop.nodes import Kernel
from graphweave.lower.divide import divided


def partitioned(kernel: Kernel) -> tuple[Kernel, ...]:
    """In the order in which they run; none if `kernel` walks no edges."""
    parts = divided(kernel, anywhere=True)
    return () if parts is None else parts.kernels


def folds_edges(kernel: Kernel) -> bool:
    """Whether the kernel adds its edges up by rows, so that a piece of a row has a partial result."""
    parts = divided(kernel, anywhere=True)
    return parts is not None and any(fold is not None for _, fold in parts.passes)
